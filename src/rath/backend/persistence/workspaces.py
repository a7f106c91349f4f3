"""Removing kept workspaces of this host, by last use and never from under somebody."""

from __future__ import annotations

import logging
from datetime import timedelta
from pathlib import Path

from rath.backend.persistence.trash import empty_trash, move_to_trash
from rath.backend.use import claimed, in_use_error, is_old, is_used, last_use, use_file
from rath.errors import BackendError

_logger = logging.getLogger(__name__)


def is_prunable_workspace(path: Path, older_than: timedelta) -> bool:
    """Tell whether `prune_workspace` would remove that directory now."""
    return is_old(_last_use_of(path), older_than) and not is_used(use_file(path))


def prune_workspace(path: Path, older_than: timedelta) -> bool:
    """Move a workspace to the trash if it is old and nobody uses it; return whether it was."""
    used_at = _last_use_of(path)
    if used_at is None or not is_old(used_at, older_than):
        return False
    try:
        with claimed(use_file(path), used_at=used_at) as is_free:
            # Somebody may have come and gone between the look and the claim.
            return is_free and is_old(_last_use_of(path), older_than) and _move_away(path)
    except OSError as exc:
        _logger.warning("%s is kept: %s", path, exc)
        return False


def delete_workspace(path: Path) -> bool:
    """Remove a workspace; return whether it was still there.

    Raises:
        BackendError: Somebody uses it, or it cannot be moved away.
    """
    used_at = _last_use_of(path)
    if used_at is None:
        return False
    with claimed(use_file(path), used_at=used_at) as is_free:
        if not is_free:
            raise in_use_error(path)
        if not _move_away(path) and path.exists():
            raise BackendError(
                f"the workspace {str(path)!r} cannot be moved away; the log says why"
            )
    empty_trash(path.parent)
    return True


def _last_use_of(path: Path) -> float | None:
    """Return the time of last use; that of the directory where OpenRath 1 made it."""
    used_at = last_use(use_file(path))
    return last_use(path) if used_at is None else used_at


def _move_away(path: Path) -> bool:
    if move_to_trash(path) is None:
        return False
    use_file(path).unlink(missing_ok=True)
    return True
