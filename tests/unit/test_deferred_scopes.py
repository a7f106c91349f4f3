"""Scopes end what was started inside them; a run belongs to the process that started it."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import weakref
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import uuid4

import pytest

from rath._async.deferred import Deferred, nesting
from rath._async.runtime import runtime


def start(make: Callable[[Deferred[int]], Coroutine[Any, Any, int]]) -> Deferred[int]:
    return Deferred.start(make, owner=uuid4(), label="a run", on_cancel=lambda _: -1)


class Gate:
    """Lets runs wait until the test says go."""

    def __init__(self) -> None:
        self._open = asyncio.Event()

    async def wait(self) -> None:
        await self._open.wait()

    def open(self) -> None:
        async def set_it() -> None:
            self._open.set()

        runtime().run(set_it, label="opening a gate")


def turn_of_the_loop() -> None:
    """Let the loop drop what it holds of tasks that have ended."""

    async def nothing() -> None: ...

    runtime().run(nothing, label="a turn of the loop")


def test_ending_a_scope_ends_what_still_goes_on_inside_it_and_nothing_else() -> None:
    first_gate, gate = Gate(), Gate()

    async def quick(_: Deferred[int]) -> int:
        await first_gate.wait()
        return 1

    async def slow(_: Deferred[int]) -> int:
        await gate.wait()
        return 2

    outside = start(slow)
    with nesting() as scope:
        forgotten, ended, going = start(quick), start(quick), start(slow)
    first_gate.open()
    assert (forgotten.result(), ended.result()) == (1, 1)
    later = start(slow)
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

    async def slow(_: Deferred[int]) -> int:
        await gate.wait()
        return 2

    with nesting() as outer:
        first = start(slow)
        with nesting() as inner:
            second = start(slow)
    inner.cancel()
    assert second.result() == -1
    assert not first.done()
    outer.cancel()
    assert first.result() == -1


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
