"""An open sandbox of this host, and what stands between operations and its files."""

from __future__ import annotations

import contextlib
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

from rath._async.runtime import runtime
from rath._core.retention import remove_tree
from rath.backend.abc import BackendSandboxSpec
from rath.backend.changes import EffectPolicy
from rath.backend.host.changes import WatchedTree, tree_at
from rath.backend.host.layers import (
    CopyFailed,
    Layer,
    LayerDirectory,
    LayerKind,
    SharedJob,
    apply_changes,
)
from rath.backend.host.overlay import OverlayFailed, OverlayLayer, Tools, overlay_tools
from rath.backend.host.paths import Workspace
from rath.backend.host.process import HostCommand
from rath.backend.host.snapshots import (
    TREES,
    HostSeedSnapshot,
    HostSnapshot,
    freeze_tree,
)
from rath.backend.host.supervisor import Leftovers
from rath.backend.snapshots import InitialFiles, Seed, SnapshotLineage, WorkspaceTree
from rath.errors import BackendError

_logger = logging.getLogger(__name__)


class HostSandbox(ABC):
    """An open sandbox of this host; used on the runtime loop, `freeze` anywhere.

    Args:
        workspace: Where its files are.
        tree: The directory that its operations change.
        spec: What it was opened with.
    """

    layer: Layer | None = None
    """The layer of a workspace of its own, None before its first change and elsewhere."""

    def __init__(
        self,
        workspace: Workspace,
        tree: WorkspaceTree[HostSnapshot],
        spec: BackendSandboxSpec | None = None,
    ) -> None:
        self.workspace: Workspace = workspace
        """Where its files are; a workspace of its own may move when it is changed first."""
        self.tree = tree
        self.spec: BackendSandboxSpec = spec or BackendSandboxSpec()
        self.leftovers: Leftovers = Leftovers()
        """What its commands left running in sessions of their own."""
        self.watched: WatchedTree | None = None
        """What is known of the files, to tell what operations change."""
        TREES.watch(self.leftovers, tree)

    @property
    def handle(self) -> str:
        """The directory as it was given."""
        return self.workspace.handle

    @property
    def env(self) -> Mapping[str, str]:
        """The variables of its spec."""
        return self.spec.env or {}

    @property
    def effects(self) -> EffectPolicy:
        """How effects are looked for."""
        return self.spec.effects or EffectPolicy()

    @property
    def layer_kind(self) -> LayerKind | None:
        """What holds the files of a workspace of its own; None for a plain directory."""
        return None

    def watched_tree(self) -> WatchedTree:
        """Return the tree in which its operations are watched now, and hold it."""
        root, door = self.workspace.root, self.workspace.door
        watched = self.watched
        if watched is None or watched.root != door or watched.pid != os.getpid():
            # A layer is its sandbox's own, and where it is mounted others see something else.
            source = None if self.layer is None else self.layer.source()
            self.watched = watched = tree_at(root) if door == root else WatchedTree(door, source)
        return watched

    @abstractmethod
    def reading(self) -> AbstractAsyncContextManager[None]:
        """Surround an operation that can change nothing."""

    @abstractmethod
    def writing(self) -> AbstractAsyncContextManager[None]:
        """Surround any other operation; what is frozen is safe from it.

        Raises:
            CopyFailed: Frozen files that somebody holds cannot be copied; nothing was changed.
        """

    @abstractmethod
    def freeze(self, lineage: SnapshotLineage[HostSnapshot] | None) -> HostSnapshot:
        """Return the files as they are now; O(1), on any thread.

        Args:
            lineage: History of the workspace before it was opened, if there is one.
        """

    def entering(self, command: HostCommand) -> HostCommand:
        """Return the command that runs `command` where the files are."""
        return command if self.layer is None else self.layer.entering(command)

    @abstractmethod
    async def aclose(self) -> None:
        """Free what it holds; frozen files that somebody holds outlive it."""


class DirectorySandbox(HostSandbox):
    """A sandbox in a directory that may be shared with others of this process."""

    def __init__(self, workspace: Workspace, spec: BackendSandboxSpec | None = None) -> None:
        super().__init__(workspace, TREES.at(workspace.root), spec)

    def reading(self) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    def writing(self) -> AbstractAsyncContextManager[None]:
        return TREES.writing(self.tree)

    def freeze(self, lineage: SnapshotLineage[HostSnapshot] | None) -> HostSnapshot:
        return freeze_tree(self.tree, self.workspace.root, lineage)

    async def aclose(self) -> None:
        workspace = self.workspace
        is_there = partial(os.path.isdir, workspace.root)
        if workspace.is_owned and await runtime().call_in_worker(is_there):
            # At exit nobody is left who could use what is frozen.
            async with nullcontext() if runtime().is_closing else self.writing():
                await runtime().call_in_worker(partial(remove_owned, workspace.root))


def remove_owned(root: str) -> None:
    """Remove a directory that was made for a sandbox; what stays is logged. Blocks."""
    try:
        remove_tree(Path(root))
    except OSError as exc:
        _logger.warning("%s cannot be removed: %s; do it by hand", root, exc)


class LayeredSandbox(HostSandbox):
    """A sandbox with a workspace of its own: frozen files, and a layer from the first change on.

    Args:
        frozen: The frozen files of the seed.
        seed: With what differs from them.
        directory: Where its layer goes.
        tools: How an overlay is mounted there, None where only a copy is possible.
        root: Path of the workspace as commands of its parent see it, None where there is none.
        spec: What it was opened with.
    """

    def __init__(
        self,
        frozen: HostSnapshot,
        seed: Seed,
        directory: LayerDirectory,
        tools: Tools | None,
        root: str | None,
        spec: BackendSandboxSpec | None = None,
    ) -> None:
        self._frozen = frozen
        self._changes = seed.changes
        self._directory = directory
        self._tools = tools
        self._root = root
        self._making: SharedJob[Layer] = SharedJob()

        async def origin() -> Seed:
            return seed

        self._initial = InitialFiles[HostSnapshot](
            lambda lineage: HostSeedSnapshot(lineage, origin)
        )
        self._initial.lineage.start = frozen
        root = (root if tools is not None else None) or directory.files
        # Its files overlap with no other's, whatever path its commands see.
        super().__init__(
            Workspace(directory.path, root, root, is_owned=False),
            WorkspaceTree(f"layer:{directory.path}", ""),
            spec,
        )

    @classmethod
    async def aopened(
        cls, seed: Seed, spec: BackendSandboxSpec | None, *, may_mount: bool
    ) -> LayeredSandbox:
        """Return a sandbox whose workspace begins with the files of `seed`.

        Args:
            seed: Frozen files and changes.
            spec: What it is opened with.
            may_mount: Whether its layer may be an overlay.

        Raises:
            BackendError: The files are of another kind of backend, or there is no place for it.
        """
        frozen = HostSnapshot.require(seed.frozen)

        def make() -> tuple[LayerDirectory, Tools | None]:
            directory = LayerDirectory()
            return directory, overlay_tools(directory) if may_mount else None

        try:
            directory, tools = await runtime().call_in_worker(make)
        except CopyFailed as exc:
            raise BackendError(f"a copy of a workspace cannot be opened: {exc}") from exc
        return cls(frozen, seed, directory, tools, await frozen.aroot(), spec)

    @property
    def layer_kind(self) -> LayerKind:
        return "frozen" if self.layer is None else self.layer.kind

    @asynccontextmanager
    async def reading(self) -> AsyncGenerator[None]:
        if self.layer is None and not self._changes:
            async with self._frozen.reading() as door:
                if self.layer is None:
                    self.workspace = replace(self.workspace, door=door)
                yield
            return
        self._move_to(await self._alayer())
        yield

    @asynccontextmanager
    async def writing(self) -> AsyncGenerator[None]:
        layer = await self._alayer()
        async with TREES.writing(self.tree):
            self._move_to(layer)
            yield

    def freeze(self, lineage: SnapshotLineage[HostSnapshot] | None) -> HostSnapshot:
        if self.layer is not None:
            lineage = lineage or self._initial.lineage
            lineage.start = lineage.start or self._frozen
            return freeze_tree(self.tree, self.layer.root, lineage)
        return self._initial.freeze() if self._changes else self._frozen

    async def aclose(self) -> None:
        try:
            if self._making.is_started and not runtime().is_closing:
                async with self.writing():
                    pass
        except CopyFailed as exc:
            raise BackendError(
                f"{self.handle!r} is closed, but forks of it that had not begun to "
                f"write have lost their files: {exc}; free space before you close the next one"
            ) from exc
        finally:
            # Whatever stood against the copy: nothing stays mounted, and nothing on the disk.
            if self.layer is None and self._making.is_started:
                with contextlib.suppress(CopyFailed):
                    await self._alayer()
            if self.layer is not None:
                # The number of its descriptor may be that of another directory soon: what is
                # frozen and was not kept is lost, and not to be looked for there.
                self.tree.door = ""
                await runtime().call_in_worker(self.layer.close)
            await self._directory.aremove()

    async def _alayer(self) -> Layer:
        if self.layer is None:
            lower = await self._frozen.asecured()
            layer = await self._making.aresult(partial(self._make_layer, lower))
            self.tree.door = layer.door
            self.layer = layer
        return self.layer

    def _make_layer(self, lower: LayerDirectory) -> Layer:
        layer: Layer | None = None
        if self._tools is not None:
            try:
                layer = OverlayLayer(self._directory, lower, self._root, self._tools)
            except (OverlayFailed, OSError):
                self._directory.clear()
        if layer is None:
            layer = Layer(self._directory, lower.files)
        try:
            apply_changes(layer.door, self._changes)
        except CopyFailed:
            layer.close()
            self._directory.clear()
            raise
        return layer

    def _move_to(self, layer: Layer) -> None:
        root, door = layer.root, layer.door
        if (root, door) != (self.workspace.root, self.workspace.door):
            self.workspace = replace(self.workspace, base=root, root=root, door=door)
