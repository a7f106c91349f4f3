"""The border to user code: `def` on workers, `async def` on the user loop, nothing gets through."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import threading
from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from rath._async.bridge import call_either, is_async
from rath._async.runtime import runtime
from rath._async.workers import UserExit, WorkerThreads

variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


def call(fn: Callable[..., object], *args: object) -> object:
    async def main() -> object:
        return await call_either(fn, *args)

    return runtime().run(main, label="a call")


def test_a_function_runs_on_a_worker() -> None:
    assert str(call(lambda: threading.current_thread().name)).startswith("rath-worker")


def test_a_coroutine_function_runs_on_the_user_loop() -> None:
    async def where() -> str:
        return threading.current_thread().name

    assert call(where) == "rath-user"


def test_a_function_that_returns_an_awaitable_is_awaited() -> None:
    async def inner() -> int:
        return 4

    def outer() -> Awaitable[int]:
        return inner()

    assert call(outer) == 4


@pytest.mark.parametrize("is_coroutine", [False, True], ids=["def", "async def"])
def test_context_variables_are_visible(is_coroutine: bool) -> None:
    async def coroutine() -> str:
        return variable.get()

    token = variable.set("seen")
    try:
        assert call(coroutine if is_coroutine else variable.get) == "seen"
    finally:
        variable.reset(token)


@pytest.mark.parametrize(
    "error",
    [
        SystemExit(3),
        KeyboardInterrupt(),
        asyncio.CancelledError(),
        concurrent.futures.CancelledError(),
        StopIteration("x"),
        GeneratorExit(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_would_break_a_loop_is_wrapped(error: BaseException) -> None:
    def leave() -> None:
        raise error

    with pytest.raises(UserExit) as caught:
        call(leave)
    assert caught.value.cause is error


@pytest.mark.parametrize(
    "error",
    [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()],
    ids=lambda error: type(error).__name__,
)
def test_what_would_break_the_user_loop_is_wrapped(error: BaseException) -> None:
    async def leave() -> None:
        raise error

    with pytest.raises(UserExit) as caught:
        call(leave)
    assert type(caught.value.cause) is type(error)
    assert call(lambda: 1) == 1


def test_an_ordinary_error_comes_through_as_it_is() -> None:
    error = ValueError("boom")

    def fail() -> None:
        raise error

    with pytest.raises(ValueError, match="boom") as caught:
        call(fail)
    assert caught.value is error


def test_is_async_sees_through_partials_and_callable_objects() -> None:
    class Callable_:  # noqa: N801  # the name says what it is
        async def __call__(self) -> None: ...

    async def coroutine() -> None: ...

    assert is_async(partial(coroutine))
    assert is_async(Callable_())
    assert not is_async(print)


def test_jobs_never_wait_for_each_other() -> None:
    workers, n_jobs = WorkerThreads("test"), 50
    barrier = threading.Barrier(n_jobs)
    futures = [workers.submit(barrier.wait) for _ in range(n_jobs)]
    assert sorted(future.result(timeout=50) for future in futures) == list(range(n_jobs))


def test_an_idle_worker_is_used_again() -> None:
    workers = WorkerThreads("test")
    names: set[str] = set()
    for _ in range(20):
        future = workers.submit(lambda: threading.current_thread().name)
        names.add(future.result(timeout=50))
    # A job that comes a moment before the worker is idle again gets another one.
    assert len(names) < 20
