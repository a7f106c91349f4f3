"""Removing directories in two steps: out of sight at once, then file by file.

What a crash leaves in `<root>/.trash/` the next removal below the same root takes away.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import stat
from pathlib import Path

from rath._core.files import make_private_directory, sync_directory

TRASH_DIR_NAME = ".trash"

MOUNT_TABLE = Path("/proc/self/mountinfo")
"""Where Linux tells what is mounted; elsewhere only the directory itself is looked at."""

_MOUNT_POINT_FIELD = 4
_ESCAPED = re.compile(r"\\([0-7]{3})")

_logger = logging.getLogger(__name__)


def move_to_trash(directory: Path) -> Path | None:
    """Move a directory into the trash beside it and return where it is; None where that fails.

    Nothing is moved where a file system is mounted in it: removing would reach into that.
    """
    mounted = mount_in(directory)
    if mounted is not None:
        _logger.warning("%s is kept: %s is mounted in it; unmount that first", directory, mounted)
        return None
    trash = directory.parent / TRASH_DIR_NAME
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
    """Return what lies in the trash of `root`: what is being removed, or was when a crash came."""
    trash = root / TRASH_DIR_NAME
    try:
        return sorted(trash.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def remove_tree(path: Path) -> None:
    """Remove a directory with all that is in it, also below directories without rights.

    Symbolic links are removed, never followed.

    Raises:
        OSError: Something in it cannot be removed, or a file system is mounted there.
    """
    mounted = mount_in(path)
    if mounted is not None:
        raise OSError(f"{mounted} is mounted there")
    with contextlib.suppress(PermissionError, FileNotFoundError):
        shutil.rmtree(path)
        return
    # Somebody else removes it too, or directories in it forbid it: overlayfs makes such.
    _allow(path)
    for directory, names, _ in os.walk(path):
        for name in names:
            _allow(Path(directory, name))
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(path)


def _allow(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISDIR(path.lstat().st_mode):
            path.chmod(stat.S_IRWXU)


def mount_in(directory: Path) -> Path | None:
    """Return a mount point that is `directory` or lies in it, None where there is none."""
    real = os.path.realpath(directory)
    try:
        lines = MOUNT_TABLE.read_bytes().splitlines()
    except OSError:
        return directory if os.path.ismount(real) else None
    for line in lines:
        escaped = os.fsdecode(line.split(b" ")[_MOUNT_POINT_FIELD])
        point = _ESCAPED.sub(lambda found: chr(int(found[1], 8)), escaped)
        if point == real or point.startswith(f"{real}{os.sep}"):
            return Path(point)
    return None
