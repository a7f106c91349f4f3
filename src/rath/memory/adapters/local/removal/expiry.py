"""Whether notes have expired, by the clock of a store."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from rath.memory.adapters.local.files.about_file import told_about

PAUSE_SECONDS = 60.0
"""How long writes leave the removal of expired notes alone; a guess. Nobody sees them meanwhile."""


def now_in_utc() -> datetime:
    """Return the time of the machine."""
    return datetime.now(UTC)


class Expiry:
    """The clock of an open store, and when it last removed what had expired.

    Args:
        clock: Tells the time; it must have a zone.
    """

    def __init__(self, clock: Callable[[], datetime] = now_in_utc) -> None:
        self._clock = clock
        self._removed_at = self.now()

    def now(self) -> float:
        """Return the seconds since 1970."""
        return self._clock().timestamp()

    def is_due(self) -> bool:
        """Return whether it is time to remove expired notes again, and count that as done."""
        now = self.now()
        # A clock may jump back, too.
        if abs(now - self._removed_at) < PAUSE_SECONDS:
            return False
        self._removed_at = now
        return True


def is_expired(note: Path, now: float) -> bool:
    """Return whether a note is gone for those who look at `now`, in seconds since 1970."""
    return told_about(note).about.is_expired(now)
