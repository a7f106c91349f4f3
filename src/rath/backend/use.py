"""Who uses a sandbox that outlives a process: `rath._core.usage_locks`, for sandboxes."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from uuid import UUID

from rath._core.persistent_dirs import PersistentKind
from rath._core.usage_locks import Use, begin, use_file
from rath.errors import BackendError

__all__ = [
    "LOCAL_SUBDIR",
    "SANDBOX",
    "SANDBOXES_DIR_NAME",
    "Use",
    "begin_use_of",
    "try_use_of",
]

SANDBOXES_DIR_NAME = "sandboxes"
LOCAL_SUBDIR = "local"

SANDBOX = PersistentKind("sandbox", BackendError, "close the sessions that are placed on it")


def begin_use_of(directory: str) -> Use | None:
    """Hold the kept sandbox that `directory` is, or is in; None where it is in none.

    `~` at its begin is a home directory.

    Raises:
        BackendError: It is being removed and that does not end, or it cannot be locked.
    """
    sandbox = _kept_above(Path(os.path.realpath(os.path.expanduser(directory))))
    return None if sandbox is None else SANDBOX.hold(sandbox)


def try_use_of(directory: str) -> Use | None:
    """Hold the kept sandbox that `directory`, a real path, is or is in, if that is possible now.

    None where it is in none, or where somebody removes it; never waits.
    """
    sandbox = _kept_above(Path(directory))
    if sandbox is None:
        return None
    with contextlib.suppress(OSError):
        return begin(use_file(sandbox), timeout=0.0)
    return None


def _kept_above(real: Path) -> Path | None:
    for path in (real, *real.parents):
        above = path.parent
        if above.name == LOCAL_SUBDIR and above.parent.name == SANDBOXES_DIR_NAME:
            with contextlib.suppress(ValueError):
                UUID(path.name)
                return path
    return None
