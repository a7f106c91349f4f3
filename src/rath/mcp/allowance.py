"""How many notifications of a server are passed on."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["BURST", "PER_SECOND", "Allowance"]

BURST = 1000
"""How many may come at once. A guess: more steps of one call than anybody looks at."""

PER_SECOND = 200.0
"""How many may come for long; each costs about half a millisecond of the one loop, measured."""


class Allowance:
    """A bucket of `BURST` notifications that fills again with time.

    Args:
        clock: Seconds from any beginning.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._left = float(BURST)
        self._filled_at = clock()

    def takes(self) -> bool:
        """Take one more, and tell whether there was room for it."""
        now = self._clock()
        self._left = min(BURST, self._left + (now - self._filled_at) * PER_SECOND)
        self._filled_at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True
