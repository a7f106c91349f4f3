"""An open local store: its directory, its index, and the operations on both."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rath.memory.adapters.local.catalog import Catalog
from rath.memory.adapters.local.layout import InvalidUri
from rath.memory.op_types import MemoryOp
from rath.memory.results import MemoryExecutionFailure, MemoryResult


@dataclass(frozen=True, slots=True)
class LocalStore:
    """The directory of an open store and its index."""

    root: Path
    """Absolute and without symbolic links."""
    catalog: Catalog

    @property
    def handle(self) -> str:
        """The directory, by which people know the store."""
        return str(self.root)


Operation = Callable[[LocalStore, Any], MemoryResult]
"""One operation, for one type of `MemoryOp`; blocks."""


def run(operation: Operation, store: LocalStore, op: MemoryOp) -> MemoryResult:
    """Run one operation; what goes wrong in it is a failure, not an exception."""
    try:
        return operation(store, op)
    except InvalidUri as exc:
        return MemoryExecutionFailure("invalid_uri", str(exc))
    except PermissionError as exc:
        return MemoryExecutionFailure("unauthorized", str(exc), type(exc).__name__)
    except (OSError, sqlite3.Error) as exc:
        return MemoryExecutionFailure("internal", str(exc), type(exc).__name__)
