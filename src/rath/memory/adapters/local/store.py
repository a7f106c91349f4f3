"""An open local store: its directory, its index, its clock, and how operations run on it."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Callable, Coroutine
from dataclasses import field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rath._async.runtime import runtime
from rath._core.dataclasses import dataclass
from rath._core.usage_locks import Use
from rath.memory.adapters.local.catalog import Catalog
from rath.memory.adapters.local.pacing import SCRUB_SECONDS, DelayedWork
from rath.memory.driver import OperationFailed
from rath.memory.op_types import MemoryOp
from rath.memory.results import MemoryExecutionFailure, MemoryResult

if TYPE_CHECKING:
    from rath.memory.adapters.local.embedding import EmbeddingWorker
    from rath.memory.adapters.local.extraction import Extraction

SWEEP_SECONDS = 60.0
"""How long writes leave the removal of expired notes alone; a guess. Nobody sees them meanwhile."""


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


def _run_one(jobs: set[Callable[[], object]]) -> None:
    # All do the same.
    jobs.pop()()


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
    scrubbing: DelayedWork[Callable[[], object]] = field(
        default_factory=lambda: DelayedWork(
            _run_one, delay_seconds=SCRUB_SECONDS, is_first_at_once=True
        )
    )
    """Removes the traces of forgotten notes."""

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
    except OperationFailed as exc:
        return exc.failure
    except PermissionError as exc:
        return MemoryExecutionFailure("unauthorized", str(exc), type(exc).__name__)
    except (OSError, sqlite3.Error) as exc:
        if isinstance(exc, OSError) and exc.errno == errno.ENAMETOOLONG:
            return MemoryExecutionFailure("invalid_uri", f"a segment is too long: {exc}")
        return MemoryExecutionFailure("internal", str(exc), type(exc).__name__)
