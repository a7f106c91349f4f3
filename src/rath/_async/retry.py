"""One owner of retries: how often, how long to wait, and what each attempt came to."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct

from rath._core.dataclasses import dataclass
from rath._core.lazy_imports import lazy_modules

if TYPE_CHECKING:
    import asyncio
    import random
else:
    asyncio, random = lazy_modules(__name__, "asyncio", "random")


T = TypeVar("T")

DEFAULT_MAX_ATTEMPTS = 4
DEFAULT_BASE_SECONDS = 0.5
DEFAULT_CAP_SECONDS = 30.0
DEFAULT_LONGEST_WAIT = 120.0

Sleep = Callable[[float], Awaitable[None]]


class Attempt(Struct, frozen=True):
    """What one try came to."""

    number: int
    """Counts from 1."""

    error: str | None
    """Class and text of the error, or None for the try that succeeded."""

    status: int | None
    """HTTP status of a failed try, if the endpoint gave one."""

    elapsed_ms: float | int
    wait: float | int
    """Seconds that were waited after it."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how patiently to try again.

    The wait before try n+1 is `base * 2**(n-1)` plus uniform jitter in [0, base], at most `cap`
    (exponential backoff with jitter, M. Brooker, AWS Architecture Blog 2015). A wait the endpoint
    asks for (Retry-After) is obeyed instead when it is at most `longest_wait`, and ends the
    retries when it is longer.
    """

    max_attempts: int = DEFAULT_MAX_ATTEMPTS
    base: float = DEFAULT_BASE_SECONDS
    """Seconds."""

    cap: float = DEFAULT_CAP_SECONDS
    """Seconds."""

    longest_wait: float = DEFAULT_LONGEST_WAIT
    """Seconds a run is willing to stand still because an endpoint asked for it; a guess."""

    def wait_after(self, number: int, requested: float | None) -> float | None:
        """Return the seconds to wait after failed try `number`, or None to give up."""
        if number >= max(1, self.max_attempts):
            return None
        if requested is not None:
            return requested if requested <= self.longest_wait else None
        backoff: float = self.base * 2 ** (number - 1)
        return min(self.cap, backoff + random.uniform(0, self.base))


async def retry(
    call: Callable[[int], Awaitable[T]],
    *,
    policy: RetryPolicy,
    retryable: Callable[[BaseException], float | bool],
    on_attempt: Callable[[Attempt], None],
    sleep: Sleep | None = None,
) -> T:
    """Call until it succeeds or the policy gives up; the last error is raised as it is.

    Args:
        call: Gets the number of the try, from 1.
        retryable: False for an error that a retry cannot mend, True for one that it may, or the
            seconds that the endpoint asked to wait.
        on_attempt: Is told of every try, the successful one included.
        sleep: Waits; `asyncio.sleep` by default.
    """
    number = 0
    while True:
        number += 1
        started = time.monotonic()
        try:
            result = await call(number)
        except Exception as exc:
            verdict = retryable(exc)
            requested = None if isinstance(verdict, bool) else verdict
            wait = None if verdict is False else policy.wait_after(number, requested)
            on_attempt(_attempt(number, exc, started, wait or 0.0))
            if wait is None:
                raise
            await (sleep or asyncio.sleep)(wait)
        else:
            on_attempt(_attempt(number, None, started, 0.0))
            return result


def _attempt(number: int, exc: Exception | None, started: float, wait: float) -> Attempt:
    return Attempt(
        number=number,
        error=None if exc is None else f"{type(exc).__name__}: {exc}",
        status=getattr(exc, "status", None),
        elapsed_ms=(time.monotonic() - started) * 1000,
        wait=wait,
    )
