"""One owner of retries: how often, how long, and what each try came to."""

from __future__ import annotations

import asyncio

import pytest

from rath._async.retry import Attempt, RetryPolicy, retry


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
