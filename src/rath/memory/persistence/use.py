"""Who uses a local store that is kept in a home: `rath._core.usage_locks`, for memory stores."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from uuid import UUID

from rath._core.usage_locks import Use
from rath.memory.persistence.paths import (
    LOCAL_SUBDIR,
    MEMORY_DIR_NAME,
    STORE,
    local_memory_root,
)

__all__ = ["hold_store"]


def hold_store(directory: Path) -> Use | None:
    """Hold the store whose directory, a real path, is kept in a home; None for any other one.

    Raises:
        MemoryBackendError: It is being removed and that does not end, or it cannot be locked.
    """
    if _keeps_stores(directory.parent):
        with contextlib.suppress(ValueError):
            UUID(directory.name)
            return STORE.hold(directory)
    return None


def _keeps_stores(above: Path) -> bool:
    # By its name in any home; in the one that is in force it may be a link to another disk.
    is_named_so = (above.parent.name, above.name) == (MEMORY_DIR_NAME, LOCAL_SUBDIR)
    return is_named_so or str(above) == os.path.realpath(local_memory_root())
