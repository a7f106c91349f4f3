"""Removing one directory with all that is in it: a walk that no depth ends."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from dataclasses import dataclass
from pathlib import Path

_DIRECTORY = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)
_OPAQUE = getattr(os, "O_PATH", 0) | _DIRECTORY
_NOT_THAT_KIND = (errno.EISDIR, errno.EPERM, errno.EACCES)


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
