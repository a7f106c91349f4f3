"""The border to user code: `def` goes to a worker thread, `async def` to the user loop."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, ParamSpec, TypeVar, cast

from rath._async.runtime import runtime, wait_interruptibly
from rath._async.workers import SerialWorker, UserExit

P = ParamSpec("P")
T = TypeVar("T")


async def call_either(fn: Callable[P, T | Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Call user code and return its result, whether it is `def` or `async def`.

    Context variables of the caller are visible in it. Cancelling the wait really ends a coroutine;
    a plain function is abandoned and its late result dropped.
    """
    call = partial(fn, *args, **kwargs)
    if is_async(fn):
        return await runtime().call_on_user_loop(cast("Callable[[], Awaitable[T]]", call))
    result = await runtime().call_in_worker(call)
    if inspect.isawaitable(result):
        return await runtime().call_on_user_loop(lambda: result)
    return result


def run_serial(worker: SerialWorker, fn: Callable[[], T]) -> T:
    """Run blocking code of the user on the thread of `worker` and wait for it."""
    if runtime().is_own_thread():
        return fn()  # where waiting would stop every run, which `fn` may wait for
    future = _submit_serial(worker, fn)
    wait_interruptibly(future)
    try:
        return future.result()
    except UserExit as exc:
        raise exc.cause from None


async def arun_serial(worker: SerialWorker, fn: Callable[[], T]) -> T:
    """Run blocking code of the user on the thread of `worker`; cancelling the wait abandons it."""
    return await asyncio.wrap_future(_submit_serial(worker, fn))


def _submit_serial(worker: SerialWorker, fn: Callable[[], T]) -> Future[T]:
    # A job of the worker that waits for this one would wait for ever.
    return runtime().start_in_worker(fn) if worker.is_waiting() else worker.submit(fn)


def is_async(fn: Callable[..., Any]) -> bool:
    """Tell whether calling `fn` gives a coroutine, for functions, methods and callable objects."""
    while isinstance(fn, partial):
        fn = fn.func
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(
        getattr(fn, "__call__", None)  # noqa: B004  # the method itself is asked, not whether it is there
    )
