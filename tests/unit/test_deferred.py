"""A cell keeps its value or its error; reads wait, never for themselves; scopes end runs."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import uuid4

import pytest

from rath._async.bridge import call_either
from rath._async.deferred import Deferred, nesting
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

    def then(self, value: int) -> Callable[[Deferred[int]], Coroutine[Any, Any, int]]:
        """A run that waits, and has that value."""

        async def make(_: Deferred[int]) -> int:
            await self.wait()
            return value

        return make

    def open(self) -> None:
        async def set_it() -> None:
            self._open.set()

        runtime().run(set_it, label="opening a gate")


async def forever(_: Deferred[int]) -> int:
    await asyncio.Event().wait()
    return 0


async def boom(_: Deferred[int]) -> int:
    raise ValueError("boom")


async def follow(cell: Deferred[int]) -> int:
    values: list[int] = [await needed for needed in cell.inputs]
    return sum(values)


def test_result_waits_for_the_run() -> None:
    gate = Gate()

    cell = start(gate.then(5))
    assert not cell.done()
    gate.open()
    assert cell.result() == 5


def test_the_same_error_at_every_read() -> None:
    error = ValueError("boom")

    async def make(_: Deferred[int]) -> int:
        raise error

    cell = start(make)
    found: list[tuple[int, int]] = []
    for _ in range(3):
        with pytest.raises(ValueError, match="boom") as info:
            cell.result()
        found.append((id(info.value), len(info.traceback)))
    # Reads do not lengthen the traceback either.
    assert len(set(found)) == 1
    assert found[0][0] == id(error)


def test_await_works_in_any_event_loop() -> None:
    async def make(_: Deferred[int]) -> int:
        return 5

    async def main() -> int:
        return await start(make)

    assert asyncio.run(main()) == 5


def test_cancelling_the_wait_leaves_the_run_alone() -> None:
    gate = Gate()

    cell = start(gate.then(5))

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
    cell = start(forever)
    cell.cancel()
    assert cell.result() == -1


def test_cancelling_a_chain_spares_inputs_that_others_wait_for() -> None:
    gate = Gate()

    shared, own = start(gate.then(1)), start(gate.then(1))

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

    cell = start(gate.then(1))

    async def read() -> int:
        return cell.result()

    with pytest.raises(SelfWaitError, match="await"):
        runtime().run(read, label="a read")
    gate.open()
    assert cell.result() == 1


def test_a_failure_that_nobody_read_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def nothing() -> None:
        return

    cell = start(boom, label="a run of ours")
    while not cell.done():
        runtime().run(nothing, label="a turn of the loop")
    with caplog.at_level(logging.ERROR, logger="rath.session"):
        del cell
        wait_until_let_go(lambda: "a run of ours" in caplog.text)
    # Other tests leave failed cells too, and the collector takes them when it likes.
    ours = [record.message for record in caplog.records if "a run of ours" in record.message]
    assert ours == ["a run of ours failed and nobody read its result: ValueError('boom')"]


def test_a_failure_that_was_read_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    cell = start(boom, label="a run of ours")
    with pytest.raises(ValueError, match="boom"):
        cell.result()
    gone = weakref.ref(cell)
    with caplog.at_level(logging.ERROR, logger="rath.session"):
        del cell
        wait_until_let_go(lambda: gone() is None)
    assert "a run of ours" not in caplog.text


def test_ctrl_c_in_a_read_ends_the_run_and_what_only_it_waits_for() -> None:
    gate = Gate()

    own = start(gate.then(1))

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


# ---- runs inside runs


def outer_with_inner(
    end: Callable[[], Coroutine[Any, Any, int]],
) -> tuple[Deferred[int], Deferred[int]]:
    inner: list[Deferred[int]] = []
    begun = threading.Event()

    async def make(_: Deferred[int]) -> int:
        inner.append(start(forever))
        begun.set()
        return await end()

    outer = start(make)
    begun.wait(50)
    return outer, inner[0]


def test_cancelling_a_run_ends_the_runs_inside_it() -> None:
    async def wait() -> int:
        await asyncio.Event().wait()
        return 0

    outer, inner = outer_with_inner(wait)
    outer.cancel()
    assert outer.result() == -1
    assert inner.result() == -1


def test_a_failed_run_ends_the_runs_inside_it() -> None:
    async def fail() -> int:
        raise ValueError("boom")

    outer, inner = outer_with_inner(fail)
    with pytest.raises(ValueError, match="boom"):
        outer.result()
    assert inner.result() == -1


def test_a_run_that_ends_well_leaves_the_runs_inside_it_alone() -> None:
    async def end() -> int:
        return 1

    outer, inner = outer_with_inner(end)
    assert outer.result() == 1
    assert not inner.done()
    inner.cancel()
    assert inner.result() == -1


def test_a_long_pending_chain_is_cancelled_complete() -> None:
    cells = [start(forever)]
    for _ in range(2000):
        cells.append(start(follow, cells[-1]))
    cells[-1].cancel_chain()
    assert [cell.result() for cell in cells] == [-1] * 2001


def test_the_root_of_a_diamond_is_cancelled_with_it() -> None:
    root = start(forever)
    tip = start(follow, start(follow, root), start(follow, root))
    tip.cancel_chain()
    assert root.result() == -1


def test_two_runs_whose_code_reads_each_other_do_not_hang() -> None:
    cells: dict[str, Deferred[int]] = {}
    ready = threading.Event()

    def reader(other: str) -> Callable[[Deferred[int]], Coroutine[Any, Any, int]]:
        def read() -> int:
            ready.wait(50)
            return cells[other].result()

        async def make(_: Deferred[int]) -> int:
            return await call_either(read)

        return make

    cells["a"] = start(reader("b"))
    cells["b"] = start(reader("a"))
    ready.set()
    for cell in cells.values():
        with pytest.raises(SelfWaitError):
            cell.result()


def test_a_branch_made_inside_a_run_may_be_read_later() -> None:
    cells: list[Deferred[int]] = []
    branches: list[Deferred[int]] = []
    ready = threading.Event()

    def branch() -> None:
        ready.wait(50)
        branches.append(start(follow, cells[0]))

    async def make(_: Deferred[int]) -> int:
        await call_either(branch)
        return 1

    cells.append(start(make))
    ready.set()
    assert cells[0].result() == 1
    assert branches[0].result() == 1


# ---- scopes and processes


def turn_of_the_loop() -> None:
    """Let the loop drop what it holds of tasks that have ended."""

    async def nothing() -> None: ...

    runtime().run(nothing, label="a turn of the loop")


def test_ending_a_scope_ends_what_still_goes_on_inside_it_and_nothing_else() -> None:
    first_gate, gate = Gate(), Gate()

    outside = start(gate.then(2))
    with nesting() as scope:
        forgotten, ended, going = (
            start(first_gate.then(1)),
            start(first_gate.then(1)),
            start(gate.then(2)),
        )
    first_gate.open()
    assert (forgotten.result(), ended.result()) == (1, 1)
    later = start(gate.then(2))
    gone = weakref.ref(forgotten)
    del forgotten
    while gone() is not None:
        turn_of_the_loop()
        gc.collect()
    scope.cancel()
    assert (ended.result(), going.result()) == (1, -1)
    gate.open()
    assert (outside.result(), later.result()) == (2, 2)


def test_a_scope_ends_what_scopes_inside_it_hold_but_not_the_other_way_round() -> None:
    gate = Gate()

    with nesting() as outer:
        first = start(gate.then(2))
        with nesting() as inner:
            second = start(gate.then(2))
    inner.cancel()
    assert second.result() == -1
    assert not first.done()
    outer.cancel()
    assert first.result() == -1


def test_a_scope_that_has_ended_ends_what_is_submitted_later() -> None:
    with nesting() as outer:
        first = start(forever)
        with nesting():
            outer.end()
            later = start(forever)
    assert (first.result(), later.result()) == (-1, -1)
    outside = start(Gate().then(2))
    assert not outside.done()
    outside.cancel()


def test_a_value_that_was_there_has_no_runs_inside() -> None:
    cell = Deferred.of(1)
    cell.cancel_nested()
    cell.cancel()
    assert cell.result() == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_run_of_the_parent_is_refused_in_a_forked_child() -> None:
    code = """
import asyncio, os, sys, warnings
from uuid import uuid4
from rath._async.deferred import Deferred, nesting
from rath.errors import RathError

async def slow(_):
    await asyncio.Event().wait()

cell = Deferred.start(slow, owner=uuid4(), label="session abc", on_cancel=lambda _: None)

async def wait():
    return await cell

warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
child = os.fork()
if child == 0:
    for read in (cell.result, lambda: asyncio.run(wait())):
        try:
            read()
        except RathError as exc:
            print(exc, flush=True)
    os._exit(0)  # asyncio may complain of the parent's task when a child is taken down
os.waitpid(child, 0)
cell.cancel()
cell.result()
"""
    ended = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.count("session abc runs in the process that this one was forked from") == 2


def waiting(fail: type[Exception] | None = None) -> tuple[Deferred[int], Callable[[], None]]:
    """Return a run that waits, and what lets it end."""
    may_end = asyncio.Event()

    async def make(_: Deferred[int]) -> int:
        await asyncio.wait_for(may_end.wait(), 50)
        if fail is not None:
            raise fail("as told")
        return 1

    async def end() -> None:
        may_end.set()

    cell = Deferred.start(make, owner=uuid4(), label="a run", on_cancel=lambda _: -1)
    return cell, lambda: runtime().run(end, label="the end")


@pytest.mark.parametrize("fail", [None, OSError])
def test_what_waits_for_the_end_comes_before_every_reader(fail: type[Exception] | None) -> None:
    cell, end = waiting(fail)
    seen: list[tuple[bool, bool]] = []
    assert cell.at_end(lambda: seen.append((cell.done(), runtime().is_own_thread())))
    assert cell.at_end(lambda: seen.append((cell.done(), runtime().is_own_thread())))
    end()
    if fail is None:
        assert cell.result() == 1
    else:
        with pytest.raises(fail, match="as told"):
            cell.result()
    assert seen == [(False, True)] * 2


def test_a_run_that_is_cancelled_has_an_end_too() -> None:
    cell, _ = waiting()
    seen: list[int] = []
    assert cell.at_end(lambda: seen.append(1))
    cell.cancel()
    assert cell.result() == -1
    assert seen == [1]


@pytest.mark.parametrize("fault", [ValueError, SystemExit])
def test_what_fails_at_the_end_is_logged_and_keeps_nobody_waiting(
    fault: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    cell, end = waiting()
    seen: list[int] = []

    def fail() -> None:
        raise fault("as told")

    assert cell.at_end(fail)
    assert cell.at_end(lambda: seen.append(1))
    with caplog.at_level(logging.ERROR, "rath.session"):
        end()
        assert cell.result() == 1
    assert seen == [1]
    assert "what was to be done at the end of a run failed" in caplog.text
    assert f"{fault.__name__}: as told" in caplog.text


def test_after_the_end_nothing_is_done() -> None:
    cell, end = waiting()
    end()
    cell.result()
    seen: list[int] = []
    assert not cell.at_end(lambda: seen.append(1))
    assert not Deferred.of(1).at_end(lambda: seen.append(1))
    assert seen == []


def test_an_amendment_is_in_every_value_that_is_read() -> None:
    cell, end = waiting()
    seen: list[int | None] = []
    assert cell.amend(lambda value: value + 1)
    assert cell.amend(lambda value: value * 10)
    assert cell.at_end(lambda: seen.append(cell.latest))
    end()
    assert (cell.result(), cell.latest, seen) == (20, 20, [20])
    assert not cell.amend(lambda value: value + 1)
    assert not Deferred.of(1).amend(lambda value: value + 1)


def test_an_amendment_of_a_cancelled_run_is_made_too() -> None:
    cell, _ = waiting()
    assert cell.amend(lambda value: value * 10)
    cell.cancel()
    assert cell.result() == -10


def test_a_failed_run_is_not_amended() -> None:
    cell, end = waiting(OSError)
    seen: list[int] = []

    def change(value: int) -> int:
        seen.append(value)
        return value

    assert cell.amend(change)
    end()
    with pytest.raises(OSError, match="as told"):
        cell.result()
    assert seen == []


def test_an_amendment_that_fails_is_logged_and_leaves_the_value(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cell, end = waiting()
    assert cell.amend(lambda value: value // 0)
    assert cell.amend(lambda value: value + 1)
    with caplog.at_level(logging.ERROR, "rath.session"):
        end()
        assert cell.result() == 2
    assert "ZeroDivisionError" in caplog.text
