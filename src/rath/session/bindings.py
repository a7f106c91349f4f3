"""Where the tools of a session run, and which model answers it."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

from rath._async.plane import HandleLease
from rath._async.runtime import runtime
from rath._core.dataclasses import dataclass
from rath._core.lazy_imports import lazy_modules
from rath.backend.abc import Backend, BackendSandbox, BackendSandboxSpec
from rath.backend.workspace import StoredWorkspace, WorkspaceRef, register_live
from rath.errors import BackendError, WorkspaceLost

if TYPE_CHECKING:
    from rath.backend import registry
    from rath.backend.snapshots import FrozenWorkspace, Origin, Seed
else:
    (registry,) = lazy_modules(__name__, "rath.backend.registry")


_lock = threading.RLock()
"""Guards the few instructions in which leases are made, shared and dropped."""


@dataclass(frozen=True, slots=True)
class PlacementRef:
    """Where a session works, known without keeping its sandbox open."""

    backend: str | None = None
    spec: BackendSandboxSpec | None = None
    handle_id: str | None = None
    """Identity of a remote sandbox in the registry."""

    workspace: WorkspaceRef | StoredWorkspace | None = None


NOWHERE = PlacementRef()


class Placement:
    """The sandbox of one session: chosen at once, opened on first use, shared by derivations.

    One that begins with the files of another does so again when it was closed and is opened anew.
    """

    __slots__ = ("_lease", "_sandbox", "_stored", "_whereabouts", "backend", "origin", "spec")

    def __init__(
        self,
        backend: str | None = None,
        spec: BackendSandboxSpec | None = None,
        *,
        sandbox: BackendSandbox | None = None,
    ) -> None:
        self.backend: str | None = backend if sandbox is None else sandbox.backend.name
        self.spec: BackendSandboxSpec | None = spec if sandbox is None else sandbox.spec
        self.origin: Origin | None = None if sandbox is None else sandbox.origin
        self._lease: HandleLease | None = None
        self._sandbox: BackendSandbox | None = None
        self._whereabouts: PlacementRef | None = None
        self._stored: StoredSandbox | None = None
        if sandbox is not None:
            self._hold(sandbox)

    @property
    def sandbox(self) -> BackendSandbox | None:
        """The sandbox once it was opened, else None; stays visible after it was closed."""
        sandbox = self._sandbox
        return sandbox if sandbox is not None and sandbox.handle else None

    @property
    def here(self) -> str | None:
        """Handle of the sandbox; before it is open its directory or ""; None when none is held."""
        sandbox = self._sandbox
        if sandbox is None or sandbox.handle:
            return None if sandbox is None else sandbox.handle
        if isinstance(sandbox, StoredSandbox):
            return None  # its record tells
        spec = sandbox.spec if sandbox.origin is None else None
        return (None if spec is None else spec.working_dir) or ""

    @property
    def is_chosen(self) -> bool:
        """Whether the session has a place at all."""
        return self.backend is not None

    @property
    def is_open(self) -> bool:
        """Whether the sandbox is open now."""
        return self._sandbox is not None and self._sandbox.is_open

    @property
    def is_stored(self) -> bool:
        """Whether it is that of a stored session, which this process has not opened."""
        sandbox = self._sandbox or self._stored
        return isinstance(sandbox, StoredSandbox) and not sandbox.is_open

    @property
    def whereabouts(self) -> PlacementRef:
        """Where that is, for the edge by which others know the session; never waits."""
        if self.backend is None:
            return NOWHERE
        sandbox = self._sandbox
        if sandbox is None:
            # One that was closed: what it worked in is still where its files are expected.
            return self._whereabouts or PlacementRef(self.backend, self.spec)
        if self._whereabouts is None:
            self._whereabouts = PlacementRef(
                self.backend, self.spec, sandbox.registry_id, sandbox.workspace_ref
            )
        return self._whereabouts

    @property
    def has_files(self) -> bool:
        """Whether files may be expected there: a sandbox was opened, or begins with others'."""
        return self._sandbox is not None and self._sandbox.workspace_ref.has_files

    def is_in_workspace_of(self, other: Placement) -> bool:
        """Tell whether both work in the same workspace."""
        mine, others = self._sandbox, other._sandbox
        if mine is None or others is None:
            return False
        return mine.workspace_ref.id == others.workspace_ref.id

    async def alook(self) -> None:
        """Have logs told whether the workspace holds files by now."""
        sandbox = self._sandbox
        if sandbox is not None and sandbox.is_open and sandbox.workspace_ref.is_watched:
            await runtime().call_in_worker(sandbox.workspace_ref.look)

    async def arequire(self) -> None:
        """Refuse a workspace of a stored session that is not there.

        Raises:
            WorkspaceLost: It is not there.
            BackendNotFound: The backend of a stored session is none of this process.
        """
        if self._sandbox is not None:
            await self._sandbox.arequire()
        elif self.backend is not None:
            registry.get(self.backend)

    def share(self) -> Placement:
        """Return the placement of a derived session: the same sandbox, one more holder.

        Both share it even if neither has used it yet. One that somebody else closed is closed for
        the derived session too: nothing moves to another place by itself.
        """
        if self.backend is None:
            return Placement()
        with _lock:
            sandbox = self._sandbox
            if sandbox is not None and sandbox.closed:
                shared = Placement(self.backend, self.spec)
                shared._sandbox = sandbox  # a constructor of the same class
                shared.origin = self.origin
                return shared
            return Placement(sandbox=self.held())

    def beginning_with(self, origin: Origin) -> Placement:
        """Return a place of the same kind that begins with files that `origin` finds."""
        sandbox = self.held()
        spec = None if sandbox.spec is None else replace(sandbox.spec, working_dir=None)
        return Placement(sandbox=sandbox.backend.lazy(spec, origin=origin))

    def held(self) -> BackendSandbox:
        """Return the sandbox, opened or not yet; takes the lease on first use.

        Raises:
            RuntimeError: The session has no place, or its sandbox was closed.
        """
        with _lock:
            if self._sandbox is None:
                if self.backend is None:
                    raise RuntimeError(
                        "the session has no sandbox; place it first, for example "
                        'session.to("local")'
                    )
                backend = registry.get(self.backend)
                if self._stored is not None:
                    self._hold(self._stored.again())
                    return self.held()
                # A backend of others may have a `lazy` of its own that knows no origin.
                if self.origin is None:
                    self._hold(backend.lazy(self.spec))
                else:
                    self._hold(backend.lazy(self.spec, origin=self.origin))
            assert self._sandbox is not None
            if self._sandbox.closed:
                raise RuntimeError(
                    "session sandbox is closed; place the session again, for example "
                    f"session.to({self.backend!r})"
                )
            return self._sandbox

    def drop(self) -> None:
        """Give the lease back; backend and spec stay, so the next use opens a new sandbox."""
        sandbox = self._sandbox
        if isinstance(sandbox, StoredSandbox):
            # It is opened again where it was, or not at all.
            self._stored = sandbox
        with _lock:
            if self._lease is not None:
                self._lease.drop()
            if self._sandbox is not None:
                self._whereabouts = self.whereabouts
            self._lease = self._sandbox = None

    def drop_if_closed(self) -> None:
        """Forget a sandbox that somebody else closed."""
        if self._sandbox is not None and self._sandbox.closed:
            self.drop()

    def _hold(self, sandbox: BackendSandbox) -> None:
        self._lease = HandleLease(sandbox)
        self._sandbox = sandbox
        self._whereabouts = None


WorkspaceMode = Literal["require", "rebuild", "none"]
"""Policy for the workspace of a stored session that goes on. `require`: it is there, as the
record says, or nothing goes on. `rebuild`: where it is not, its files are put into a new one from
the record. `none`: it goes on without files, and what needs them is refused."""


class RecordedFiles(Protocol):
    """The files of a workspace as the records of its sessions tell them."""

    @property
    def mode(self) -> WorkspaceMode: ...

    def check(self, stored: StoredWorkspace, backend: str, directory: str) -> None:
        """Refuse a directory whose files are not those; blocks.

        Raises:
            WorkspaceLost: They are not.
        """
        ...

    def rebuild(
        self, backend: Backend, spec: BackendSandboxSpec | None, lost: WorkspaceLost
    ) -> RebuildOrigin:
        """Return an origin that has all of them; blocks.

        Raises:
            RebuildError: Some cannot be had.
        """
        ...


class RebuildOrigin(Protocol):
    """Files from a record with which a workspace begins."""

    async def __call__(self) -> Seed: ...

    async def acheck(self, digest: str | None) -> None:
        """Refuse a workspace that was filled with others.

        Args:
            digest: That of the workspace.

        Raises:
            WorkspaceLost: It is another one.
        """
        ...


class StoredSandbox(BackendSandbox):
    """The sandbox of a stored session, which opens in the workspace that this had, or not at all.

    Args:
        backend: The backend.
        spec: With what it was opened.
        stored: The workspace.
        files: What the record tells of its files, where that decides too.
    """

    def __init__(
        self,
        backend: Backend,
        spec: BackendSandboxSpec | None,
        stored: StoredWorkspace,
        *,
        files: RecordedFiles | None = None,
    ) -> None:
        super().__init__(backend, "", spec)
        self._workspace_ref = WorkspaceRef(stored)
        self._stored = stored
        self._files = files
        self._rebuilt: RebuildOrigin | None = None
        self._is_checked = False
        self._requiring = threading.Lock()

    def again(self) -> StoredSandbox:
        """Return one for the same workspace, which was not opened yet."""
        stored = self.workspace_ref.look()
        return StoredSandbox(self.backend, self.spec, stored, files=self._files)

    def require(self) -> None:
        """Refuse to go on where the files are not there; blocks.

        Raises:
            WorkspaceLost: They are not.
        """
        with self._requiring:
            if self.native is not None or self._is_checked:
                return
            if self._files is None or self._files.mode != "none":
                self._require()
            self._is_checked = True

    def _require(self) -> None:
        files, name = self._files, self.backend.name
        try:
            directory = self._stored.required_directory(name)
            if files is not None and directory is not None:
                files.check(self._stored, name, directory)
        except WorkspaceLost as lost:
            if files is None or files.mode != "rebuild":
                raise
            spec = None if self.spec is None else replace(self.spec, working_dir=None)
            self.origin = self._rebuilt = files.rebuild(self.backend, spec, lost)
            self.spec = spec
            return
        if directory is not None and self.backend.workspace_directory(self) != directory:
            self.spec = replace(self.spec or BackendSandboxSpec(), working_dir=directory)

    async def arequire(self) -> None:
        await runtime().call_in_worker(self.require)

    async def aopen_native(self) -> Any:
        await self.arequire()
        if self._files is not None and self._files.mode == "none":
            raise BackendError(
                f"this session goes on without its files (workspace='none'), so no tool can use "
                f"the {self.backend.name} sandbox; go on with workspace='rebuild' to have them"
            )
        native = await super().aopen_native()
        if self._rebuilt is not None:
            try:
                await self._rebuilt.acheck(await self.backend.aworkspace_digest(native))
            except BaseException:
                await self.backend.aclose(native)
                raise
            self.workspace_ref.replaced()
            register_live(self.workspace_ref.id, self)
        return native

    async def aopened(self) -> Any:
        native = await super().aopened()
        known_as = self._stored.handle
        if known_as is not None and self._name != known_as:
            # The record knows it by that name, also where the directory is named otherwise now.
            self._name = known_as
            self.workspace_ref.opened(known_as, self.backend.workspace_directory(self))
        return native

    def freeze(self) -> FrozenWorkspace:
        self.require()
        if self._files is not None and self._files.mode == "none":
            raise BackendError("a session that goes on without its files has none to copy")
        return super().freeze()
