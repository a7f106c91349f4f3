"""Runs inside runs: ended together, and never waiting for each other."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import uuid4

import pytest

from rath._async.bridge import call_either
from rath._async.deferred import Deferred, nesting
from rath.errors import RathError, SelfWaitError


def start(
    make: Callable[[Deferred[int]], Coroutine[Any, Any, int]], *inputs: Deferred[int]
) -> Deferred[int]:
    return Deferred.start(
        make, owner=uuid4(), label="a run", inputs=inputs, on_cancel=lambda latest: -1
    )


async def forever(_: Deferred[int]) -> int:
    await asyncio.Event().wait()
    return 0


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


def test_a_nesting_block_collects_what_was_submitted_inside() -> None:
    with nesting() as nested:
        inside = start(forever)
    outside = start(forever)
    nested.cancel()
    assert inside.result() == -1
    assert not outside.done()
    outside.cancel()


def test_a_long_pending_chain_is_cancelled_whole() -> None:
    async def follow(cell: Deferred[int]) -> int:
        values: list[int] = [await needed for needed in cell.inputs]
        return sum(values)

    cells = [start(forever)]
    for _ in range(2000):
        cells.append(start(follow, cells[-1]))
    cells[-1].cancel_chain()
    assert [cell.result() for cell in cells] == [-1] * 2001


def test_the_root_of_a_diamond_is_cancelled_with_it() -> None:
    async def follow(cell: Deferred[int]) -> int:
        values: list[int] = [await needed for needed in cell.inputs]
        return sum(values)

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

    async def follow(cell: Deferred[int]) -> int:
        values: list[int] = [await needed for needed in cell.inputs]
        return 10 + sum(values)

    def branch() -> None:
        ready.wait(50)
        branches.append(start(follow, cells[0]))

    async def make(_: Deferred[int]) -> int:
        await call_either(branch)
        return 1

    cells.append(start(make))
    ready.set()
    assert cells[0].result() == 1
    assert branches[0].result() == 11


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_pending_read_in_a_forked_child_is_refused() -> None:
    cell = start(forever)
    pid = os.fork()
    if pid == 0:
        try:
            cell.result()
        except RathError:
            os._exit(7)
        os._exit(1)
    _, status = os.waitpid(pid, 0)
    cell.cancel()
    assert os.waitstatus_to_exitcode(status) == 7
