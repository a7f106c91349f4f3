"""The errors of the memory plane, from `rath.errors`."""

from __future__ import annotations

from rath.errors import (
    MemoryBackendError,
    MemoryBackendNotFound,
    MemoryConflict,
    MemoryNotFound,
    MemoryStoreClosed,
    UnsupportedMemoryOp,
)

__all__ = [
    "MemoryBackendError",
    "MemoryBackendNotFound",
    "MemoryConflict",
    "MemoryNotFound",
    "MemoryStoreClosed",
    "UnsupportedMemoryOp",
]
