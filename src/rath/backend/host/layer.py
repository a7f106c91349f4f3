"""Layers: the files of a workspace of its own, on top of frozen ones."""

from __future__ import annotations

import contextlib
import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Literal

from rath.backend.frozen import NewFile
from rath.backend.host.copying import CopyFailed, CopyMethod, copy_tree
from rath.backend.host.layer_directory import LayerDirectory
from rath.backend.host.paths import OutsideWorkspace, Place, Workspace
from rath.backend.host.process import Command
from rath.backend.host.upper import OverlaySource

LayerKind = Literal["frozen", "overlay", "reflink", "copy"]
"""What holds the files: the frozen ones until the first change, then one of the others."""

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL


class Layer(ABC):
    """Files that began as frozen ones and belong to one sandbox."""

    kind: LayerKind

    @property
    @abstractmethod
    def root(self) -> str:
        """Path of the workspace as commands see it."""

    @property
    @abstractmethod
    def door(self) -> str:
        """Path by which this process opens it."""

    @property
    def upper(self) -> str | None:
        """Directory of an overlay that holds what was changed, None for a copy."""
        return None

    def changes(self) -> OverlaySource | None:
        """Return what looks at the changed files alone, None where all must be looked at."""
        return None

    @abstractmethod
    def entering(self, command: Command) -> Command:
        """Return the command that runs `command` where the files are."""

    @abstractmethod
    def close(self) -> None:
        """Free what it holds except its directory; blocks."""


class CopyLayer(Layer):
    """A copy of frozen files; its commands see it at its own path.

    Args:
        directory: Where it is put.
        lower: The frozen files.

    Raises:
        CopyFailed: They cannot be copied; nothing is left of it.
    """

    def __init__(self, directory: LayerDirectory, lower: str) -> None:
        self._files = directory.files
        try:
            method: CopyMethod = copy_tree(lower, self._files)
        except CopyFailed:
            directory.clear()
            raise
        self.kind = method

    @property
    def root(self) -> str:
        return self._files

    @property
    def door(self) -> str:
        return self._files

    def entering(self, command: Command) -> Command:
        return command

    def close(self) -> None:
        pass


def apply_changes(door: str, changes: Mapping[str, NewFile | None]) -> None:
    """Put new files into a directory of our own and take others out; blocks on the disk.

    Raises:
        CopyFailed: One of them cannot be written.
    """
    workspace = Workspace(door, door, door, is_owned=False)
    # What goes, goes first: a file may take the place of a directory that becomes empty.
    for path in sorted(changes, key=lambda path: (changes[path] is not None, path)):
        try:
            _apply(workspace, path, changes[path])
        except OutsideWorkspace as exc:
            raise CopyFailed(path, str(exc)) from exc
        except OSError as exc:
            raise CopyFailed(path, exc) from exc


def _apply(workspace: Workspace, path: str, new: NewFile | None) -> None:
    above, _, name = path.rpartition("/")
    if name in ("", ".", ".."):
        raise OSError("this is no path of a file")
    try:
        with workspace.locate(above or ".", make_parents=new is not None) as found:
            directory = _entered(found, make=new is not None)
            try:
                _take_away(directory, name)
                if new is not None:
                    _put(directory, name, new)
            finally:
                os.close(directory)
    except (FileNotFoundError, NotADirectoryError):
        if new is not None:
            raise


def _entered(place: Place, *, make: bool) -> int:
    if make:
        with contextlib.suppress(FileExistsError):
            os.mkdir(place.name, dir_fd=place.directory)
    return place.open(os.O_RDONLY | os.O_DIRECTORY)


def _take_away(directory: int, name: str) -> None:
    try:
        os.unlink(name, dir_fd=directory)
    except FileNotFoundError:
        pass
    except (IsADirectoryError, PermissionError):
        os.rmdir(name, dir_fd=directory)


def _put(directory: int, name: str, new: NewFile) -> None:
    if stat.S_ISLNK(new.mode):
        os.symlink(os.fsdecode(new.data), name, dir_fd=directory)
        return
    fd = os.open(name, _CREATE | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=directory)
    with os.fdopen(fd, "wb") as file:
        file.write(new.data)
        os.fchmod(fd, stat.S_IMODE(new.mode))
