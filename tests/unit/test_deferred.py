"""A cell keeps its value or its error; reads wait, and never for themselves."""

from __future__ import annotations

import asyncio
import logging
import threading
import weakref
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import uuid4

import pytest

from rath._async.bridge import call_either
from rath._async.deferred import Deferred
from rath._async.runtime import runtime
from rath.errors import SelfWaitError
from tests.support.interrupts import ctrl_c_while_waiting
from tests.support.waiting import wait_until_let_go


def start(
    make: Callable[[Deferred[int]], Coroutine[Any, Any, int]],
    *inputs: Deferred[int],
    label: str = "a run",
) -> Deferred[int]:
    def on_cancel(latest: int | None) -> int:
        return -1 if latest is None else latest

    return Deferred.start(make, owner=uuid4(), label=label, inputs=inputs, on_cancel=on_cancel)


class Gate:
    """Lets a run wait until the test says go."""

    def __init__(self) -> None:
        self._open = asyncio.Event()

    async def wait(self) -> None:
        await self._open.wait()

    def open(self) -> None:
        async def set_it() -> None:
            self._open.set()

        runtime().run(set_it, label="opening a gate")


def test_a_ready_cell_never_waits() -> None:
    cell = Deferred.of(3)
    assert cell.done()
    assert cell.result() == 3
    assert cell.latest == 3


def test_result_waits_for_the_run() -> None:
    gate = Gate()

    async def make(_: Deferred[int]) -> int:
        await gate.wait()
        return 5

    cell = start(make)
    assert not cell.done()
    gate.open()
    assert cell.result() == 5


def test_the_same_error_at_every_read() -> None:
    error = ValueError("boom")

    async def make(_: Deferred[int]) -> int:
        raise error

    cell = start(make)
    caught: list[ValueError] = []
    for _ in range(3):
        with pytest.raises(ValueError, match="boom") as info:
            cell.result()
        caught.append(info.value)
    assert caught == [error] * 3


def test_reads_do_not_lengthen_the_traceback() -> None:
    async def make(_: Deferred[int]) -> int:
        raise ValueError("boom")

    cell = start(make)
    depths: list[int] = []
    for _ in range(3):
        with pytest.raises(ValueError, match="boom") as info:
            cell.result()
        depths.append(len(info.traceback))
    assert len(set(depths)) == 1


def test_await_works_in_any_event_loop() -> None:
    async def make(_: Deferred[int]) -> int:
        return 5

    async def main() -> int:
        return await start(make)

    assert asyncio.run(main()) == 5


def test_cancelling_the_wait_leaves_the_run_alone() -> None:
    gate = Gate()

    async def make(_: Deferred[int]) -> int:
        await gate.wait()
        return 5

    cell = start(make)

    async def main() -> None:
        async def read() -> int:
            return await cell

        waiting = asyncio.create_task(read())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(main())
    gate.open()
    assert cell.result() == 5


def test_cancel_keeps_what_was_reported() -> None:
    gate, begun = Gate(), threading.Event()

    async def make(cell: Deferred[int]) -> int:
        cell.report(7)
        begun.set()
        await gate.wait()
        return 5

    cell = start(make)
    begun.wait()
    assert cell.latest == 7
    cell.cancel()
    assert cell.result() == 7


def test_a_run_that_is_cancelled_before_it_began_has_a_value_too() -> None:
    async def make(_: Deferred[int]) -> int:
        await asyncio.Event().wait()
        return 5

    cell = start(make)
    cell.cancel()
    assert cell.result() == -1


def test_cancelling_a_chain_spares_inputs_that_others_wait_for() -> None:
    gate = Gate()

    async def slow(_: Deferred[int]) -> int:
        await gate.wait()
        return 1

    shared, own = start(slow), start(slow)

    async def use_both(_: Deferred[int]) -> int:
        return await shared + await own

    async def use_shared(_: Deferred[int]) -> int:
        return await shared

    first, second = start(use_both, shared, own), start(use_shared, shared)
    first.cancel_chain()
    assert own.result() == -1
    gate.open()
    assert second.result() == 1


def test_a_read_inside_the_run_itself_is_refused() -> None:
    cells: list[Deferred[int]] = []
    ready = threading.Event()

    def read() -> int:
        ready.wait()
        return cells[0].result()

    async def make(_: Deferred[int]) -> int:
        return await call_either(read)

    cells.append(start(make, label="session abc"))
    ready.set()
    with pytest.raises(SelfWaitError, match=r"session abc.*partial_table"):
        cells[0].result()


def test_a_read_of_what_waits_for_the_run_is_refused() -> None:
    cells: list[Deferred[int]] = []

    def read() -> int:
        async def later(_: Deferred[int]) -> int:
            return await cells[0]

        return start(later, cells[0]).result()

    begin = Gate()

    async def make(_: Deferred[int]) -> int:
        await begin.wait()
        return await call_either(read)

    cells.append(start(make))
    begin.open()
    with pytest.raises(SelfWaitError):
        cells[0].result()


def test_a_read_on_the_runtime_thread_is_refused() -> None:
    gate = Gate()

    async def slow(_: Deferred[int]) -> int:
        await gate.wait()
        return 1

    cell = start(slow)

    async def read() -> int:
        return cell.result()

    with pytest.raises(SelfWaitError, match="await"):
        runtime().run(read, label="a read")
    gate.open()
    assert cell.result() == 1


def test_a_failure_that_nobody_read_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def make(_: Deferred[int]) -> int:
        raise ValueError("boom")

    async def nothing() -> None:
        return

    cell = start(make, label="a run of ours")
    while not cell.done():
        runtime().run(nothing, label="a turn of the loop")
    with caplog.at_level(logging.ERROR, logger="rath.session"):
        del cell
        wait_until_let_go(lambda: "a run of ours" in caplog.text)
    # Other tests leave failed cells too, and the collector takes them when it likes.
    ours = [record.message for record in caplog.records if "a run of ours" in record.message]
    assert ours == ["a run of ours failed and nobody read its result: ValueError('boom')"]


def test_a_failure_that_was_read_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def make(_: Deferred[int]) -> int:
        raise ValueError("boom")

    cell = start(make, label="a run of ours")
    with pytest.raises(ValueError, match="boom"):
        cell.result()
    gone = weakref.ref(cell)
    with caplog.at_level(logging.ERROR, logger="rath.session"):
        del cell
        wait_until_let_go(lambda: gone() is None)
    assert "a run of ours" not in caplog.text


def test_ctrl_c_in_a_read_ends_the_run_and_what_only_it_waits_for() -> None:
    gate = Gate()

    async def slow(_: Deferred[int]) -> int:
        await gate.wait()
        return 1

    own = start(slow)

    async def use(_: Deferred[int]) -> int:
        return await own

    cell = start(use, own)
    with pytest.raises(KeyboardInterrupt), ctrl_c_while_waiting():
        cell.result()
    assert (cell.result(), own.result()) == (-1, -1)


def test_ctrl_c_does_not_wait_long_for_a_run_that_takes_its_time_to_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    gate = Gate()

    async def tidy_up(_: Deferred[int]) -> int:
        try:
            await asyncio.Event().wait()
        finally:
            await gate.wait()
        return 1

    cell = start(tidy_up)
    with pytest.raises(KeyboardInterrupt), ctrl_c_while_waiting():
        cell.result()
    assert not cell.done()
    assert "still ending its work in the background" in caplog.text
    gate.open()
    assert cell.result() == -1
