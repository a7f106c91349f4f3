"""When costly work is done: once for several who ask, and after those who wait for an answer."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from rath._async.runtime import runtime
from rath.memory.adapters.local.layout import logger

T = TypeVar("T")

SYNC_SECONDS = 0.5
"""How long new notes are gathered before they are forced to disk together."""

SCRUB_SECONDS = 1.0
"""How long one who asks again for a store to be scrubbed is put off, with others; a guess."""

_BREATH_SECONDS = 0.005
"""How long a walk stops after each millisecond or so; a guess."""

_QUIET_SECONDS = 0.02
_PATIENCE_SECONDS = 0.1
"""A walk waits until nobody has searched for so long, or for this much in all; guesses."""

_CLOSING_SECONDS = 1.0
"""How long closing waits for a walk to see all files, so that programs that run briefly and often
see them too; a guess."""


class DelayedWork(Generic[T]):
    """Work in the background, once for all items that come within some time.

    Args:
        act: Does the work for some items.
        delay_seconds: How long items are gathered.
        is_first_at_once: Whether an item is worked on at once, and waited for, where there was no
            work for that long.
    """

    def __init__(
        self,
        act: Callable[[set[T]], object],
        *,
        delay_seconds: float,
        is_first_at_once: bool = False,
    ) -> None:
        self._act = act
        self._delay_seconds = delay_seconds
        self._is_first_at_once = is_first_at_once
        self._changed = threading.Condition()
        self._pending: set[T] = set()
        self._n_added = 0
        self._n_done = 0
        self._is_at_work = False
        self._at_once = threading.Event()
        self._next_at = float("-inf")
        self._failure: BaseException | None = None
        self._pid = os.getpid()

    def add(self, item: T) -> None:
        """Have an item worked on soon; at once where that is due, or no thread can be started."""
        with self._changed:
            if self._pid != os.getpid():
                # The thread that would do it stayed in the parent, with the work of the parent.
                self._pid, self._is_at_work, self._pending = os.getpid(), False, set()
            if not self._is_first_at_once or time.monotonic() < self._next_at:
                self._pending.add(item)
                self._n_added += 1
                if self._is_at_work:
                    return
                try:
                    runtime().start_in_worker(self._work)
                    self._is_at_work = True
                    return
                except RuntimeError:
                    # The interpreter is exiting and starts no thread any more.
                    self._pending.discard(item)
        self.run(item)

    def run(self, item: T) -> None:
        """Work on an item now, and raise its error or that of earlier work in the background."""
        self._run({item})
        self._raise_failure()

    def flush(self) -> None:
        """Wait for all items that were added, and raise the error of work in the background."""
        self.wait()
        self._raise_failure()

    def wait(self) -> None:
        """Wait until all items that were added were worked on, or that failed."""
        with self._changed:
            n_added = self._n_added
            self._at_once.set()
            self._changed.wait_for(
                lambda: not self._is_at_work or self._n_done >= n_added or self._pid != os.getpid()
            )
            self._next_at = float("-inf")

    def hold(self) -> None:
        """Keep other threads from adding items, until `let_go`."""
        self._changed.acquire()

    def let_go(self) -> None:
        """Let other threads add items again."""
        self._changed.release()

    def _work(self) -> None:
        while True:
            self._at_once.wait(self._delay_seconds)
            with self._changed:
                self._at_once.clear()
                batch, self._pending = self._pending, set()
                n_added = self._n_added
                if not batch:
                    self._is_at_work = False
                    return
            try:
                self._run(batch)
            except BaseException as exc:  # noqa: BLE001  # `flush` raises it, which waits for us
                logger.error("%s", exc)
                self._failure = exc
            finally:
                with self._changed:
                    self._n_done = n_added
                    self._changed.notify_all()

    def _run(self, batch: set[T]) -> None:
        try:
            self._act(batch)
        finally:
            self._next_at = time.monotonic() + self._delay_seconds

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure


class WalkOver(Exception):
    """A walk ends early."""


def no_pause() -> None:
    """Go on at once."""


class WalkPace:
    """Lets searches go before a walk, and ends the walk when its catalog is closed.

    Args:
        lock: Held by whoever searches.
    """

    def __init__(self, lock: threading.RLock) -> None:
        self._lock = lock
        self._closing = threading.Event()
        self._searched_at = float("-inf")
        self._next_breath = 0.0
        self._ends_at = 0.0

    def close(self) -> None:
        """Let a walk that is under way go on at full speed, for a second at most."""
        self._ends_at = time.monotonic() + _CLOSING_SECONDS
        self._closing.set()

    def note_search(self) -> None:
        """Let a walk wait for the search that begins now, and those that soon follow it."""
        self._searched_at = time.monotonic()

    def breathe(self) -> None:
        """Let searches go first.

        A thread that computes keeps the interpreter for 5 ms each time that another one, which
        searches, waits for SQLite or for a file. At closing nobody searches any more.

        Raises:
            WalkOver: The catalog was closed a second ago.
        """
        now = time.monotonic()
        if self._closing.is_set():
            if now > self._ends_at:
                raise WalkOver("its store is closed")
        elif now >= self._next_breath:
            latest = now + _PATIENCE_SECONDS
            with self._lock:
                pass
            while not self._closing.wait(_BREATH_SECONDS):
                now = time.monotonic()
                if now > latest or now - self._searched_at >= _QUIET_SECONDS:
                    break
            self._next_breath = time.monotonic() + _BREATH_SECONDS / 2
