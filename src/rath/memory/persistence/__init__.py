"""Where local memory stores live, and which of them may go."""

from __future__ import annotations

from rath.memory.persistence.paths import (
    LOCAL_SUBDIR,
    MEMORY_DIR_NAME,
    ensure_local_memory_root,
    local_memory_root,
    local_store_dir,
    memory_root,
)
from rath.memory.persistence.registry import PersistentMemoryRegistry

__all__ = [
    "LOCAL_SUBDIR",
    "MEMORY_DIR_NAME",
    "PersistentMemoryRegistry",
    "ensure_local_memory_root",
    "local_memory_root",
    "local_store_dir",
    "memory_root",
]
