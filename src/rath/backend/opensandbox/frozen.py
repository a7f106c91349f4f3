"""Frozen files of a sandbox of a server: found there while it is unchanged, then in a snapshot."""

from __future__ import annotations

import asyncio
import contextvars
import os
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, TypeVar

from rath._async.runtime import Running, runtime
from rath.backend.abc import BackendSandboxSpec
from rath.backend.changes import FileState, Manifest
from rath.backend.opensandbox.faults import RemoteFault
from rath.backend.opensandbox.remote import Gone, RemoteSandbox, unreachable
from rath.backend.opensandbox.snapshots import Kept, Snapshot, SnapshotFailed, take_snapshot
from rath.backend.opensandbox.workspace_files import read_content, read_manifest
from rath.backend.snapshots import (
    FrozenWorkspace,
    NewFile,
    Origin,
    Seed,
    SnapshotLineage,
    WorkspaceSnapshot,
    WorkspaceTrees,
)
from rath.errors import BackendError

if TYPE_CHECKING:
    from rath.backend.opensandbox.client import Client

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Start:
    """What a new sandbox begins with."""

    spec: BackendSandboxSpec
    """Of the sandbox whose files they were, without a directory of a host."""

    snapshot: Snapshot | None
    """Held until the new sandbox has ended; None for what the image has."""

    changes: Mapping[str, NewFile | None] = field(default_factory=dict[str, "NewFile | None"])


Opener = Callable[[Start], Awaitable[RemoteSandbox]]
"""Opens a sandbox of the same server."""


class RemoteFrozen(WorkspaceSnapshot):
    """The files of a workspace of a server at one moment."""

    _manifest: Manifest | None = None

    @abstractmethod
    async def astart(self) -> Start:
        """Return what a sandbox with these files begins with.

        Raises:
            SnapshotFailed: There is no snapshot of them.
        """

    async def asecure(self) -> None:
        await self.astart()

    async def amanifest(self) -> Manifest:
        """Return what it holds, without ignored directories; looked at once.

        Raises:
            BackendError: It cannot be looked at.
        """
        if self._manifest is None:
            self._manifest = await self._alooked()
        return self._manifest

    @abstractmethod
    async def _alooked(self) -> Manifest: ...


TREES: WorkspaceTrees[RemoteFrozen] = WorkspaceTrees()
"""The workspaces of servers that this process uses, by the ids of their sandboxes."""

if hasattr(os, "register_at_fork"):  # pragma: no branch  # Windows has no fork
    os.register_at_fork(after_in_child=TREES.start_afresh)


class _Readable(RemoteFrozen):
    """Frozen files that are read in a sandbox."""

    def __init__(self, lineage: SnapshotLineage[RemoteFrozen], opener: Opener) -> None:
        super().__init__(lineage)
        self._opener = opener
        self._opening = asyncio.Lock()
        self._reader: RemoteSandbox | None = None

    async def aread(self, path: str) -> bytes:
        return await self._ask(partial(read_content, path))

    async def _alooked(self) -> Manifest:
        return await self._ask(read_manifest)

    async def _ask(self, read: Callable[[Client], Awaitable[T]]) -> T:
        """Read in a sandbox that is opened for that; one that has expired is opened again."""
        try:
            reader = await self._areader()
            try:
                return await reader.use(read)
            except Gone:
                return await (await self._areader()).use(read)
        except (Gone, SnapshotFailed) as exc:
            raise BackendError(f"the frozen files of a workspace are not there: {exc}") from exc
        except RemoteFault as exc:
            raise BackendError(f"the frozen files of a workspace cannot be read: {exc}") from exc

    async def _areader(self) -> RemoteSandbox:
        async with self._opening:
            if self._reader is None or self._reader.is_gone:
                start = await self.astart()
                self._reader = await self._opener(start)
                # Ended before its snapshot is deleted, which this holds so long.
                end = partial(_end, self._reader, start)
                Kept(self, end, f"the sandbox {self._reader.handle}, opened to read frozen files,")
            return self._reader


class NewFrozen(_Readable):
    """The files of a sandbox that was never opened: those of its image."""

    def __init__(
        self, lineage: SnapshotLineage[RemoteFrozen], spec: BackendSandboxSpec, opener: Opener
    ) -> None:
        super().__init__(lineage, opener)
        self._spec = spec

    @property
    def is_secured(self) -> bool:
        return True

    async def astart(self) -> Start:
        return Start(self._spec, None)


class OpenFrozen(_Readable):
    """The files of an open sandbox: they are there until it is changed, then in a snapshot."""

    def __init__(
        self, lineage: SnapshotLineage[RemoteFrozen], source: RemoteSandbox, opener: Opener
    ) -> None:
        super().__init__(lineage, opener)
        self._source = source
        self._tree = source.tree
        self._snapshot: Snapshot | None = None
        self._taking: Running | None = None

    @property
    def is_secured(self) -> bool:
        return self._snapshot is not None

    async def astart(self) -> Start:
        spec = replace(self._source.spec, working_dir=None)
        return Start(spec, await self._asnapshot())

    async def _ask(self, read: Callable[[Client], Awaitable[T]]) -> T:
        if self._is_source_unchanged():
            async with TREES.reading_frozen(self._tree):
                if self._is_source_unchanged():
                    try:
                        return await self._source.use(read)
                    except Gone:
                        pass  # a snapshot may have its files
                    except RemoteFault as exc:
                        raise unreachable(self._source.handle, exc) from exc
        return await super()._ask(read)

    def _is_source_unchanged(self) -> bool:
        return self._tree.pinned is self and not self._source.is_gone

    async def _asnapshot(self) -> Snapshot:
        """Return the snapshot, taken by the first who asks; a waiter that is cancelled ends it not.

        A failure is not kept.
        """
        if self._snapshot is None:
            await TREES.quiet(self._tree)
        if self._snapshot is None:
            if self._taking is None:
                # It holds this object, so that nobody changes the sandbox meanwhile.
                label = f"a snapshot of {self._source.handle}"
                context = contextvars.Context()
                self._taking = runtime().submit(self._taken, label=label, context=context)
            reason: str | None = await asyncio.wrap_future(self._taking.future)
            if reason is not None:
                raise SnapshotFailed(reason)
        assert self._snapshot is not None
        return self._snapshot

    async def _taken(self) -> str | None:
        """Take the snapshot; return why there is none: an exception would hold this object."""
        try:
            self._snapshot = await take_snapshot(self._source)
        except SnapshotFailed as exc:
            return str(exc)
        finally:
            self._taking = None
        return None


class SeedFrozen(RemoteFrozen):
    """The files of a seed: frozen ones, and what differs from them."""

    def __init__(self, lineage: SnapshotLineage[RemoteFrozen], origin: Origin) -> None:
        super().__init__(lineage)
        self._origin = origin

    @property
    def is_secured(self) -> bool:
        return True  # what it needs of a sandbox, the frozen files of its seed hold

    async def astart(self) -> Start:
        base, seed = await self._aresolved()
        start = await base.astart()
        return replace(start, changes={**start.changes, **seed.changes})

    async def aread(self, path: str) -> bytes:
        base, seed = await self._aresolved()
        if path not in seed.changes:
            return await base.aread(path)
        new = seed.changes[path]
        if new is None:
            raise FileNotFoundError(f"there is no file {path!r} in the frozen workspace")
        return new.data

    async def _alooked(self) -> Manifest:
        base, seed = await self._aresolved()
        found = dict(await base.amanifest())
        for path, new in seed.changes.items():
            if new is None:
                found.pop(path, None)
            else:
                found[path] = FileState(sha256(new.data).hexdigest(), len(new.data), new.mode)
        return found

    async def _aresolved(self) -> tuple[RemoteFrozen, Seed]:
        seed = await self._origin()
        base = remote_frozen(seed.frozen)
        self.lineage.born = self.lineage.born or base
        return base, seed


def remote_frozen(frozen: FrozenWorkspace) -> RemoteFrozen:
    """Return frozen files that are on a server.

    Raises:
        BackendError: They belong to a backend of another kind.
    """
    if isinstance(frozen, RemoteFrozen):
        return frozen
    raise BackendError(
        f"a sandbox of OpenSandbox cannot begin with the files of a {type(frozen).__name__}; "
        "fork on the backend where the files are"
    )


async def _end(reader: RemoteSandbox, _held: Start) -> None:
    await reader.close()
