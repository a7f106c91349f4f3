"""Where local memory stores live."""

from __future__ import annotations

from rath.memory.persistence.paths import (
    LOCAL_SUBDIR,
    MEMORY_DIR_NAME,
    ensure_local_memory_root,
    local_memory_root,
    local_store_dir,
    memory_root,
)

__all__ = [
    "LOCAL_SUBDIR",
    "MEMORY_DIR_NAME",
    "ensure_local_memory_root",
    "local_memory_root",
    "local_store_dir",
    "memory_root",
]
