"""Doing costly work once for all who ask for it within about a second."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

from rath._async.runtime import runtime

PAUSE_SECONDS = 1.0
"""How long one who asks again is put off, together with others; a guess."""


class Pace:
    """Runs one piece of work: at once when nobody asked lately, else soon, in the background.

    Args:
        pause_seconds: How long after one run the next begins at the earliest.
    """

    def __init__(self, *, pause_seconds: float = PAUSE_SECONDS) -> None:
        self._pause_seconds = pause_seconds
        self._lock = threading.Lock()
        self._is_ending = threading.Event()
        self._is_waiting = False
        self._last: Future[None] | None = None
        self._next_at = float("-inf")

    def ask(self, act: Callable[[], object]) -> None:
        """Run `act` now, or once in the background for all who ask until it begins."""
        with self._lock:
            if self._is_waiting:
                return
            if time.monotonic() < self._next_at and not self._is_ending.is_set():
                try:
                    self._last = runtime().start_in_worker(partial(self._later, act))
                    self._is_waiting = True
                    return
                except RuntimeError:
                    # The interpreter is exiting and starts no thread any more.
                    pass
        self._run(act)

    def finish(self) -> None:
        """Run what waits now, and wait for it; from then on nobody is put off."""
        self._is_ending.set()
        with self._lock:
            last = self._last
        if last is not None:
            last.result()

    def _later(self, act: Callable[[], object]) -> None:
        self._is_ending.wait(self._pause_seconds)
        with self._lock:
            self._is_waiting = False
        self._run(act)

    def _run(self, act: Callable[[], object]) -> None:
        try:
            act()
        finally:
            self._next_at = time.monotonic() + self._pause_seconds
