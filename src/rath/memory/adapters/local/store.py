"""An open local store: its directory, its index, its clock, and how operations run on it."""

from __future__ import annotations

import errno
import sqlite3
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rath._async.runtime import runtime
from rath._core.usage_locks import Use
from rath.memory.adapters.local.catalog import Catalog
from rath.memory.adapters.local.files import TooLarge
from rath.memory.adapters.local.layout import InvalidUri
from rath.memory.op_types import MemoryOp
from rath.memory.results import MemoryExecutionFailure, MemoryResult

if TYPE_CHECKING:
    from rath.memory.adapters.local.embedding import EmbeddingWorker
    from rath.memory.adapters.local.extraction import Extraction

SWEEP_SECONDS = 60.0
"""How long writes leave the removal of expired notes alone; a guess. Nobody sees them meanwhile."""

SCRUB_SECONDS = 1.0
"""How long one who asks again for costly work is put off, together with others; a guess."""


def now_in_utc() -> datetime:
    """Return the time of the machine."""
    return datetime.now(UTC)


class Expiry:
    """The clock of an open store, and when it last removed expired notes.

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
        if abs(now - self._removed_at) < SWEEP_SECONDS:
            return False
        self._removed_at = now
        return True


class Pace:
    """Runs costly work: at once when nobody asked lately, else soon, in the background.

    Args:
        pause_seconds: How long after one run the next begins at the earliest.
    """

    def __init__(self, *, pause_seconds: float = SCRUB_SECONDS) -> None:
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
        """Run waiting work now, and wait for it; from then on nobody is put off."""
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


@dataclass(frozen=True, slots=True)
class LocalStore:
    """The directory of an open store and its index."""

    root: Path
    """Absolute and without symbolic links."""
    catalog: Catalog
    use: Use | None = None
    """Keeps it from being removed; None outside a home."""
    extraction: Extraction | None = None
    """How it makes notes of transcripts; None without a model."""
    expiry: Expiry = field(default_factory=Expiry)
    """By which clock notes expire."""
    vectors: EmbeddingWorker | None = None
    """The vectors of its documents; None without an embedding model."""
    pace: Pace = field(default_factory=Pace)
    """How often traces of forgotten notes are removed."""

    @property
    def handle(self) -> str:
        """The directory, by which people know the store."""
        return str(self.root)


Blocking = Callable[[LocalStore, Any], MemoryResult]
"""One operation, for one type of `MemoryOp`; blocks."""

Operation = Callable[[LocalStore, Any], Coroutine[Any, Any, MemoryResult]]
"""One operation, for one type of `MemoryOp`, as a coroutine on the runtime."""


def in_worker(operation: Blocking) -> Operation:
    """Return the coroutine function that runs a blocking operation on a worker thread."""

    async def run_there(store: LocalStore, op: MemoryOp) -> MemoryResult:
        return await runtime().call_in_worker(partial(run, operation, store, op))

    return run_there


def run(operation: Blocking, store: LocalStore, op: MemoryOp) -> MemoryResult:
    """Run one operation; an error in it gives a failure, not an exception."""
    try:
        return operation(store, op)
    except InvalidUri as exc:
        return MemoryExecutionFailure("invalid_uri", str(exc))
    except TooLarge as exc:
        return MemoryExecutionFailure("unsupported", str(exc))
    except PermissionError as exc:
        return MemoryExecutionFailure("unauthorized", str(exc), type(exc).__name__)
    except (OSError, sqlite3.Error) as exc:
        if isinstance(exc, OSError) and exc.errno == errno.ENAMETOOLONG:
            return MemoryExecutionFailure("invalid_uri", f"a segment is too long: {exc}")
        return MemoryExecutionFailure("internal", str(exc), type(exc).__name__)
