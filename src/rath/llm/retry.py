"""Retries for plain functions; chat clients of our own have theirs in `VendorClient`."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from rath._async.retry import (
    DEFAULT_BASE_SECONDS,
    DEFAULT_CAP_SECONDS,
    DEFAULT_MAX_ATTEMPTS,
    RetryPolicy,
    retry,
)

__all__ = [
    "DEFAULT_BASE_SECONDS",
    "DEFAULT_CAP_SECONDS",
    "DEFAULT_MAX_ATTEMPTS",
    "retry_with_backoff",
]

T = TypeVar("T")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Backoff(RetryPolicy):
    """Waits at most the cap, plus jitter if wanted."""

    jitter: bool = True

    def wait_after(self, number: int, asked: float | None) -> float | None:
        if number >= max(1, self.max_attempts):
            return None
        steady: float = min(self.cap, self.base * 2 ** (number - 1))
        return steady + (random.uniform(0, self.base) if self.jitter else 0.0)


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

    async def call(_: int) -> T:
        return fn()

    async def pause(seconds: float) -> None:
        _log.warning("a call failed and is tried again in %.2f s", seconds)
        sleep(seconds)

    trying = retry(
        call,
        policy=_Backoff(
            max_attempts=DEFAULT_MAX_ATTEMPTS if max_attempts is None else max_attempts,
            base=DEFAULT_BASE_SECONDS if base_seconds is None else base_seconds,
            cap=cap_seconds,
            jitter=jitter,
        ),
        retryable=lambda error: isinstance(error, retryable),
        on_attempt=lambda _: None,
        sleep=pause,
    )
    try:
        # Nothing in it ever waits for a loop, so one step runs it to its end.
        trying.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise AssertionError("a retry of plain functions waited for an event loop")
