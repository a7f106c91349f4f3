"""Removing directories in two steps: out of sight at once, then file by file.

What a crash leaves in `<root>/.trash/` the next removal below the same root takes away.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from rath._core.dataclasses import dataclass
from rath._core.files import make_private_directory, sync_directory

TRASH_DIR_NAME = ".trash"

MOUNT_TABLE = Path("/proc/self/mountinfo")
"""Where Linux tells what is mounted; elsewhere only the directory itself is looked at."""

_MOUNT_POINT_FIELD = 4
_TO_ESCAPE = re.compile(r"[ \t\n\\]")
_ESCAPED = re.compile(r"\\([0-7]{3})")

_DIRECTORY = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)
_OPAQUE = getattr(os, "O_PATH", 0) | _DIRECTORY
_NOT_THAT_KIND = (errno.EISDIR, errno.EPERM, errno.EACCES)

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


# ---------------------------------------------------------------- removal to any depth


def remove_directory(path: Path) -> None:
    """Remove a directory and all in it; without it nothing happens.

    Two descriptors are open at a time, and no call nests in another for each level. Directories
    without rights get them. After a failure the rest is removed all the same.

    Raises:
        OSError: The first thing that could not be removed.
    """
    with contextlib.suppress(FileNotFoundError):
        above = os.open(path.parent, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
        removal = _Removal(above)
        try:
            removal.run(path.name)
        finally:
            os.close(removal.at)
        if removal.failure is not None:
            raise removal.failure


@dataclass(slots=True)
class _Level:
    """A directory on the way down, and what is left to do in it."""

    name: str
    identity: tuple[int, int]
    names: list[str]


class _Removal:
    """A walk that stands in one open directory; the way back is `..`, checked each time."""

    def __init__(self, above: int) -> None:
        self.at = above
        """Descriptor of the directory in which it stands."""

        self.failure: OSError | None = None
        self._levels: list[_Level] = []

    def run(self, name: str) -> None:
        self._levels.append(_Level("", _identity(self.at), [name]))
        while True:
            level = self._levels[-1]
            if level.names:
                self._take(level.names.pop())
            elif len(self._levels) > 1:
                self._go_up()
            else:
                return

    def _take(self, name: str) -> None:
        try:
            # The top is said to be a directory; a link in its place is refused.
            if len(self._levels) == 1 or not self._unlinked(name):
                self._go_down(name)
        except FileNotFoundError:
            pass
        except OSError as exc:
            self.failure = self.failure or exc

    def _unlinked(self, name: str) -> bool:
        try:
            os.unlink(name, dir_fd=self.at)
        except OSError as exc:
            # Unlinking a directory fails in ways that differ between systems.
            if exc.errno not in _NOT_THAT_KIND:
                raise
            if not stat.S_ISDIR(os.stat(name, dir_fd=self.at, follow_symlinks=False).st_mode):
                raise
            return False
        return True

    def _go_down(self, name: str) -> None:
        below = _opened(self.at, name)
        try:
            level = _Level(name, _identity(below), os.listdir(below))
        except BaseException:
            os.close(below)
            raise
        os.close(self.at)
        self.at = below
        self._levels.append(level)

    def _go_up(self) -> None:
        done = self._levels.pop()
        above = os.open("..", _DIRECTORY, dir_fd=self.at)
        os.close(self.at)
        self.at = above
        if _identity(above) != self._levels[-1].identity:
            raise OSError(errno.ESTALE, "a directory was moved while it was removed", done.name)
        try:
            os.rmdir(done.name, dir_fd=above)
        except FileNotFoundError:
            pass
        except OSError as exc:
            self.failure = self.failure or exc


def _identity(fd: int) -> tuple[int, int]:
    found = os.fstat(fd)
    return found.st_dev, found.st_ino


def _opened(above: int, name: str) -> int:
    """Open a directory, with the right to change it where that can be had."""
    found = os.stat(name, dir_fd=above, follow_symlinks=False)
    if stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_IRWXU != stat.S_IRWXU:
        _allow(above, name)
    return os.open(name, _DIRECTORY, dir_fd=above)


def _allow(above: int, name: str) -> None:
    with contextlib.suppress(OSError):
        if not hasattr(os, "O_PATH"):
            os.chmod(name, stat.S_IRWXU, dir_fd=above, follow_symlinks=False)
            return
        fd = os.open(name, _OPAQUE, dir_fd=above)
        try:
            # By its descriptor: what takes its place meanwhile is left as it is.
            os.chmod(f"/proc/self/fd/{fd}", stat.S_IRWXU)
        finally:
            os.close(fd)
