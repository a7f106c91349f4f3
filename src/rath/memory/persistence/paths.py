"""Directories of the local memory stores below the config directory."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

from rath._core.persistent_dirs import PersistentKind
from rath.config.paths import resolve_config_dir
from rath.errors import MemoryBackendError

__all__ = [
    "LOCAL_SUBDIR",
    "MEMORY_DIR_NAME",
    "ensure_local_memory_root",
    "local_memory_root",
    "local_store_dir",
    "memory_root",
]

MEMORY_DIR_NAME = "memory"
LOCAL_SUBDIR = "local"

STORE = PersistentKind("memory store", MemoryBackendError, "close the agents that use it")


def memory_root() -> Path:
    """Return the directory of the memory plane; creates nothing."""
    return resolve_config_dir() / MEMORY_DIR_NAME


def local_memory_root() -> Path:
    """Return the directory of all local stores; creates nothing."""
    return memory_root() / LOCAL_SUBDIR


def local_store_dir(store_id: UUID | str) -> Path:
    """Return the directory of one local store; creates nothing.

    Raises:
        ValueError: `store_id` is no UUID.
    """
    return local_memory_root() / str(STORE.checked_id(store_id))


def ensure_local_memory_root() -> Path:
    """Create the directory of all local stores where it is missing, and return it.

    Raises:
        MemoryBackendError: It cannot be created.
    """
    return STORE.ensure_private(local_memory_root())
