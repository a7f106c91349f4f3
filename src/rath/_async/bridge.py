"""The border to user code: `def` goes to a worker thread, `async def` to the user loop."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, ParamSpec, TypeVar, cast

from rath._async.runtime import runtime

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


def is_async(fn: Callable[..., Any]) -> bool:
    """Tell whether calling `fn` gives a coroutine, for functions, methods and callable objects."""
    while isinstance(fn, partial):
        fn = fn.func
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(
        getattr(fn, "__call__", None)  # noqa: B004  # the method itself is asked, not whether it is there
    )
