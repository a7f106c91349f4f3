"""Snapshots of directories of this host: found there until somebody changes them, then copied."""

from __future__ import annotations

import os
import stat
from abc import abstractmethod
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial

from rath._async.runtime import runtime
from rath._core.retention import mount_below
from rath.backend.changes import EffectPolicy, Manifest
from rath.backend.file_tools import OutsideWorkspace
from rath.backend.host.layers import (
    CopyFailed,
    LayerDirectory,
    SharedJob,
    apply_changes,
    copy_tree,
)
from rath.backend.host.paths import Workspace, descriptor
from rath.backend.host.scan import fill, scan
from rath.backend.snapshots import (
    Origin,
    Seed,
    SeedSnapshot,
    SnapshotLineage,
    WorkspaceSnapshot,
    WorkspaceTree,
    WorkspaceTrees,
    missing_file,
)
from rath.backend.workspace import try_use_of
from rath.errors import BackendError

_CONTENT = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW

MAX_FILES = 1_000_000
"""Above so many files a workspace has no manifest; a guess, some hundred megabytes of memory."""


class HostSnapshot(WorkspaceSnapshot):
    """The files of a workspace of this host at one moment."""

    workspace_kind = "a workspace of this host"

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

    async def ascan(self) -> Manifest:
        # No name is passed over: who merges by it must not lose what tools keep in `.git`.
        async with self._open_files() as door:
            return await runtime().call_in_worker(partial(_manifest, door))

    async def aread(self, path: str) -> bytes:
        async with self._open_files() as door:
            return await runtime().call_in_worker(partial(_read, door, path))

    @asynccontextmanager
    async def _open_files(self) -> AsyncGenerator[str]:
        try:
            async with self.reading() as door:
                yield door
        except CopyFailed as exc:
            raise BackendError(
                f"the files that a fork or undo held are lost: {exc}; fork again from a session "
                "whose files are there"
            ) from exc


class TreeSnapshot(HostSnapshot):
    """The files of a directory: they are there until it is changed, then in a copy."""

    def __init__(
        self,
        lineage: SnapshotLineage[HostSnapshot],
        tree: WorkspaceTree[HostSnapshot],
        root: str | None,
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
        with LayerDirectory.create() as directory:
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


TREES: WorkspaceTrees[HostSnapshot] = WorkspaceTrees()
"""The directories of this process's sandboxes."""

if hasattr(os, "register_at_fork"):  # pragma: no branch  # Windows has no fork
    os.register_at_fork(after_in_child=TREES.start_afresh)


class HostSeedSnapshot(HostSnapshot, SeedSnapshot[HostSnapshot]):
    """The files of a seed; copied only where there are changes to put into them."""

    base_class = HostSnapshot

    def __init__(self, lineage: SnapshotLineage[HostSnapshot], origin: Origin) -> None:
        super().__init__(lineage, origin)
        self._copying: SharedJob[LayerDirectory] = SharedJob()

    async def aroot(self) -> str | None:
        base, _ = await self.aresolved()
        return await base.aroot()

    @asynccontextmanager
    async def reading(self) -> AsyncGenerator[str]:
        base, seed = await self.aresolved()
        if seed.changes:
            yield (await self.asecured()).files
            return
        async with base.reading() as door:
            yield door

    async def asecured(self) -> LayerDirectory:
        base, seed = await self.aresolved()
        lower = await base.asecured()
        if not seed.changes:
            return lower
        return await self._copying.aresult(partial(_changed_copy, lower, seed))


def initial_snapshot(lineage: SnapshotLineage[HostSnapshot], origin: Origin | None) -> HostSnapshot:
    """Return the snapshot of a workspace that begins with the files of `origin`, or with none."""
    if origin is None:
        return TreeSnapshot(lineage, WorkspaceTree("nothing", ""), None)
    return HostSeedSnapshot(lineage, origin)


def freeze_tree(
    tree: WorkspaceTree[HostSnapshot],
    root: str | None,
    lineage: SnapshotLineage[HostSnapshot] | None,
) -> HostSnapshot:
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
    snapshot = TREES.freeze(tree, lineage, lambda history: TreeSnapshot(history, tree, root))
    if not snapshot.is_secured and TREES.is_restless(tree):
        # Nobody waits before what runs in the background writes: all the sooner a copy.
        runtime().submit(snapshot.asecure, label=f"copying {tree.place}")
    return snapshot


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


def _changed_copy(lower: LayerDirectory, seed: Seed) -> LayerDirectory:
    with LayerDirectory.create() as directory:
        copy_tree(lower.files, directory.files)
        apply_changes(directory.files, seed.changes)
        return directory


def _manifest(door: str) -> Manifest:
    policy = EffectPolicy(ignore=frozenset(), max_files=MAX_FILES)
    state = scan(door, policy)
    fill(door, state, list(state.files), max_bytes=None)
    return state.required_manifest(policy)


def _read(door: str, path: str) -> bytes:
    above, _, name = path.rpartition("/")
    try:
        with (
            Workspace.inner(door).locate(above or ".") as place,
            descriptor(place.open(os.O_RDONLY | os.O_DIRECTORY)) as directory,
        ):
            return _content(directory, name, path)
    except (OutsideWorkspace, NotADirectoryError) as exc:
        raise missing_file(path) from exc


def _content(directory: int, name: str, path: str) -> bytes:
    mode = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
    if stat.S_ISLNK(mode):
        return os.fsencode(os.readlink(name, dir_fd=directory))
    if not stat.S_ISREG(mode):
        raise FileNotFoundError(f"{path!r} is no file in the frozen workspace")
    with os.fdopen(os.open(name, _CONTENT, dir_fd=directory), "rb") as file:
        return file.read()
