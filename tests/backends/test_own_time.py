"""The time of a call stands still while its effects are looked for."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from rath.backend.effects import MAX_PAUSE_SECONDS, PausableDeadline, paused_deadlines
from tests.support.virtual_time import run_virtually


async def look(seconds: float) -> None:
    with paused_deadlines():
        await asyncio.sleep(seconds)


async def run_out(work: Coroutine[Any, Any, None]) -> tuple[float, float]:
    """Return the milliseconds that work took itself when its 5 s were over, and the time then."""
    time = PausableDeadline(5)

    async def limited() -> None:
        async with time:
            await work

    with pytest.raises(TimeoutError):
        await limited()
    assert time.has_expired
    return time.elapsed_ms(), asyncio.get_running_loop().time()


def test_it_runs_out() -> None:
    assert run_virtually(run_out(asyncio.sleep(6))) == (5000.0, 5.0)


def test_looking_takes_none_of_it() -> None:
    async def main() -> tuple[float, bool]:
        async with PausableDeadline(5) as time:
            with paused_deadlines():
                await asyncio.sleep(50)
            await asyncio.sleep(4)
        return time.elapsed_ms(), time.has_expired

    assert run_virtually(main()) == (4000.0, False)


def test_what_is_left_of_it_after_looking_runs_out() -> None:
    async def work() -> None:
        await asyncio.sleep(4)
        await look(50)
        await asyncio.sleep(2)

    assert run_virtually(run_out(work())) == (5000.0, 55.0)


def test_looks_side_by_side_count_once() -> None:
    async def main() -> float:
        async with PausableDeadline(5) as time:
            await asyncio.gather(look(10), look(20))
            await asyncio.sleep(1)
        return time.elapsed_ms()

    assert run_virtually(main()) == 1000.0


def test_looking_without_end_ends_at_a_bound() -> None:
    ended = run_virtually(run_out(look(10 * MAX_PAUSE_SECONDS)))
    assert ended == (0.0, MAX_PAUSE_SECONDS + 5)


def test_all_looks_together_have_one_bound() -> None:
    async def work() -> None:
        while True:
            await look(MAX_PAUSE_SECONDS / 8)

    assert run_virtually(run_out(work())) == (0.0, MAX_PAUSE_SECONDS + 5)


def test_a_look_that_outlives_its_call_moves_nothing() -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def look_late() -> None:
        await begun.wait()
        with paused_deadlines():
            await go_on.wait()

    async def main() -> float:
        async with PausableDeadline(5) as time:
            left_behind = asyncio.create_task(look_late())
        begun.set()
        await asyncio.sleep(7)
        elapsed = time.elapsed_ms()
        go_on.set()
        await left_behind
        return elapsed

    assert run_virtually(main()) == 0.0


def test_a_call_inside_another_stops_the_time_of_both() -> None:
    async def main() -> list[bool]:
        async with PausableDeadline(5) as outer, PausableDeadline(5) as inner:
            with paused_deadlines():
                return [outer.is_paused, inner.is_paused]

    assert run_virtually(main()) == [True, True]
