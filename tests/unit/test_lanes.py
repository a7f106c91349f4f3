"""Lanes keep the order of equal keys, barriers stand alone, results keep the order of the calls."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future

from hypothesis import given
from hypothesis import strategies as st

from rath._async.lanes import Job, Lanes

plans = st.lists(st.tuples(st.sampled_from("abc"), st.booleans(), st.integers(0, 3)), max_size=12)
"""Per call: its key, whether it is a barrier, how many turns of the loop it takes."""


def run_plan(plan: list[tuple[str, bool, int]]) -> tuple[list[int], list[tuple[str, int]]]:
    """Return the results and the log of starts and ends."""
    log: list[tuple[str, int]] = []

    def job(index: int, key: str, is_barrier: bool, turns: int) -> Job[int]:
        async def call() -> int:
            log.append(("start", index))
            for _ in range(turns):
                await asyncio.sleep(0)
            log.append(("end", index))
            return index

        return Job((key,), is_barrier, call)

    jobs = [job(index, *entry) for index, entry in enumerate(plan)]
    return asyncio.run(Lanes().run(jobs)), log


@given(plan=plans)
def test_results_stand_in_call_order(plan: list[tuple[str, bool, int]]) -> None:
    results, _ = run_plan(plan)
    assert results == list(range(len(plan)))


@given(plan=plans)
def test_equal_keys_never_overlap_and_keep_their_order(plan: list[tuple[str, bool, int]]) -> None:
    _, log = run_plan(plan)
    for key in "abc":
        lane = [event for event in log if plan[event[1]][0] == key]
        expected = [
            (edge, index)
            for index, entry in enumerate(plan)
            if entry[0] == key
            for edge in ("start", "end")
        ]
        assert lane == expected


@given(plan=plans)
def test_a_barrier_runs_alone(plan: list[tuple[str, bool, int]]) -> None:
    _, log = run_plan(plan)
    for index, (_, is_barrier, _) in enumerate(plan):
        if is_barrier:
            at = log.index(("start", index))
            assert log[at + 1] == ("end", index)
            assert {other for _, other in log[:at]} == set(range(index))


def test_different_keys_run_at_once() -> None:
    _, log = run_plan([("a", False, 2), ("b", False, 2)])
    assert [edge for edge, _ in log] == ["start", "start", "end", "end"]


def test_an_abandoned_call_holds_its_lane_until_it_ends() -> None:
    async def main() -> list[str]:
        lanes, held, log = Lanes(), Future[None](), list[str]()
        held.set_running_or_notify_cancel()
        lanes.hold(("a",), held)

        async def wait() -> None:
            await lanes.wait_free(("a",))
            log.append("free")

        waiting = asyncio.create_task(wait())
        await asyncio.sleep(0)
        log.append("not yet")
        held.set_result(None)
        await waiting
        await lanes.wait_free(("a",))
        return log

    assert asyncio.run(main()) == ["not yet", "free"]


def test_a_lane_whose_abandoned_call_has_ended_is_free_at_once() -> None:
    async def main() -> bool:
        lanes, held = Lanes(), Future[None]()
        held.set_result(None)
        lanes.hold(("a",), held)
        waiting = asyncio.ensure_future(lanes.wait_free(("a",)))
        await asyncio.sleep(0)
        return waiting.done()

    assert asyncio.run(main())
