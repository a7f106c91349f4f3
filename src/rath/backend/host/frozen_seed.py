"""Frozen files of a workspace that has not begun yet: those of its seed."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial

from rath.backend.frozen import FrozenWorkspace, Origin, Seed
from rath.backend.host.copying import copy_tree
from rath.backend.host.copying_job import SharedJob
from rath.backend.host.frozen import HostFrozen, TreeFrozen
from rath.backend.host.guard_trees import Lineage, Tree
from rath.backend.host.layer import apply_changes
from rath.backend.host.layer_directory import LayerDirectory
from rath.errors import BackendError


class SharedOrigin:
    """An origin that several may ask; the first answer is kept."""

    def __init__(self, origin: Origin) -> None:
        self._origin = origin
        self._lock = asyncio.Lock()
        self._seed: Seed | None = None

    async def __call__(self) -> Seed:
        async with self._lock:
            if self._seed is None:
                self._seed = await self._origin()
        return self._seed


class SeedFrozen(HostFrozen):
    """The files of a seed; copied only where there are changes to put into them."""

    def __init__(self, lineage: Lineage[HostFrozen], origin: Origin) -> None:
        super().__init__(lineage)
        self._origin = origin
        self._copying: SharedJob[LayerDirectory] = SharedJob()

    @property
    def is_secured(self) -> bool:
        return True  # what it needs of a tree, the frozen files of its seed hold

    async def aroot(self) -> str | None:
        base, _ = await self._aresolved()
        return await base.aroot()

    @asynccontextmanager
    async def reading(self) -> AsyncGenerator[str]:
        base, seed = await self._aresolved()
        if seed.changes:
            yield (await self.asecured()).files
            return
        async with base.reading() as door:
            yield door

    async def asecured(self) -> LayerDirectory:
        base, seed = await self._aresolved()
        lower = await base.asecured()
        if not seed.changes:
            return lower
        return await self._copying.aresult(partial(_changed, lower, seed))

    async def _aresolved(self) -> tuple[HostFrozen, Seed]:
        seed = await self._origin()
        base = host_frozen(seed.frozen)
        self.lineage.born = self.lineage.born or base
        return base, seed


class Beginning:
    """What is frozen of a workspace before anything is changed in it.

    Args:
        origin: Finds the files with which it begins; None where there are none.
    """

    def __init__(self, origin: Origin | None) -> None:
        self.lineage: Lineage[HostFrozen] = Lineage()
        """Its history, which goes on when it is opened."""

        self._origin = origin
        self._lock = threading.Lock()
        self._frozen: weakref.ref[HostFrozen] | None = None

    def freeze(self) -> HostFrozen:
        """Return the files with which it begins; O(1), on any thread."""
        with self._lock:
            frozen = None if self._frozen is None else self._frozen()
            if frozen is None:
                frozen = self._made()
                self._frozen = weakref.ref(frozen)
            return frozen

    def _made(self) -> HostFrozen:
        if self._origin is None:
            return TreeFrozen(self.lineage, Tree("nothing", ""), None)
        return SeedFrozen(self.lineage, self._origin)


def host_frozen(frozen: FrozenWorkspace) -> HostFrozen:
    """Return frozen files that lie on this host.

    Raises:
        BackendError: They belong to a backend of another kind.
    """
    if isinstance(frozen, HostFrozen):
        return frozen
    raise BackendError(
        f"a workspace of this host cannot begin with the files of a {type(frozen).__name__}; "
        "fork on the backend where the files are"
    )


def _changed(lower: LayerDirectory, seed: Seed) -> LayerDirectory:
    with LayerDirectory.made() as directory:
        copy_tree(lower.files, directory.files)
        apply_changes(directory.files, seed.changes)
        return directory
