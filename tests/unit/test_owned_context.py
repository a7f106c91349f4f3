"""Something that is opened, kept and closed in one task of its own."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeVar

import pytest

from rath._async.owned_context import OwnedContext
from rath._async.runtime import runtime

T = TypeVar("T")


class Place:
    """What is opened; notes the tasks that entered and left it."""

    def __init__(self) -> None:
        self.entered: asyncio.Task[Any] | None = None
        self.left: asyncio.Task[Any] | None = None
        self.fails: BaseException | None = None
        self.waits = False
        self.lingers = False

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[str]:
        self.entered = asyncio.current_task()
        if self.waits:
            await asyncio.Event().wait()
        if self.fails is not None:
            raise self.fails
        try:
            yield "open"
            if self.lingers:
                await asyncio.Event().wait()
        finally:
            self.left = asyncio.current_task()


def on_runtime(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    return runtime().run(make, label="a test")


def test_it_is_entered_and_left_by_one_task_of_its_own() -> None:
    place = Place()

    async def use() -> tuple[str, object]:
        resident = OwnedContext(place.open, label="it")
        value = await resident.aopened()
        await resident.aclose(5)
        return value, asyncio.current_task()

    value, user = on_runtime(use)
    assert value == "open"
    assert place.entered is place.left
    assert place.entered is not user


def test_it_is_opened_once_for_all_who_use_it() -> None:
    made: list[Place] = []

    def make() -> AbstractAsyncContextManager[str]:
        made.append(Place())
        return made[-1].open()

    async def use() -> list[str]:
        resident = OwnedContext(make, label="it")
        values = await asyncio.gather(*(resident.aopened() for _ in range(5)))
        await resident.aclose(5)
        return values

    assert on_runtime(use) == ["open"] * 5
    assert len(made) == 1


def test_it_tells_what_has_become_of_it() -> None:
    async def use() -> list[tuple[bool, bool]]:
        resident = OwnedContext(Place().open, label="it")
        told = [(resident.is_open, resident.has_ended)]
        await resident.aopened()
        told.append((resident.is_open, resident.has_ended))
        resident.stop()
        told.append((resident.is_open, resident.has_ended))
        await resident.aended(5)
        return [*told, (resident.is_open, resident.has_ended)]

    assert on_runtime(use) == [(False, False), (True, False), (False, False), (False, True)]


def test_what_keeps_it_from_opening_is_raised_at_every_use() -> None:
    place = Place()
    place.fails = ValueError("no")

    async def use() -> list[BaseException | str]:
        resident = OwnedContext(place.open, label="it")
        tried = [resident.aopened() for _ in range(2)]
        found = await asyncio.gather(*tried, return_exceptions=True)
        return [*found, resident.error or "none"]

    assert on_runtime(use) == [place.fails] * 3


def test_closing_what_was_never_opened_does_nothing() -> None:
    place = Place()
    on_runtime(lambda: _closed(place))
    assert place.entered is None


async def _closed(place: Place) -> None:
    await OwnedContext(place.open, label="it").aclose(5)


def test_what_does_not_open_in_time_is_closed_by_force() -> None:
    place = Place()
    place.waits = True

    async def use() -> tuple[bool, BaseException | str]:
        resident = OwnedContext(place.open, label="it")
        opening = asyncio.ensure_future(resident.aopened())
        await asyncio.sleep(0)
        await resident.aclose(0.01)
        (found,) = await asyncio.gather(opening, return_exceptions=True)
        return resident.has_ended, found

    has_ended, found = on_runtime(use)
    assert has_ended
    assert isinstance(found, RuntimeError)
    assert str(found) == "it was closed before it was open"


def test_what_is_not_open_yet_is_closed_without_waiting_for_it() -> None:
    place = Place()
    place.waits = True

    async def use() -> bool:
        resident = OwnedContext(place.open, label="it")
        opening = asyncio.ensure_future(resident.aopened())
        await asyncio.sleep(0)
        await asyncio.wait_for(resident.aclose(600), 50)
        with pytest.raises(RuntimeError, match="it was closed before it was open"):
            await opening
        return resident.has_ended

    assert on_runtime(use)


def test_what_does_not_close_in_time_is_cancelled() -> None:
    place = Place()
    place.lingers = True

    async def use() -> bool:
        resident = OwnedContext(place.open, label="it")
        await resident.aopened()
        await resident.aclose(0.01)
        return resident.has_ended

    assert on_runtime(use)
    assert place.left is place.entered


def test_a_cancelled_use_leaves_the_opening_alone() -> None:
    async def use() -> str:
        resident = OwnedContext(Place().open, label="it")
        first = asyncio.ensure_future(resident.aopened())
        await asyncio.sleep(0)
        first.cancel()
        value = await resident.aopened()
        await resident.aclose(5)
        return value

    assert on_runtime(use) == "open"


PROGRAM = """
from contextlib import asynccontextmanager
from rath._async.owned_context import OwnedContext
from rath._async.runtime import runtime

@asynccontextmanager
async def place():
    try:
        yield 1
    finally:
        print("closed", flush=True)

async def use():
    global resident
    resident = OwnedContext(place, label="it")
    await resident.aopened()

runtime().run(use, label="use")
"""


def test_at_exit_it_is_closed_and_nobody_is_reported() -> None:
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert (run.stdout, run.stderr, run.returncode) == ("closed\n", "", 0)


# ---------------------------------------------------------------- awaiting the runtime


async def _answer() -> str:
    return "answer"


def test_a_run_is_awaited_in_any_loop() -> None:
    assert asyncio.run(runtime().await_run(_answer, label="x")) == "answer"


def test_a_run_is_awaited_on_the_runtime_itself() -> None:
    assert on_runtime(lambda: runtime().await_run(_answer, label="x")) == "answer"


def test_cancelling_the_wait_ends_the_run_first() -> None:
    begun, ended = threading.Event(), list[str]()

    async def wait() -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
            ended.append("ended")

    async def cancel_it() -> None:
        waiting = asyncio.ensure_future(runtime().await_run(wait, label="x"))
        await asyncio.to_thread(begun.wait)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(cancel_it())
    assert ended == ["ended"]
