"""The time that a call takes itself, without what looking for its effects takes."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Self

MAX_LOOKING_SECONDS = 60.0
"""How much longer a call may take because its effects are looked for; a guess, far above what a
tree of `EffectPolicy.max_files` files takes."""


class OwnTime:
    """A deadline for what runs inside, that stands still while effects are looked for.

    Inside `async with` it raises TimeoutError when the time is up. Used on the runtime thread.

    Args:
        limit: Seconds that it may take.
    """

    def __init__(self, limit: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._limit = self._began + limit
        self._deadline = asyncio.timeout_at(self._limit)
        self._looked = 0.0
        self._n_looking = 0
        self._since = 0.0
        self._has_ended = False
        self._token: Token[tuple[OwnTime, ...]] | None = None

    @property
    def has_expired(self) -> bool:
        """Whether the time was up."""
        return self._deadline.expired()

    @property
    def is_still(self) -> bool:
        """Whether it stands still now."""
        return self._n_looking > 0

    def elapsed_ms(self) -> float:
        """Return how long it has taken by now, in milliseconds."""
        now = self._loop.time()
        looking = now - self._since if self.is_still else 0.0
        return (now - self._began - self._looked - looking) * 1000

    def stop(self) -> None:
        """Stand still, until `go_on` was called as often."""
        self._n_looking += 1
        if self._n_looking == 1:
            self._since = self._loop.time()
            self._move(MAX_LOOKING_SECONDS)

    def go_on(self) -> None:
        """Take back one `stop`."""
        self._n_looking -= 1
        if self._n_looking == 0:
            self._looked += self._loop.time() - self._since
            self._move(min(self._looked, MAX_LOOKING_SECONDS))

    async def __aenter__(self) -> Self:
        self._token = _clocks.set((*_clocks.get(), self))
        await self._deadline.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._token is not None
        _clocks.reset(self._token)
        # What the call left running may still look for effects of its own.
        self._has_ended = True
        await self._deadline.__aexit__(kind, error, trace)

    def _move(self, seconds: float) -> None:
        if not self._has_ended and not self._deadline.expired():
            self._deadline.reschedule(self._limit + seconds)


_clocks: ContextVar[tuple[OwnTime, ...]] = ContextVar("rath_own_times", default=())


@contextmanager
def looking() -> Generator[None]:
    """Say that what happens inside is looking for effects, which no call has to pay for."""
    clocks = _clocks.get()
    for clock in clocks:
        clock.stop()
    try:
        yield
    finally:
        for clock in clocks:
            clock.go_on()
