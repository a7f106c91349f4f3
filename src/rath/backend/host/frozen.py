"""Frozen files of a directory of this host: found there until somebody changes them, then kept."""

from __future__ import annotations

import os
import stat
from abc import abstractmethod
from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from functools import partial

from rath._async.runtime import runtime
from rath._core.retention import mount_below
from rath.backend.frozen import FrozenWorkspace
from rath.backend.host.copying import CopyFailed, copy_tree
from rath.backend.host.copying_job import SharedJob
from rath.backend.host.guard_trees import Lineage, Pinned, Tree, Trees
from rath.backend.host.layer_directory import LayerDirectory
from rath.backend.host.paths import OutsideWorkspace, Workspace
from rath.backend.host.scan import fill, scan
from rath.backend.manifest import EffectPolicy, Manifest
from rath.backend.use import try_use_of
from rath.errors import BackendError

_CONTENT = os.O_RDONLY | os.O_NONBLOCK

MAX_FILES = 1_000_000
"""Above so many files a workspace has no manifest; a guess, some hundred megabytes of memory."""


class HostFrozen(FrozenWorkspace, Pinned):
    """The files of a workspace of this host at one moment."""

    def __init__(self, lineage: Lineage[HostFrozen]) -> None:
        self.lineage = lineage
        self._version = lineage.next_version()
        self._manifest: Manifest | None = None

    @abstractmethod
    async def aroot(self) -> str | None:
        """Return the path of the workspace as its commands see it, None where there is none."""

    @abstractmethod
    def reading(self) -> AbstractAsyncContextManager[str]:
        """Give the path of a directory that holds the files; they stay as they are inside."""

    @abstractmethod
    async def asecured(self) -> LayerDirectory:
        """Return the directory of its own that holds the files, copying them if need be.

        Raises:
            CopyFailed: They cannot be copied.
        """

    async def asecure(self) -> None:
        await self.asecured()

    async def amanifest(self) -> Manifest:
        """Return all that it holds; looked at once, each file is read.

        No name is passed over: who merges by it must not lose what tools keep in `.git` or `venv`.

        Raises:
            BackendError: A file or a directory of it cannot be read, or there are too many.
        """
        if self._manifest is None:
            with _lost_told():
                async with self.reading() as door:
                    self._manifest = await runtime().call_in_worker(partial(_manifest, door))
        return self._manifest

    async def aread(self, path: str) -> bytes:
        with _lost_told():
            async with self.reading() as door:
                return await runtime().call_in_worker(partial(_read, door, path))

    def base_with(self, other: FrozenWorkspace) -> FrozenWorkspace | None:
        if not isinstance(other, HostFrozen):
            return None
        others = {each.lineage: each for each in other.origins()}
        for mine in self.origins():
            theirs = others.get(mine.lineage)
            if theirs is not None:
                return mine if mine.is_older_than(theirs) else theirs
        return None

    def origins(self) -> Iterator[HostFrozen]:
        """Yield this one and what it came from, the youngest first."""
        at: HostFrozen | None = self
        while at is not None:
            yield at
            at = at.lineage.born

    def is_older_than(self, other: HostFrozen) -> bool:
        """Tell which of two of one lineage was frozen first."""
        return self._version < other._version  # of its own class


class TreeFrozen(HostFrozen):
    """The files of a directory: they are there until it is changed, then in a copy."""

    def __init__(
        self, lineage: Lineage[HostFrozen], tree: Tree[HostFrozen], root: str | None
    ) -> None:
        super().__init__(lineage)
        self._root = root
        self._tree = tree
        self._copy: LayerDirectory | None = None
        self._copying: SharedJob[LayerDirectory] = SharedJob()
        self._was_there = os.path.isdir(tree.door)
        # Where nobody else holds a kept workspace, this keeps it from being removed.
        self._use = try_use_of(tree.place)

    async def aroot(self) -> str | None:
        return self._root

    @property
    def is_secured(self) -> bool:
        return self._copy is not None

    @asynccontextmanager
    async def reading(self) -> AsyncGenerator[str]:
        while self._copy is None:
            if not await runtime().call_in_worker(partial(os.path.isdir, self._tree.door)):
                await self.asecured()
                break
            async with TREES.reading_frozen(self._tree):
                if not self.is_secured:
                    yield self._tree.door
                    return
        assert self._copy is not None
        yield self._copy.files

    async def asecured(self) -> LayerDirectory:
        if self._copy is None:
            await TREES.quiet(self._tree)
            # The job holds this object, so that nobody changes the tree while it is copied.
            self._copy = await self._copying.aresult(self._copied)
            if self._use is not None:
                self._use.end()
        return self._copy

    def _copied(self) -> LayerDirectory:
        place, door = self._tree.place, self._tree.door
        with LayerDirectory.made() as directory:
            if os.path.isdir(door):
                if place == door:
                    require_no_mounts(place)
                copy_tree(door, directory.files)
            elif self._was_there:
                raise CopyFailed(place, "the directory is gone, and the files with it")
            else:
                # Its workspace has not been opened yet, and will begin empty.
                os.mkdir(directory.files, 0o700)
            return directory


TREES: Trees[HostFrozen] = Trees()
"""The directories of this process's sandboxes."""

if hasattr(os, "register_at_fork"):  # pragma: no branch  # Windows has no fork
    os.register_at_fork(after_in_child=TREES.start_afresh)


def freeze_tree(
    tree: Tree[HostFrozen], root: str | None, lineage: Lineage[HostFrozen] | None
) -> HostFrozen:
    """Return the files of `tree` as they are now; O(1), on any thread.

    Args:
        tree: A directory.
        root: Its path as commands see it.
        lineage: The history that it continues, where nothing of it was frozen before.

    Raises:
        BackendError: Other file systems are mounted in it: they cannot be frozen.
    """
    # Who holds what is frozen of it now, has asked already.
    if tree.place == tree.door and tree.pinned is None:
        try:
            require_no_mounts(tree.place)
        except CopyFailed as exc:
            raise BackendError(f"{exc}; take a directory of its own as workspace") from exc
    frozen = TREES.freeze(tree, lineage, lambda kept: TreeFrozen(kept, tree, root))
    if not frozen.is_secured and TREES.is_restless(tree):
        # Nobody waits before what runs in the background writes: all the sooner a copy.
        runtime().submit(frozen.asecure, label=f"copying {tree.place}")
    return frozen


def require_no_mounts(place: str) -> None:
    """Refuse a directory that is more than its own files: a copy of it would never end.

    Raises:
        CopyFailed: It is `/`, or a file system is mounted below it.
    """
    if place == "/":
        raise CopyFailed(place, "it is the root of the machine")
    mounted = mount_below(place)
    if mounted is not None:
        raise CopyFailed(place, f"another file system is mounted in it, at {str(mounted)!r}")


@contextmanager
def _lost_told() -> Generator[None]:
    try:
        yield
    except CopyFailed as exc:
        raise BackendError(f"frozen files are lost: {exc}") from exc


def _manifest(door: str) -> Manifest:
    found = scan(door, EffectPolicy(ignore=frozenset(), max_files=MAX_FILES))
    fill(door, found, list(found.files), max_bytes=None)
    manifest = found.manifest()
    if manifest is None:
        unread = [path for path, seen in found.files.items() if seen.state is None]
        where = ", ".join([*unread, *found.unseen][:3]) or f"it has more than {MAX_FILES} files"
        raise BackendError(
            f"the files of a workspace cannot be told apart: not all can be looked at ({where}); "
            "make them readable, or remove them"
        )
    return manifest


def _read(door: str, path: str) -> bytes:
    above, _, name = path.rpartition("/")
    try:
        with Workspace(door, door, door, is_owned=False).locate(above or ".") as place:
            directory = place.open(os.O_RDONLY | os.O_DIRECTORY)
            try:
                return _content(directory, name, path)
            finally:
                os.close(directory)
    except (OutsideWorkspace, NotADirectoryError) as exc:
        raise FileNotFoundError(f"there is no file {path!r} in the frozen workspace") from exc


def _content(directory: int, name: str, path: str) -> bytes:
    mode = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
    if stat.S_ISLNK(mode):
        return os.fsencode(os.readlink(name, dir_fd=directory))
    if not stat.S_ISREG(mode):
        raise FileNotFoundError(f"{path!r} is no file in the frozen workspace")
    with os.fdopen(os.open(name, _CONTENT | os.O_NOFOLLOW, dir_fd=directory), "rb") as file:
        return file.read()
