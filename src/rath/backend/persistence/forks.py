"""Removing what is left of forks with a workspace of their own once their process has gone.

A fork's directory `<forks>/<id>/` holds a file `lock`, and its owner holds the exclusive lock on
that. While it is made it is called `.<id>`, and may lack the lock for a moment.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator
from datetime import timedelta
from pathlib import Path
from uuid import UUID

from rath._core.files import FileLock
from rath._core.persistent_dirs import listed_ids
from rath._core.retention import empty_trash, move_to_trash
from rath._core.usage_locks import is_old, last_use
from rath.backend.persistence.paths import fork_dir, forks_root

LOCK_FILENAME = "lock"

_AT_ONCE = timedelta()
_GIVEN_UP = timedelta(hours=1)
"""Age from which a directory that is still without a lock will not get one; a guess."""


def prunable_forks(*, older_than: timedelta = _AT_ONCE) -> list[UUID]:
    """Return the forks that `prune_forks` would remove now."""
    return [
        fork_id for fork_id in listed_ids(forks_root()) if _is_left(fork_dir(fork_id), older_than)
    ]


def prune_forks(*, older_than: timedelta = _AT_ONCE) -> list[UUID]:
    """Remove what is left of forks whose process has gone, and return their ids.

    A fork in which a file system is still mounted is kept, with a warning.

    Args:
        older_than: How long ago a fork must have been made.
    """
    removed = [
        fork_id
        for fork_id in prunable_forks(older_than=older_than)
        if _remove(fork_dir(fork_id), older_than)
    ]
    for unfinished in listed_ids(forks_root(), prefix="."):
        _remove(forks_root() / f".{unfinished}", max(older_than, _GIVEN_UP))
    empty_trash(forks_root())
    return removed


def _remove(path: Path, older_than: timedelta) -> bool:
    if not _is_left(path, older_than):
        return False
    with _claimed(path) as is_free:
        return is_free and move_to_trash(path) is not None


def _is_left(path: Path, older_than: timedelta) -> bool:
    made_at = last_use(path / LOCK_FILENAME)
    if made_at is None:
        made_at, older_than = last_use(path), max(older_than, _GIVEN_UP)
    if not is_old(made_at, older_than):
        return False
    with _claimed(path) as is_free:
        return is_free


@contextlib.contextmanager
def _claimed(path: Path) -> Generator[bool]:
    """Try to take the lock of a fork; gives whether nobody holds it."""
    try:
        fd = os.open(path / LOCK_FILENAME, os.O_RDWR)
    except OSError as exc:
        # Without a file there is no owner; what cannot be opened may have one.
        yield isinstance(exc, FileNotFoundError)
        return
    try:
        lock = FileLock(fd)
        yield lock.acquire()
        lock.release()
    finally:
        os.close(fd)
