"""Handles open once on first use, count their holders, and close when nothing runs any more."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Coroutine
from operator import methodcaller
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath._async.plane import Handle, HandleLease, Plane
from rath._async.runtime import runtime

T = TypeVar("T")


class Room:
    """What a `Rooms` plane opens."""

    def __init__(self, handle: str) -> None:
        self.handle = handle


class Rooms(Plane[str, Room, str, str]):
    """A plane that writes down what happens and waits where the test says so."""

    name = "rooms"

    def __init__(self, *, failures: int = 0, turns: int = 0) -> None:
        self.log: list[str] = []
        self._failures = failures
        self._turns = turns
        self._doors = {name: asyncio.Event() for name in ("open", "op")}
        self.begun = {name: threading.Event() for name in ("open", "op", "close")}
        for door in self._doors.values():
            door.set()

    def shut(self, name: str) -> None:
        self._doors[name].clear()

    async def let_go(self, name: str) -> None:
        self._doors[name].set()

    async def aopen(self, spec: str | None) -> Room:
        self.log.append("open")
        self.begun["open"].set()
        await self._pass("open")
        if self._failures:
            self._failures -= 1
            raise OSError("no room")
        return Room(f"room {self.log.count('open')}")

    async def aclose(self, native: Room) -> None:
        self.begun["close"].set()
        await self._pass("close")
        self.log.append("close")

    async def adispatch(self, native: Room, op: str) -> str:
        self.begun["op"].set()
        await self._pass("op")
        self.log.append("op")
        if op == "fail":
            raise ValueError("the operation failed")
        return f"{op} in {native.handle}"

    async def _pass(self, name: str) -> None:
        for _ in range(self._turns):
            await asyncio.sleep(0)
        if name in self._doors:
            await self._doors[name].wait()


def on_runtime(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    return runtime().run(make, label="a test")


def settle(handle: Handle[Any, Any, Any, Any]) -> None:
    """Wait for the closing that a release has submitted."""
    on_runtime(handle.aclose)


# ---- opening


def test_nothing_is_opened_before_the_first_use() -> None:
    rooms = Rooms()
    handle = Handle(rooms, "spec")
    assert rooms.log == []
    assert (handle.handle, handle.is_open, handle.closed, handle.spec) == ("", False, False, "spec")


@given(n_users=st.integers(1, 8), turns=st.integers(0, 4))
def test_parallel_first_use_opens_once(n_users: int, turns: int) -> None:
    rooms = Rooms(turns=turns)
    handle = Handle(rooms)

    async def use() -> list[str]:
        return await asyncio.gather(*[handle.adispatch(str(index)) for index in range(n_users)])

    assert on_runtime(use) == [f"{index} in room 1" for index in range(n_users)]
    assert rooms.log.count("open") == 1
    settle(handle)


def test_threads_that_use_it_at_once_share_what_the_first_one_opened() -> None:
    rooms, answers = Rooms(turns=3), list[str]()
    handle = Handle(rooms)
    threads = [
        threading.Thread(target=lambda: answers.append(handle.dispatch("x"))) for _ in range(10)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(50)
    assert answers == ["x in room 1"] * 10
    settle(handle)


@given(failures=st.integers(1, 4))
def test_a_failed_opening_can_be_tried_again(failures: int) -> None:
    rooms = Rooms(failures=failures)
    handle = Handle(rooms)
    for _ in range(failures):
        with pytest.raises(OSError, match="no room"):
            handle.ensure_open()
        assert not handle.is_open
    assert handle.ensure_open().handle == f"room {failures + 1}"
    settle(handle)


def test_those_who_waited_for_an_opening_that_failed_try_it_themselves() -> None:
    rooms = Rooms(failures=1, turns=2)
    handle = Handle(rooms)

    async def use() -> list[Any]:
        uses = [handle.adispatch("first"), handle.adispatch("second")]
        return await asyncio.gather(*uses, return_exceptions=True)

    first, second = on_runtime(use)
    assert isinstance(first, OSError)
    assert second == "second in room 2"
    settle(handle)


def test_ensure_open_again_does_nothing() -> None:
    rooms = Rooms()
    handle = Handle(rooms).ensure_open()
    assert handle.is_open
    assert handle.ensure_open() is handle
    assert rooms.log == ["open"]
    settle(handle)


def test_a_native_that_is_there_already_is_open_and_has_its_name() -> None:
    rooms = Rooms()
    handle = Handle(rooms, native=Room("the old room"))
    assert handle.is_open
    assert handle.handle == "the old room"
    assert handle.dispatch("x") == "x in the old room"
    settle(handle)
    assert rooms.log == ["op", "close"]


def test_a_native_without_a_name_gets_one_of_its_own() -> None:
    rooms = Rooms()
    one, other = rooms.identify(Room("")), rooms.identify(Room(""))
    assert one
    assert one != other


# ---- counting


@given(more=st.lists(st.booleans(), max_size=12))
def test_it_closes_with_the_last_release_and_not_before(more: list[bool]) -> None:
    rooms = Rooms()
    handle = Handle(rooms).acquire()
    handle.ensure_open()
    holders = 1
    for is_acquire in more:
        if holders == 0:
            break
        if is_acquire:
            assert handle.acquire() is handle
        else:
            handle.release()
        holders += 1 if is_acquire else -1
        assert (handle.refcount, handle.closed) == (holders, holders == 0)
    while holders > 0:
        assert handle.is_open
        handle.release()
        holders -= 1
    assert handle.closed
    settle(handle)
    assert rooms.log == ["open", "close"]


def test_releases_after_the_last_one_do_nothing() -> None:
    rooms = Rooms()
    handle = Handle(rooms).acquire().ensure_open()
    for _ in range(3):
        handle.release()
    settle(handle)
    assert handle.refcount == 0
    assert rooms.log == ["open", "close"]


def test_released_before_it_was_used_it_never_opens() -> None:
    rooms = Rooms()
    handle = Handle(rooms).acquire()
    handle.release()
    with pytest.raises(RuntimeError, match="the handle is closed"):
        handle.dispatch("x")
    with pytest.raises(RuntimeError, match="the handle is closed"):
        handle.ensure_open()
    with pytest.raises(RuntimeError, match="the handle is closed"):
        on_runtime(handle.aopened)
    settle(handle)
    assert rooms.log == []


def test_released_while_it_opens_it_closes_what_was_opened() -> None:
    rooms = Rooms()
    rooms.shut("open")
    handle = Handle(rooms).acquire()
    opening = runtime().submit(handle.aopened, label="opening")
    rooms.begun["open"].wait(50)
    handle.release()
    on_runtime(lambda: rooms.let_go("open"))
    with pytest.raises(RuntimeError, match="room 1 is closed"):
        opening.future.result(timeout=50)
    settle(handle)
    assert rooms.log == ["open", "close"]


def test_a_closed_handle_refuses_every_use_and_names_itself() -> None:
    handle = Handle(Rooms()).ensure_open()
    settle(handle)
    assert handle.closed
    assert not handle.is_open
    for use in (handle.acquire, handle.ensure_open, lambda: handle.dispatch("x")):
        with pytest.raises(RuntimeError, match="room 1 is closed"):
            use()


def test_as_a_context_manager_it_holds_one_count() -> None:
    rooms = Rooms()
    with Handle(rooms) as handle:
        assert handle.refcount == 1
        assert handle.dispatch("x") == "x in room 1"
    assert handle.closed
    settle(handle)
    assert rooms.log == ["open", "op", "close"]


# ---- closing


@given(n_ops=st.integers(1, 5), turns=st.integers(0, 3))
def test_closing_waits_for_the_operations_in_flight(n_ops: int, turns: int) -> None:
    rooms = Rooms(turns=turns)
    handle = Handle(rooms)

    async def close_meanwhile() -> list[str]:
        await handle.aopened()
        rooms.shut("op")
        running = [asyncio.create_task(handle.adispatch(str(index))) for index in range(n_ops)]
        await asyncio.sleep(0)
        closing = asyncio.create_task(handle.aclose())
        for _ in range(turns + 3):
            await asyncio.sleep(0)
        assert not rooms.begun["close"].is_set()
        await rooms.let_go("op")
        answers = await asyncio.gather(*running)
        await closing
        return answers

    assert on_runtime(close_meanwhile) == [f"{index} in room 1" for index in range(n_ops)]
    assert rooms.log == ["open", *["op"] * n_ops, "close"]


@given(n_closers=st.integers(1, 6), turns=st.integers(0, 3))
def test_closing_again_does_nothing_however_many_close_at_once(n_closers: int, turns: int) -> None:
    rooms = Rooms(turns=turns)
    handle = Handle(rooms).ensure_open()

    async def close_all() -> None:
        await asyncio.gather(*[handle.aclose() for _ in range(n_closers)])

    on_runtime(close_all)
    on_runtime(close_all)
    assert rooms.log == ["open", "close"]


def test_an_operation_that_fails_does_not_hold_up_the_closing() -> None:
    rooms = Rooms()
    handle = Handle(rooms)
    with pytest.raises(ValueError, match="the operation failed"):
        handle.dispatch("fail")
    settle(handle)
    assert rooms.log == ["open", "op", "close"]


def test_an_operation_that_is_cancelled_does_not_hold_up_the_closing() -> None:
    rooms = Rooms()
    handle = Handle(rooms).ensure_open()
    rooms.shut("op")
    running = runtime().submit(lambda: handle.adispatch("x"), label="an operation")
    rooms.begun["op"].wait(50)
    runtime().cancel(running)
    settle(handle)
    assert rooms.log == ["open", "close"]


def test_a_closing_that_fails_still_leaves_it_closed() -> None:
    class Stuck(Rooms):
        async def aclose(self, native: Room) -> None:
            self.log.append("close")
            raise OSError("the door is stuck")

    rooms = Stuck()
    handle = Handle(rooms).ensure_open()
    with pytest.raises(OSError, match="the door is stuck"):
        on_runtime(handle.aclose)
    on_runtime(handle.aclose)
    assert not handle.is_open
    assert rooms.log == ["open", "close"]


# ---- leases


@given(n_leases=st.integers(1, 5), drops=st.integers(1, 3))
def test_each_lease_counts_once_however_often_it_is_dropped(n_leases: int, drops: int) -> None:
    handle = Handle(Rooms())
    leases = [HandleLease(handle) for _ in range(n_leases)]
    for left, lease in zip(reversed(range(n_leases)), leases, strict=True):
        assert lease.handle is handle
        for _ in range(drops):
            lease.drop()
        assert (handle.refcount, handle.closed) == (left, left == 0)


def test_a_lease_that_nobody_holds_any_more_is_dropped() -> None:
    rooms = Rooms()
    handle = Handle(rooms).ensure_open()
    lease = HandleLease(handle)
    del lease
    gc.collect()
    assert handle.closed
    settle(handle)
    assert rooms.log == ["open", "close"]


def test_a_closed_handle_gives_no_lease() -> None:
    handle = Handle(Rooms())
    HandleLease(handle).drop()
    with pytest.raises(RuntimeError, match="closed"):
        HandleLease(handle)


# ---- drivers


@pytest.mark.parametrize(
    "use",
    [
        methodcaller("aopen", None),
        methodcaller("aclose", None),
        methodcaller("adispatch", None, "x"),
    ],
    ids=["aopen", "aclose", "adispatch"],
)
def test_a_driver_that_lacks_a_coroutine_is_named(
    use: Callable[[Plane[Any, Any, Any, Any]], Coroutine[Any, Any, object]],
    request: pytest.FixtureRequest,
) -> None:
    class Unfinished(Plane[Any, Any, Any, Any]):
        pass

    with pytest.raises(
        NotImplementedError, match=f"Unfinished implements no {request.node.callspec.id}"
    ):
        on_runtime(lambda: use(Unfinished()))
