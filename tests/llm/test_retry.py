"""Retries for plain functions."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from rath.llm.retry import DEFAULT_MAX_ATTEMPTS, retry_with_backoff


def failing(n_times: int, error: type[Exception] = OSError) -> Callable[[], int]:
    calls: list[int] = []

    def call() -> int:
        calls.append(1)
        if len(calls) <= n_times:
            raise error(f"try {len(calls)}")
        return len(calls)

    return call


def test_it_tries_until_it_succeeds() -> None:
    waits: list[float] = []
    tries = retry_with_backoff(
        failing(3), retryable=(OSError,), base_seconds=1, jitter=False, sleep=waits.append
    )
    assert tries == 4
    assert waits == [1, 2, 4]


def test_waits_are_capped_and_jitter_is_added() -> None:
    waits: list[float] = []
    retry_with_backoff(
        failing(3), retryable=(OSError,), base_seconds=1, cap_seconds=2, sleep=waits.append
    )
    assert 1 <= waits[0] <= 2
    assert all(2 <= wait <= 3 for wait in waits[1:])


def test_the_last_error_is_raised() -> None:
    waits: list[float] = []
    with pytest.raises(OSError, match=f"try {DEFAULT_MAX_ATTEMPTS}"):
        retry_with_backoff(failing(9), retryable=(OSError,), sleep=waits.append)
    assert len(waits) == DEFAULT_MAX_ATTEMPTS - 1


@pytest.mark.parametrize("max_attempts", [0, 1, -3])
def test_there_is_always_one_try(max_attempts: int) -> None:
    with pytest.raises(OSError, match="try 1"):
        retry_with_backoff(failing(9), retryable=(OSError,), max_attempts=max_attempts)


def test_what_is_not_retryable_is_raised_at_once() -> None:
    with pytest.raises(KeyError):
        retry_with_backoff(failing(9, KeyError), retryable=(OSError,))
    with pytest.raises(OSError, match="try 1"):
        retry_with_backoff(failing(9), retryable=())


def test_each_retry_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="rath.llm.retry"):
        retry_with_backoff(failing(2), retryable=(OSError,), sleep=lambda _: None)
    assert [each.name for each in caplog.records].count("rath.llm.retry") == 2
