"""How fast a walk over a store goes in the background, and when it ends early."""

from __future__ import annotations

import threading
import time

_BREATH_SECONDS = 0.005
"""How long a walk stops after each millisecond or so; a guess."""

_CLOSING_SECONDS = 1.0
"""How long closing waits for a walk to see all files, so that programs that run briefly and often
see them too; a guess."""


class WalkPace:
    """Lets searches go before a walk, and ends the walk when its catalog is closed.

    Args:
        lock: Held by whoever searches.
    """

    def __init__(self, lock: threading.RLock) -> None:
        self._lock = lock
        self._closing = threading.Event()
        self._next_breath = 0.0
        self._ends_at = 0.0

    def close(self) -> None:
        """Let a walk that is under way go on at full speed, for a second at most."""
        self._ends_at = time.monotonic() + _CLOSING_SECONDS
        self._closing.set()

    def is_to_end(self) -> bool:
        """Let searches go first, and return whether the walk is to end early.

        A thread that computes keeps the interpreter for 5 ms each time that another one, which
        searches, waits for SQLite or for a file. At closing nobody searches any more.
        """
        if self._closing.is_set():
            return time.monotonic() > self._ends_at
        if time.monotonic() >= self._next_breath:
            with self._lock:
                pass
            self._closing.wait(_BREATH_SECONDS)
            self._next_breath = time.monotonic() + _BREATH_SECONDS / 2
        return False
