"""Calls at once, calls in a span of time, and calls that are made again."""

from __future__ import annotations

import asyncio
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath._async.limiter import WINDOW_SECONDS, Caps, Gate, Limiter
from rath._async.retry import Attempt, RetryPolicy, retry
from rath._async.runtime import runtime
from tests.support.virtual_time import VirtualTimeLoop, run_virtually


@dataclass(frozen=True, slots=True)
class Plan:
    """A call of a test: when it comes, how long it takes, and when it is cancelled, if it is."""

    arrives: float
    takes: float
    caps: Caps | None
    cancelled_at: float | None = None


@dataclass(slots=True)
class Log:
    """What happened at a gate."""

    begun: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]])
    """Time and index of each call that began, in order."""
    ended: dict[int, float] = field(default_factory=dict[int, float])
    """When the task of a call was over, also of one that was cancelled."""
    n_open: int = 0
    most_open: int = 0


def new_gate() -> Gate:
    """A gate on the running loop."""
    return Gate(asyncio.get_running_loop())


async def play(plans: Sequence[Plan], gate: Gate | None = None) -> Log:
    """Make the calls of a plan and wait for all of them."""
    log = Log()
    loop = asyncio.get_running_loop()
    gate = gate or new_gate()

    async def call(index: int, plan: Plan) -> None:
        try:
            await asyncio.sleep(plan.arrives)
            if plan.caps is None:
                gate.enter_at_once()
            else:
                await gate.enter(plan.caps)
            log.begun.append((loop.time(), index))
            log.n_open += 1
            log.most_open = max(log.most_open, log.n_open)
            try:
                await asyncio.sleep(plan.takes)
            finally:
                log.n_open -= 1
                gate.leave()
        finally:
            log.ended[index] = loop.time()

    tasks = [asyncio.ensure_future(call(index, plan)) for index, plan in enumerate(plans)]
    for task, plan in zip(tasks, plans, strict=True):
        if plan.cancelled_at is not None:
            loop.call_at(plan.cancelled_at, task.cancel)
    await asyncio.gather(*tasks, return_exceptions=True)
    return log


def breaches(plans: Sequence[Plan], log: Log) -> list[int]:
    """Indices of the calls that began although those before them left no room by their caps."""
    found: list[int] = []
    for position, (now, index) in enumerate(log.begun):
        caps = plans[index].caps or Caps()
        # What begins at one moment may be let in in another order than it comes to say so.
        before = [(at, other) for at, other in log.begun[:position] if at < now]
        n_open = sum(log.ended[other] > now for _, other in before)
        n_recent = sum(now - at < WINDOW_SECONDS for at, _ in before)
        if caps.in_flight is not None and n_open >= caps.in_flight:
            found.append(index)
        if caps.per_minute is not None and n_recent >= caps.per_minute:
            found.append(index)
    return found


def most_within_a_window(log: Log) -> int:
    """The most calls that began within any 60 s."""
    times = [at for at, _ in log.begun]
    return max(
        (sum(0 <= at - first < WINDOW_SECONDS for at in times) for first in times), default=0
    )


some_caps = st.none() | st.builds(
    Caps, st.none() | st.integers(1, 4), st.none() | st.integers(1, 6)
)
# Whole quarters of a second have exact sums, so that many things happen at one moment.
moments = st.integers(0, 400).map(lambda quarters: quarters / 4)
plan_lists = st.lists(
    st.builds(Plan, moments, moments, some_caps, st.none() | moments), max_size=12
)


@given(plans=plan_lists)
def test_no_call_begins_against_its_own_caps(plans: list[Plan]) -> None:
    log = run_virtually(play(plans))
    assert breaches(plans, log) == []


@given(plans=plan_lists, caps=st.builds(Caps, st.integers(1, 4), st.integers(1, 6)))
def test_caps_that_all_calls_share_hold_at_every_moment(plans: list[Plan], caps: Caps) -> None:
    log = run_virtually(play([replace(plan, caps=caps) for plan in plans]))
    assert log.most_open <= (caps.in_flight or 0)
    assert most_within_a_window(log) <= (caps.per_minute or 0)


@given(plans=plan_lists)
def test_every_call_ends_and_a_cancelled_one_at_that_moment(plans: list[Plan]) -> None:
    log = run_virtually(play(plans))
    assert log.n_open == 0
    late = {
        index: log.ended[index]
        for index, plan in enumerate(plans)
        if plan.cancelled_at is not None and log.ended[index] > plan.cancelled_at
    }
    assert late == {}


@given(plans=plan_lists)
def test_after_any_history_a_gate_is_as_good_as_new(plans: list[Plan]) -> None:
    async def then_four_more() -> Log:
        gate = new_gate()
        await play(plans, gate)
        await asyncio.sleep(WINDOW_SECONDS)
        started = asyncio.get_running_loop().time()
        log = await play([Plan(0, 1, Caps(in_flight=2, per_minute=4))] * 4, gate)
        log.begun = [(at - started, index) for at, index in log.begun]
        return log

    assert run_virtually(then_four_more()).begun == [(0, 0), (0, 1), (1, 2), (1, 3)]


@given(
    arrivals=st.sets(moments, min_size=1, max_size=20).map(sorted),
    caps=st.builds(Caps, st.integers(1, 3), st.integers(1, 5)),
)
def test_calls_with_the_same_caps_begin_in_the_order_in_which_they_came(
    arrivals: list[float], caps: Caps
) -> None:
    log = run_virtually(play([Plan(at, 7, caps) for at in arrivals]))
    assert [index for _, index in log.begun] == list(range(len(arrivals)))


def test_a_thousand_calls_at_once_hold_both_caps_and_finish() -> None:
    plans = [Plan(0, 2 + index % 7, Caps(in_flight=50, per_minute=600)) for index in range(1000)]
    log = run_virtually(play(plans))
    assert len(log.begun) == 1000
    assert log.most_open == 50
    assert most_within_a_window(log) == 600
    # 600 in the first minute; the rest follow as the first ones leave the window.
    assert sum(at < WINDOW_SECONDS for at, _ in log.begun) == 600
    assert log.begun[-1][0] < 2 * WINDOW_SECONDS


def test_cancelling_all_who_wait_ends_all_at_once_and_frees_the_gate() -> None:
    caps = Caps(in_flight=50, per_minute=600)
    plans = [Plan(0, 1000, caps, cancelled_at=5.0)] * 1000
    log = run_virtually(play([*plans, Plan(6, 1, caps)]))
    assert set(list(log.ended.values())[:1000]) == {5.0}
    assert log.begun[-1] == (6.0, 1000)


def test_cancelling_some_lets_those_behind_them_move_up() -> None:
    caps = Caps(in_flight=1)
    plans = [
        Plan(0, 10, caps),
        Plan(1, 10, caps, cancelled_at=2),
        Plan(1, 10, caps, cancelled_at=10),
        Plan(1, 10, caps),
    ]
    log = run_virtually(play(plans))
    assert log.begun == [(0, 0), (10, 3)]


def test_cancelling_the_first_in_line_lets_in_one_whose_larger_cap_allows_it() -> None:
    plans = [
        Plan(0, 10, None),
        Plan(1, 1, Caps(in_flight=1), cancelled_at=3),
        Plan(2, 1, Caps(in_flight=2)),
    ]
    assert run_virtually(play(plans)).begun == [(0, 0), (3, 2)]


def test_a_call_that_is_let_in_and_cancelled_in_the_same_step_takes_no_place() -> None:
    caps = Caps(in_flight=1, per_minute=2)

    async def main() -> None:
        gate = new_gate()
        await gate.enter(caps)
        waiting = asyncio.ensure_future(gate.enter(caps))
        await asyncio.sleep(0)
        gate.leave()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        async with asyncio.timeout(1):
            await gate.enter(caps)

    run_virtually(main())


def test_a_call_that_is_cancelled_on_a_loop_that_stood_still_takes_no_place() -> None:
    async def main() -> bool:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        gate = Gate(loop)
        gate.enter_at_once()
        waiting = asyncio.ensure_future(gate.enter(Caps(in_flight=1)))
        await asyncio.sleep(0)
        gate.leave()
        loop.jump(WINDOW_SECONDS)
        gate.enter_at_once()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        return gate.enter_at_once(Caps(in_flight=2, per_minute=2))

    assert run_virtually(main())


def test_a_small_cap_is_not_starved_by_calls_with_larger_ones() -> None:
    large = [Plan(second, 3, Caps(in_flight=9)) for second in range(20)]
    log = run_virtually(play([*large, Plan(4.5, 1, Caps(in_flight=1))]))
    small_began = next(at for at, index in log.begun if index == len(large))
    assert small_began == 7


def test_calls_without_caps_never_wait_and_count_for_those_that_have_some() -> None:
    plans = [Plan(0, 5, None)] * 3 + [Plan(1, 1, Caps(in_flight=3)), Plan(1, 1, None)]
    assert run_virtually(play(plans)).begun == [(0, 0), (0, 1), (0, 2), (1, 4), (5, 3)]


def test_calls_without_caps_leave_no_timer_behind() -> None:
    async def main() -> float:
        gate = new_gate()
        gate.enter_at_once()
        gate.leave()
        await asyncio.sleep(0)
        return asyncio.get_running_loop().time()

    assert run_virtually(main()) == 0


def test_the_sixty_first_second_is_free_again() -> None:
    log = run_virtually(play([Plan(0, 0, Caps(per_minute=1))] * 3))
    assert [at for at, _ in log.begun] == [0, 60, 120]


def test_a_key_has_one_gate_and_another_key_another() -> None:
    limiter = Limiter()

    async def main() -> None:
        assert limiter.gate("a") is limiter.gate("a")
        assert limiter.gate("a") is not limiter.gate("b")

    run_virtually(main())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_forked_child_starts_with_gates_of_its_own() -> None:
    limiter = Limiter()

    async def occupy() -> None:
        limiter.gate("a").enter_at_once()

    async def enter() -> None:
        async with asyncio.timeout(5):
            await limiter.gate("a").enter(Caps(in_flight=1))

    runtime().run(occupy, label="a test")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
        child = os.fork()
    if child == 0:  # pragma: no cover  # another process
        try:
            runtime().run(enter, label="a test")
        except BaseException:  # noqa: BLE001  # the exit status tells the parent
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


# ---- calls that others wait for


def test_a_call_that_gives_way_holds_no_place_and_goes_on_at_once() -> None:
    caps = Caps(in_flight=1)

    async def main() -> list[tuple[str, float]]:
        gate, loop = new_gate(), asyncio.get_running_loop()
        begun: list[tuple[str, float]] = []

        async def other() -> None:
            await gate.enter(caps)
            begun.append(("other", loop.time()))
            await asyncio.sleep(5)
            gate.leave()

        await gate.enter(caps)
        waiting = [asyncio.ensure_future(other()) for _ in range(2)]
        await gate.give_way(asyncio.sleep(3))
        begun.append(("first again", loop.time()))
        await asyncio.sleep(4)
        gate.leave()
        await asyncio.gather(*waiting)
        return begun

    # Two were open from 3 to 5 s, so the last one waits until both have ended.
    assert run_virtually(main()) == [("other", 0), ("first again", 3), ("other", 7)]


def test_a_call_that_is_cancelled_while_it_gives_way_leaves_once() -> None:
    async def main() -> bool:
        gate = new_gate()
        gate.enter_at_once()
        giving_way = asyncio.ensure_future(gate.give_way(asyncio.sleep(9)))
        await asyncio.sleep(1)
        giving_way.cancel()
        await asyncio.gather(giving_way, return_exceptions=True)
        assert not gate.enter_at_once(Caps(in_flight=1))
        gate.leave()
        return gate.enter_at_once(Caps(in_flight=1))

    assert run_virtually(main())


def test_a_call_that_goes_first_waits_for_the_minute_and_for_nobody_who_waits() -> None:
    plans = [
        Plan(0, 100, Caps(in_flight=1)),
        Plan(1, 1, Caps(in_flight=1)),
        Plan(2, 1, Caps(per_minute=1, goes_first=True)),
        Plan(3, 1, Caps(goes_first=True)),
    ]
    assert run_virtually(play(plans)).begun == [(0, 0), (3, 3), (63, 2), (100, 1)]


# ---- gates that nobody needs any more


def test_gates_that_were_idle_for_a_minute_are_dropped() -> None:
    limiter = Limiter()

    async def main() -> None:
        for number in range(50):
            gate = limiter.gate(f"{number}")
            gate.enter_at_once()
            gate.leave()
        assert len(limiter) == 50
        await asyncio.sleep(WINDOW_SECONDS)
        limiter.gate("new")
        assert len(limiter) == 1

    run_virtually(main())


def test_a_gate_is_preserved_while_a_call_is_open_waits_or_counts_for_the_minute() -> None:
    limiter = Limiter()

    async def main() -> None:
        open_one = limiter.gate("open")
        open_one.enter_at_once()
        waiting = asyncio.ensure_future(open_one.enter(Caps(in_flight=1)))
        await asyncio.sleep(WINDOW_SECONDS)
        counting = limiter.gate("counting")
        counting.enter_at_once()
        counting.leave()
        limiter.gate("new")
        assert limiter.gate("open") is open_one
        assert limiter.gate("counting") is counting
        open_one.leave()
        await waiting

    run_virtually(main())


def run(
    outcomes: list[object], policy: RetryPolicy, verdict: float | bool = True
) -> tuple[object, list[Attempt], list[float]]:
    attempts: list[Attempt] = []
    waits: list[float] = []

    async def call(number: int) -> object:
        outcome = outcomes[number - 1]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    async def main() -> object:
        return await retry(
            call,
            policy=policy,
            retryable=lambda _: verdict,
            on_attempt=attempts.append,
            sleep=sleep,
        )

    try:
        result: object = asyncio.run(main())
    except ValueError as exc:
        result = exc
    return result, attempts, waits


def test_success_after_failures_tells_every_try() -> None:
    result, attempts, _ = run([ValueError("a"), ValueError("b"), 7], RetryPolicy())
    assert result == 7
    assert [attempt.error for attempt in attempts] == ["ValueError: a", "ValueError: b", None]


def test_the_last_error_is_raised_as_it_is() -> None:
    last = ValueError("b")
    result, attempts, _ = run([ValueError("a"), last, 7], RetryPolicy(max_attempts=2))
    assert result is last
    assert len(attempts) == 2


def test_what_a_retry_cannot_mend_is_not_tried_again() -> None:
    result, _, waits = run([ValueError("a"), 7], RetryPolicy(), verdict=False)
    assert isinstance(result, ValueError)
    assert waits == []


def test_the_wait_that_is_asked_for_is_obeyed() -> None:
    _, _, waits = run([ValueError("a"), 7], RetryPolicy(), verdict=3.5)
    assert waits == [3.5]


def test_a_wait_that_is_too_long_ends_the_retries() -> None:
    result, _, waits = run([ValueError("a"), 7], RetryPolicy(longest_wait=10), verdict=11.0)
    assert isinstance(result, ValueError)
    assert waits == []


@pytest.mark.parametrize("number", [1, 2, 3])
def test_backoff_doubles_within_its_jitter(number: int) -> None:
    wait = RetryPolicy(base=1, max_attempts=9).wait_after(number, None)
    assert wait is not None
    assert 2 ** (number - 1) <= wait <= 2 ** (number - 1) + 1


def test_backoff_has_a_cap() -> None:
    assert RetryPolicy(max_attempts=99).wait_after(50, None) == 30.0


def test_less_than_one_try_means_one() -> None:
    assert RetryPolicy(max_attempts=0).wait_after(1, None) is None
