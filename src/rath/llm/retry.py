"""Retries for plain functions; our own clients have theirs in `rath.llm.calls`."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from typing import TypeVar

from rath._async.retry import DEFAULT_BASE_SECONDS, DEFAULT_CAP_SECONDS, DEFAULT_MAX_ATTEMPTS

__all__ = [
    "DEFAULT_BASE_SECONDS",
    "DEFAULT_CAP_SECONDS",
    "DEFAULT_MAX_ATTEMPTS",
    "retry_with_backoff",
]

T = TypeVar("T")

_log = logging.getLogger(__name__)


def retry_with_backoff(
    fn: Callable[[], T],
    *,
    retryable: tuple[type[BaseException], ...],
    max_attempts: int | None = None,
    base_seconds: float | None = None,
    cap_seconds: float = DEFAULT_CAP_SECONDS,
    jitter: bool = True,
    sleep: Callable[[float], None] = time.sleep,
) -> T:
    """Call `fn` until it succeeds or the tries are used up; blocks while it waits.

    Args:
        fn: The call to make.
        retryable: Exceptions that another try may mend; an empty tuple never tries again.
        max_attempts: Tries in all; 4 by default, at least 1.
        base_seconds: Wait before the second try, doubled before each further one; 0.5 by default.
        cap_seconds: The longest wait without its jitter.
        jitter: Add up to `base_seconds` to each wait, at random.
        sleep: What waits.

    Raises:
        BaseException: The last error of `fn`, as it is.
    """
    attempts = max(1, DEFAULT_MAX_ATTEMPTS if max_attempts is None else max_attempts)
    base = DEFAULT_BASE_SECONDS if base_seconds is None else base_seconds
    number = 1
    while True:
        try:
            return fn()
        except retryable:
            if number >= attempts:
                raise
        seconds = min(cap_seconds, base * 2 ** (number - 1))
        seconds += random.uniform(0, base) if jitter else 0.0
        _log.warning("a call failed and is tried again in %.2f s", seconds)
        sleep(seconds)
        number += 1
