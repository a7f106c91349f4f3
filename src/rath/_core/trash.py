"""Removing directories in two steps: out of sight at once, then file by file.

What a crash leaves in `<root>/.trash/` the next removal below the same root takes away.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from rath._core.files import make_private_directory, sync_directory
from rath._core.retention import remove_directory

TRASH_DIR_NAME = ".trash"

MOUNT_TABLE = Path("/proc/self/mountinfo")
"""Where Linux tells what is mounted; elsewhere only the directory itself is looked at."""

_MOUNT_POINT_FIELD = 4
_TO_ESCAPE = re.compile(r"[ \t\n\\]")
_ESCAPED = re.compile(r"\\([0-7]{3})")

_logger = logging.getLogger(__name__)


def move_to_trash(directory: Path, *, root: Path | None = None) -> Path | None:
    """Move a directory into a trash and return where it is; None where that fails.

    Nothing is moved where a file system is mounted in it: removing would reach into that.

    Args:
        directory: What is to be removed.
        root: Whose trash takes it; by default that of the directory around it.
    """
    mounted = mount_in(directory)
    if mounted is not None:
        _logger.warning("%s is kept: %s is mounted in it; unmount that first", directory, mounted)
        return None
    trash = (root or directory.parent) / TRASH_DIR_NAME
    if trash.is_symlink():
        _logger.warning("%s is kept: %s is a link; put a directory in its place", directory, trash)
        return None
    moved = trash / f"{directory.name}.{os.urandom(4).hex()}"
    try:
        make_private_directory(trash)
        directory.rename(moved)
    except FileNotFoundError:
        return None
    except OSError as exc:
        _logger.warning("%s is kept, it cannot be moved away: %s", directory, exc)
        return None
    sync_directory(directory.parent)
    return moved


def empty_trash(root: Path) -> None:
    """Remove what lies in the trash of `root`; what cannot be removed stays and is logged."""
    for moved in in_trash(root):
        try:
            remove_tree(moved)
        except OSError as exc:
            _logger.warning("%s cannot be removed: %s; remove it by hand", moved, exc)


def in_trash(root: Path) -> list[Path]:
    """Return what lies in the trash of `root`: what is being removed, or was when a crash came.

    A link in the place of the trash leads to what was never thrown away: nothing lies in it.
    """
    trash = root / TRASH_DIR_NAME
    if trash.is_symlink():
        return []
    try:
        return sorted(trash.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def remove_tree(path: Path) -> None:
    """Remove a directory and all in it, however deep, also below directories without rights.

    Symbolic links are removed, never followed. After a failure the rest is removed all the same.

    Raises:
        OSError: Something in it cannot be removed, or a file system is mounted there.
    """
    mounted = mount_in(path)
    if mounted is not None:
        raise OSError(f"{mounted} is mounted there")
    if os.open in os.supports_dir_fd:
        remove_directory(path)
    else:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)


def mount_in(directory: Path) -> Path | None:
    """Return a mount point that is `directory` or lies in it, None where there is none."""
    real = os.path.realpath(directory)
    table = _mount_table()
    if table is None:
        return directory if os.path.ismount(real) else None
    found = (each for each in _mount_points(table) if each == real or _is_below(each, real))
    return next(map(Path, found), None)


def mount_below(directory: str) -> Path | None:
    """Return a mount point that lies in `directory`, a real path; None where none is known."""
    table = _mount_table()
    # Most often nothing is: one search instead of a look at each line.
    if table is None or _escaped(f"{directory.rstrip('/')}/") not in table:
        return None
    found = (each for each in _mount_points(table) if _is_below(each, directory))
    return next(map(Path, found), None)


def _is_below(path: str, directory: str) -> bool:
    return path != directory and path.startswith(f"{directory.rstrip(os.sep)}{os.sep}")


def _mount_table() -> bytes | None:
    try:
        return MOUNT_TABLE.read_bytes()
    except OSError:
        return None


def _mount_points(table: bytes) -> Iterator[str]:
    for line in table.splitlines():
        name = os.fsdecode(line.split(b" ")[_MOUNT_POINT_FIELD])
        yield _ESCAPED.sub(lambda found: chr(int(found[1], 8)), name)


def _escaped(name: str) -> bytes:
    return os.fsencode(_TO_ESCAPE.sub(lambda found: f"\\{ord(found[0]):03o}", name))
