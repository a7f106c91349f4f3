"""Snapshots: frozen files are found in their sandbox while it is unchanged, then on the server."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import weakref
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import field, replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar
from uuid import uuid4

from rath._async.runtime import Running, runtime
from rath._core.dataclasses import dataclass
from rath.backend.abc import BackendSandbox, BackendSandboxSpec
from rath.backend.changes import Manifest
from rath.backend.opensandbox.changes import read_manifest
from rath.backend.opensandbox.connection import ROOT, AnswerLost, RemoteError, SandboxGone
from rath.backend.opensandbox.files import read_content
from rath.backend.opensandbox.processes import CommandLine, run_line
from rath.backend.snapshots import (
    NewFile,
    Origin,
    SeedSnapshot,
    SnapshotLineage,
    UnopenedFiles,
    WorkspaceSnapshot,
    WorkspaceTrees,
)
from rath.errors import BackendError

if TYPE_CHECKING:
    from rath.backend.opensandbox.client import Client
    from rath.backend.opensandbox.sandbox import RemoteSandbox

SNAPSHOT_SECONDS = 300.0
"""How long a snapshot may take until it can be opened; a guess for large images."""

SNAPSHOT_WAITS = (0.1, 0.2, 0.5, 1.0)
"""Waits between questions whether a snapshot is ready, in seconds; the last one repeats."""

_FINAL = ("Failed", "Deleting")
"""States that never become `Ready`; those that are not known may."""

_IS_MOUNTED = f"cut -d ' ' -f 5 /proc/self/mountinfo | grep -q '^{ROOT}\\(/\\|$\\)'"
_MOUNT_SECONDS = 10.0

T = TypeVar("T")

_log = logging.getLogger("rath.backend")


# ---------------------------------------------------------------- on the server


class SnapshotFailed(Exception):
    """The files of a sandbox could not be preserved; the text says why."""


class _RemoteResource:
    """An object on the server that ends when its owner is collected, at the latest at exit.

    Args:
        owner: Who has it; `end` must not refer to that.
        end: Ends it.
        description: Its name in messages.
    """

    def __init__(self, owner: object, end: Callable[[], Awaitable[None]], description: str) -> None:
        self._end = end
        self._description = description
        self._pid = os.getpid()
        runtime().keep_open(self)
        # At exit the runtime closes what is open; a finalizer there would only race with it.
        weakref.finalize(owner, self._drop).atexit = False

    async def aclose(self) -> None:
        """End it; where the server cannot do that, a warning is logged."""
        runtime().forget(self)
        try:
            await self._end()
        except RemoteError as exc:
            _log.warning("%s could not be removed from the server: %s", self._description, exc)

    def _drop(self) -> None:
        # In a forked child it belongs to the parent.
        if self._pid == os.getpid():
            runtime().close_soon(self)


class ServerSnapshot:
    """A snapshot on the server, which is deleted there once nobody holds this object."""

    def __init__(self, client: Client, snapshot_id: str) -> None:
        self.id = snapshot_id
        delete = partial(client.delete_snapshot, snapshot_id)
        _RemoteResource(self, delete, f"the snapshot {snapshot_id}, which nobody needs any more,")


async def take_snapshot(sandbox: RemoteSandbox) -> ServerSnapshot:
    """Return a snapshot of a sandbox, once it can be opened; nothing may change meanwhile.

    Raises:
        SnapshotFailed: There is none, and the text says why.
    """
    try:
        if sandbox.is_attached:
            await sandbox.use(_check_unmounted)
        return await sandbox.use(_take)
    except SandboxGone as exc:
        raise SnapshotFailed(sandbox.removal_message()) from exc
    except RemoteError as exc:
        raise SnapshotFailed(f"the server made no snapshot of {sandbox.handle}: {exc}") from exc


async def _take(client: Client) -> ServerSnapshot:
    """Ask for a snapshot once; one whose answer was lost is looked for by its name."""
    name = f"rath-{uuid4().hex}"
    try:
        snapshot_id = await client.snapshot(name)
    except AnswerLost:
        ids = await client.snapshots_named(name)
        if not ids:
            raise
        snapshot_id = ids[0]
    snapshot = ServerSnapshot(client, snapshot_id)
    try:
        async with asyncio.timeout(SNAPSHOT_SECONDS):
            await _wait_until_ready(client, snapshot_id)
    except TimeoutError as exc:
        raise SnapshotFailed(
            f"the snapshot {snapshot_id} was not ready within {SNAPSHOT_SECONDS:g} s"
        ) from exc
    return snapshot


async def _wait_until_ready(client: Client, snapshot_id: str) -> None:
    """Poll the state of a snapshot; the API tells only who asks."""
    n_polls = 0
    while True:
        state, reason = await client.snapshot_state(snapshot_id)
        if state == "Ready":
            return
        if state in _FINAL:
            raise SnapshotFailed(f"the snapshot {snapshot_id} is {state.lower()}: {reason}")
        await asyncio.sleep(SNAPSHOT_WAITS[min(n_polls, len(SNAPSHOT_WAITS) - 1)])
        n_polls += 1


async def _check_unmounted(client: Client) -> None:
    """Refuse a workspace that is mounted: a snapshot would not have its files."""
    ran = await run_line(client, CommandLine(_IS_MOUNTED, _MOUNT_SECONDS, "/"))
    if ran.exit_code == 0:
        raise SnapshotFailed(
            f"{ROOT} of {client.id} is mounted, and what is mounted belongs to no snapshot; use a "
            "sandbox without working_dir"
        )


# ---------------------------------------------------------------- frozen files


@dataclass(frozen=True, slots=True)
class Start:
    """The beginning of a new sandbox."""

    spec: BackendSandboxSpec
    """Of the sandbox whose files they were, without a directory of a host."""

    snapshot: ServerSnapshot | None
    """Held until the new sandbox has ended; None for the files of the image."""

    changes: Mapping[str, NewFile | None] = field(default_factory=dict[str, "NewFile | None"])


Opener = Callable[[Start], Awaitable["RemoteSandbox"]]
"""Opens a sandbox of the same server."""


class RemoteFrozen(WorkspaceSnapshot):
    """The files of a workspace of a server at one moment."""

    workspace_kind = "a sandbox of OpenSandbox"

    @abstractmethod
    async def astart(self) -> Start:
        """Return the beginning of a sandbox with these files.

        Raises:
            SnapshotFailed: There is no snapshot of them.
        """

    async def asecure(self) -> None:
        await self.astart()


TREES: WorkspaceTrees[RemoteFrozen] = WorkspaceTrees()
"""The workspaces of servers that this process uses, by the ids of their sandboxes."""

if hasattr(os, "register_at_fork"):  # pragma: no branch  # Windows has no fork
    os.register_at_fork(after_in_child=TREES.start_afresh)


class SandboxFrozen(RemoteFrozen):
    """The files of a sandbox: in it until it is changed, then in a snapshot.

    Without a sandbox they are those of an image. They are read in it, or in one that is opened for
    that.

    Args:
        lineage: The history of the workspace.
        spec: Of a sandbox that begins with them.
        opener: Opens it.
        source: The sandbox, None for one that was never opened.
    """

    def __init__(
        self,
        lineage: SnapshotLineage[RemoteFrozen],
        spec: BackendSandboxSpec,
        opener: Opener,
        source: RemoteSandbox | None = None,
    ) -> None:
        super().__init__(lineage)
        self._spec = replace(spec, working_dir=None)
        self._opener = opener
        self._source = source
        self._snapshot: ServerSnapshot | None = None
        self._taking: Running | None = None
        self._opening = asyncio.Lock()
        self._reader: RemoteSandbox | None = None

    @property
    def is_secured(self) -> bool:
        return self._source is None or self._snapshot is not None

    async def astart(self) -> Start:
        """Return a beginning with these files; the first who asks has the snapshot taken.

        A waiter that is cancelled does not end that, and a failure is not remembered.
        """
        source = self._source
        if source is not None and self._snapshot is None:
            await TREES.quiet(source.tree)
        if source is not None and self._snapshot is None:
            if self._taking is None:
                # It holds this object, so that nobody changes the sandbox meanwhile.
                label = f"a snapshot of {source.handle}"
                take = partial(self._take, source)
                context = contextvars.Context()
                self._taking = runtime().submit(take, label=label, context=context)
            reason: str | None = await asyncio.wrap_future(self._taking.future)
            if reason is not None:
                raise SnapshotFailed(reason)
        return Start(self._spec, self._snapshot)

    async def aread(self, path: str) -> bytes:
        return await self._ask(partial(read_content, path))

    async def ascan(self) -> Manifest:
        return await self._ask(read_manifest)

    async def _take(self, source: RemoteSandbox) -> str | None:
        """Take the snapshot; return why there is none: an exception would hold this object."""
        try:
            self._snapshot = await take_snapshot(source)
        except SnapshotFailed as exc:
            return str(exc)
        finally:
            self._taking = None
        return None

    async def _ask(self, read: Callable[[Client], Awaitable[T]]) -> T:
        """Read in the sandbox while it is unchanged, else in one that is opened for that."""
        source = self._source
        if source is not None and self._is_unchanged(source):
            async with TREES.reading_frozen(source.tree):
                if self._is_unchanged(source):
                    try:
                        return await source.use(read)
                    except SandboxGone:
                        pass  # a snapshot may have its files
                    except RemoteError as exc:
                        raise source.unreachable(exc) from exc
        try:
            reader = await self._open_reader()
            try:
                return await reader.use(read)
            except SandboxGone:  # it has expired
                return await (await self._open_reader()).use(read)
        except (SandboxGone, SnapshotFailed) as exc:
            raise BackendError(
                f"the files that a fork or undo held are gone from the server: {exc}; fork again "
                "from a session whose sandbox still runs"
            ) from exc
        except RemoteError as exc:
            raise BackendError(
                f"the files that a fork or undo holds cannot be read from the server: {exc}"
            ) from exc

    def _is_unchanged(self, source: RemoteSandbox) -> bool:
        return source.tree.pinned is self and not source.is_removed

    async def _open_reader(self) -> RemoteSandbox:
        async with self._opening:
            if self._reader is None or self._reader.is_removed:
                start = await self.astart()
                reader = self._reader = await self._opener(start)

                async def end(_snapshot: ServerSnapshot | None = start.snapshot) -> None:
                    # Ended before its snapshot is deleted, which this holds so long.
                    await reader.close()

                description = f"the sandbox {reader.handle}, opened to read frozen files,"
                _RemoteResource(self, end, description)
            return self._reader


class RemoteSeedFrozen(SeedSnapshot[RemoteFrozen], RemoteFrozen):
    """The files of a seed of this driver."""

    base_class = RemoteFrozen

    async def astart(self) -> Start:
        base, seed = await self.aresolved()
        start = await base.astart()
        return replace(start, changes={**start.changes, **seed.changes})


def freeze(
    sandbox: BackendSandbox, unopened: UnopenedFiles[RemoteFrozen], opener: Opener
) -> RemoteFrozen:
    """Return the files of a workspace as they are now; O(1), on any thread.

    Args:
        sandbox: Whose workspace it is, open or not.
        unopened: What was frozen of sandboxes before they were opened.
        opener: Opens sandboxes in which frozen files are read.

    Raises:
        BackendSandboxClosed: It was closed.
        BackendError: Its workspace is a directory of a host.
    """
    if sandbox.closed:
        raise sandbox.closed_error()
    spec = sandbox.spec or BackendSandboxSpec()
    if spec.working_dir and sandbox.origin is None:
        raise BackendError(
            f"the workspace of this sandbox is the directory {spec.working_dir!r}, which is "
            "mounted and belongs to no snapshot, so it cannot be copied; use a sandbox "
            "without working_dir, or share the workspace"
        )
    native: RemoteSandbox | None = sandbox.native
    if native is not None:
        lineage = unopened.lineage(sandbox) or SnapshotLineage[RemoteFrozen]()
        lineage.start = lineage.start or native.begin
        return TREES.freeze(
            native.tree,
            lineage,
            lambda lineage: SandboxFrozen(lineage, native.spec, opener, native),
        )

    def initial(lineage: SnapshotLineage[RemoteFrozen], origin: Origin | None) -> RemoteFrozen:
        if origin is not None:
            return RemoteSeedFrozen(lineage, origin)
        return SandboxFrozen(lineage, spec, opener)

    return unopened.freeze(sandbox, initial)
