"""The guard of a workspace of its own: frozen files first, a layer before the first change."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial

from rath._async.runtime import runtime
from rath.backend.frozen import NewFile, Seed
from rath.backend.host.copying import CopyFailed
from rath.backend.host.copying_job import SharedJob
from rath.backend.host.frozen import TREES, HostFrozen, freeze_tree
from rath.backend.host.frozen_seed import Beginning, host_frozen
from rath.backend.host.guard import Guard
from rath.backend.host.guard_trees import Lineage, Tree
from rath.backend.host.layer import CopyLayer, Layer, LayerKind, apply_changes
from rath.backend.host.layer_directory import LayerDirectory
from rath.backend.host.overlay import OverlayFailed, OverlayLayer, Tools, overlay_tools
from rath.backend.host.paths import Workspace
from rath.backend.host.process import Command
from rath.errors import BackendError


@dataclass(frozen=True, slots=True)
class LayerPlace:
    """Where a layer goes, and how an overlay is mounted there."""

    directory: LayerDirectory
    tools: Tools | None = None
    """None where only a copy is possible."""

    @classmethod
    def made(cls, may_mount: bool) -> LayerPlace:
        """Return a new one; blocks. Without `may_mount` it has no tools.

        Raises:
            CopyFailed: It cannot be made.
        """
        directory = LayerDirectory()
        return cls(directory, overlay_tools(directory) if may_mount else None)


class LayerGuard(Guard):
    """Begins with the files of a seed.

    Args:
        frozen: The frozen files of the seed.
        changes: What differs from them.
        place: Where its layer goes.
        root: Path of the workspace as commands of its parent see it, None where there is none.
    """

    def __init__(
        self,
        frozen: HostFrozen,
        changes: Mapping[str, NewFile | None],
        place: LayerPlace,
        root: str | None,
    ) -> None:
        self._frozen = frozen
        self._changes = changes
        self._place = place
        self._root = root
        self._layer: Layer | None = None
        self._making: SharedJob[Layer] = SharedJob()
        self._beginning = Beginning(partial(_given, Seed(frozen, changes)))
        self._beginning.lineage.born = frozen
        path = place.directory.path
        root = (root if place.tools is not None else None) or place.directory.files
        self._workspace = Workspace(path, root, root, is_owned=False)
        # Its files overlap with no other's, whatever path its commands see.
        self._tree: Tree[HostFrozen] = Tree(f"layer:{path}", "")

    @classmethod
    async def aopened(cls, seed: Seed, *, may_mount: bool) -> LayerGuard:
        """Return the guard of a workspace that begins with the files of `seed`.

        Args:
            seed: Frozen files and changes.
            may_mount: Whether its layer may be an overlay.

        Raises:
            BackendError: The files are of another kind of backend, or there is no place for it.
        """
        frozen = host_frozen(seed.frozen)
        try:
            place = await runtime().call_in_worker(partial(LayerPlace.made, may_mount))
        except CopyFailed as exc:
            raise BackendError(f"a copy of a workspace cannot be opened: {exc}") from exc
        return cls(frozen, seed.changes, place, await frozen.aroot())

    @property
    def workspace(self) -> Workspace:
        return self._workspace

    @property
    def tree(self) -> Tree[HostFrozen]:
        return self._tree

    @property
    def layer(self) -> Layer | None:
        return self._layer

    @property
    def layer_kind(self) -> LayerKind:
        return "frozen" if self._layer is None else self._layer.kind

    @asynccontextmanager
    async def reading(self) -> AsyncGenerator[None]:
        if self._layer is None and not self._changes:
            async with self._frozen.reading() as door:
                if self._layer is None:
                    self._workspace = replace(self._workspace, door=door)
                yield
            return
        self._stand_on(await self._alayer())
        yield

    @asynccontextmanager
    async def writing(self) -> AsyncGenerator[None]:
        layer = await self._alayer()
        async with TREES.writing(self._tree):
            self._stand_on(layer)
            yield

    def freeze(self, lineage: Lineage[HostFrozen] | None) -> HostFrozen:
        if self._layer is not None:
            lineage = lineage or self._beginning.lineage
            lineage.born = lineage.born or self._frozen
            return freeze_tree(self._tree, self._layer.root, lineage)
        return self._beginning.freeze() if self._changes else self._frozen

    def entering(self, command: Command) -> Command:
        return command if self._layer is None else self._layer.entering(command)

    async def aclose(self) -> None:
        try:
            if self._making.is_begun and not runtime().is_closing:
                async with self.writing():
                    pass
        except CopyFailed as exc:
            raise BackendError(
                f"{self._workspace.handle!r} is closed, but forks of it that had not begun to "
                f"write have lost their files: {exc}; free space before you close the next one"
            ) from exc
        finally:
            # Whatever stood against the copy: nothing stays mounted, and nothing on the disk.
            await self._aend()

    async def _aend(self) -> None:
        layer = self._layer
        if layer is None and self._making.is_begun:
            with contextlib.suppress(CopyFailed):
                layer = await self._alayer()
        if layer is not None:
            await runtime().call_in_worker(layer.close)
        await self._place.directory.aremove()

    async def _alayer(self) -> Layer:
        if self._layer is None:
            lower = await self._frozen.asecured()
            layer = await self._making.aresult(partial(self._made, lower))
            self._tree.door = layer.door
            self._layer = layer
        return self._layer

    def _made(self, lower: LayerDirectory) -> Layer:
        directory = self._place.directory
        layer = self._mounted(lower) or CopyLayer(directory, lower.files)
        try:
            apply_changes(layer.door, self._changes)
        except CopyFailed:
            layer.close()
            directory.clear()
            raise
        return layer

    def _mounted(self, lower: LayerDirectory) -> Layer | None:
        directory, tools = self._place.directory, self._place.tools
        if tools is None:
            return None
        try:
            return OverlayLayer(directory, lower, self._root, tools)
        except (OverlayFailed, OSError):
            directory.clear()
            return None

    def _stand_on(self, layer: Layer) -> None:
        root, door = layer.root, layer.door
        if (root, door) != (self._workspace.root, self._workspace.door):
            self._workspace = replace(self._workspace, base=root, root=root, door=door)


async def _given(seed: Seed) -> Seed:
    return seed
