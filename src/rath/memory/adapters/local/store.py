"""An open local store: its directory, its index, and the operations on both."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rath._async.runtime import runtime
from rath._core.usage_locks import Use
from rath.memory.adapters.local.extraction.jobs import Extraction
from rath.memory.adapters.local.files.regular import TooLarge
from rath.memory.adapters.local.indexing.catalog import Catalog
from rath.memory.adapters.local.layout import InvalidUri
from rath.memory.adapters.local.removal.expiry import Expiry
from rath.memory.adapters.local.removal.pacing import Pace
from rath.memory.adapters.local.vectors.keeper import StoreVectors
from rath.memory.op_types import MemoryOp
from rath.memory.results import MemoryExecutionFailure, MemoryResult


@dataclass(frozen=True, slots=True)
class LocalStore:
    """The directory of an open store and its index."""

    root: Path
    """Absolute and without symbolic links."""
    catalog: Catalog
    use: Use | None = None
    """What keeps it from being removed; None outside a home."""
    extraction: Extraction | None = None
    """How it makes notes of transcripts; None without a model."""
    expiry: Expiry = field(default_factory=Expiry)
    """By which clock notes expire."""
    vectors: StoreVectors | None = None
    """The vectors of its documents; None without an embedding model."""
    pace: Pace = field(default_factory=Pace)
    """How often traces of what was forgotten are removed."""

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
    """Run one operation; what goes wrong in it is a failure, not an exception."""
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
