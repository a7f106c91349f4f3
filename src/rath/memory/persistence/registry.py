"""Local memory stores by id: made, listed, and removed once nobody needs them."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast
from uuid import UUID

from rath._core.dataclasses import dataclass
from rath._core.persistent_dirs import PersistentDirectories
from rath._core.usage_locks import Use
from rath.memory.persistence import paths

__all__ = ["PersistentMemoryRegistry", "StoreRecord", "hold_store", "read_record"]

_META_NAME = "meta.json"
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StoreRecord:
    """Whose a store is, and when it was opened or closed last."""

    project_root: Path | None = None
    """Root of the project whose store it is; None for any other store."""

    last_used_at: float | None = None
    """Seconds since 1970; None where it is not told."""

    is_damaged: bool = False
    """There is a file, and it cannot be believed."""


class PersistentMemoryRegistry:
    """Finds again, from any process, the local stores that are kept in the home directory.

    Such a store is a directory: open it with
    `MemoryStoreSpec(options={"path": str(registry.local_path(store_id))})`. The store of a
    project, which `memory="local"` opens, is one of them too.

    While a store is open, whichever process opened it, nothing here removes it. A process that was
    killed holds nothing. Time of last use is the opening, the operations, to the minute, and the
    closing.

    Objects hold no state: all of them see the same directory.
    """

    def alloc_local_id(self) -> UUID:
        """Make a new, empty store and return its id.

        Raises:
            MemoryBackendError: It cannot be made.
        """
        return local_stores().alloc()

    def ensure_local(self, store_id: UUID | str) -> Path:
        """Make the store of that id where it is missing, and return its path; counts as a use.

        Raises:
            ValueError: `store_id` is not a UUID.
            MemoryBackendError: It cannot be made.
        """
        return local_stores().ensure(store_id)

    def local_path(self, store_id: UUID | str) -> Path:
        """Return where the store of that id is, or would be.

        Raises:
            ValueError: `store_id` is not a UUID.
        """
        return paths.local_store_dir(store_id)

    def list_local(self) -> list[UUID]:
        """Return the ids of all stores, sorted."""
        return local_stores().ids()

    def delete_local(self, store_id: UUID | str) -> bool:
        """Remove a store with its notes, that of a project too; return whether there was one.

        Raises:
            ValueError: `store_id` is not a UUID.
            MemoryBackendError: It is open, or it cannot be moved away.
        """
        return local_stores().delete(store_id)

    def prunable_local(self, *, older_than: timedelta) -> list[UUID]:
        """Return the stores that `prune_local` would remove now."""
        return local_stores().prunable(older_than=older_than)

    def prune_local(self, *, older_than: timedelta) -> list[UUID]:
        """Remove the stores that were last used longer ago, and return their ids.

        Kept are those that are open, those of a project whose directory is still there, and those
        whose `meta.json` cannot be read. For a store that tells no time of use, the time of its
        directory counts. What an earlier removal left undone when its process was cut off is
        finished.
        """
        return local_stores().prune(older_than=older_than)


def local_stores() -> PersistentDirectories:
    """Return the local stores of the home that is in force."""
    return PersistentDirectories(
        paths.local_memory_root(), paths.STORE, recorded_use=_recorded_use, is_wanted=_is_wanted
    )


def _recorded_use(store: Path) -> float | None:
    return read_record(store).last_used_at


def _is_wanted(store: Path) -> bool:
    record = read_record(store)
    if record.is_damaged:
        _logger.warning("%s is kept: its meta.json cannot be read", store)
        return True
    return record.project_root is not None and _may_be_there(record.project_root)


def _may_be_there(directory: Path) -> bool:
    try:
        return stat.S_ISDIR(os.stat(directory).st_mode)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False
    except OSError:
        # Out of reach for now, as behind a mount or without the rights, is not gone.
        return True


def read_record(store: Path) -> StoreRecord:
    """Return what the store in a directory tells; nothing where it has no `meta.json` yet."""
    try:
        raw: object = json.loads((store / _META_NAME).read_bytes())
    except FileNotFoundError:
        return StoreRecord()
    except (OSError, ValueError, RecursionError):
        return StoreRecord(is_damaged=True)
    if not isinstance(raw, dict):
        return StoreRecord(is_damaged=True)
    known = cast("dict[str, object]", raw)
    root = known.get("project_root")
    return StoreRecord(
        Path(root) if isinstance(root, str) and root else None, _seconds(known.get("last_used_at"))
    )


def _seconds(raw: object) -> float | None:
    try:
        time = datetime.fromisoformat(str(raw))
        return (time if time.tzinfo is not None else time.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def hold_store(directory: Path) -> Use | None:
    """Hold the store whose directory, a real path, is kept in a home; None for any other one.

    Raises:
        MemoryBackendError: It is being removed and that does not end, or it cannot be locked.
    """
    if _holds_stores(directory.parent):
        with contextlib.suppress(ValueError):
            UUID(directory.name)
            return paths.STORE.hold(directory)
    return None


def _holds_stores(above: Path) -> bool:
    # By its name in any home; in the one that is in force it may be a link to another disk.
    is_named_so = (above.parent.name, above.name) == (paths.MEMORY_DIR_NAME, paths.LOCAL_SUBDIR)
    return is_named_so or str(above) == os.path.realpath(paths.local_memory_root())
