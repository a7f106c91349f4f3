"""The backend whose sandboxes are containers of an OpenSandbox server."""

from __future__ import annotations

import weakref
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from rath._async.runtime import runtime
from rath.backend.abc import Backend, BackendSandbox, BackendSandboxSpec, SandboxIdentity
from rath.backend.capabilities import Capabilities, IsolationLevel
from rath.backend.file_tools import OutsideWorkspace
from rath.backend.opensandbox.changes import ScanFailed, observed, workspace_digest
from rath.backend.opensandbox.connection import (
    ROOT,
    RemoteError,
    SandboxGone,
    ServerAccess,
    failure_of,
    find_connection,
    unavailable_reason,
)
from rath.backend.opensandbox.files import absolute, run_file_operation
from rath.backend.opensandbox.processes import run_code, run_command
from rath.backend.opensandbox.sandbox import RemoteSandbox, load_client, open_new
from rath.backend.opensandbox.snapshots import (
    TREES,
    RemoteFrozen,
    SnapshotFailed,
    Start,
    freeze,
)
from rath.backend.results import ToolExecutionFailure, ToolResult
from rath.backend.snapshots import FrozenWorkspace, Seed, UnopenedFiles
from rath.backend.tool_types import (
    ALL_CALLS,
    BackendTool,
    BackendToolCodeRun,
    BackendToolCommandRun,
    FileTool,
)
from rath.errors import BackendError, BackendSandboxClosed, UnsupportedBackendTool

if TYPE_CHECKING:
    from rath.backend.opensandbox.client import Client

T = TypeVar("T")


class OpenSandboxBackend(Backend):
    """Runs tools in containers of an OpenSandbox server.

    - The server is the one that `OPEN_SANDBOX_DOMAIN` names, else the one of the `backend` section
      of a config; its key comes from `OPEN_SANDBOX_API_KEY` or stands beside the domain.
    - The workspace is `/workspace` inside. `spec.working_dir` is mounted there, which the server
      must allow. Absolute paths mean the container's; relative ones stay in the workspace.
    - Commands and code run one at a time in one sandbox, with a deadline of 120 s and 90 s unless
      they say otherwise. An interpreter keeps its state between runs.
    - A sandbox lives 10 minutes unless `spec.timeout` says otherwise; `renew` lets it live longer.

    Args:
        domain: The server, `host:port` or an address; by default the environment or a config.
        api_key: The key that it asks for.
    """

    name = "opensandbox"
    reads_parts = True

    def __init__(self, *, domain: str | None = None, api_key: str | None = None) -> None:
        # A closure, since the repr of a `partial` would show the key.
        self._find: Callable[[], ServerAccess] = lambda: find_connection(domain, api_key)
        self._open: weakref.WeakSet[RemoteSandbox] = weakref.WeakSet()
        self._unopened: UnopenedFiles[RemoteFrozen] = UnopenedFiles()

    @classmethod
    def is_available(cls) -> bool:
        """Return whether the SDK is installed and a server is named; it is not asked."""
        return unavailable_reason() is None

    @classmethod
    def unavailable_reason(cls) -> str | None:
        return unavailable_reason()

    @classmethod
    def capabilities(cls) -> Capabilities:
        return Capabilities(
            isolation=IsolationLevel.CONTAINER,
            supports_command=True,
            supports_filesystem=True,
            supports_code_interpreter=True,
            supports_workspace_copy=True,
            observes_effects=True,
        )

    @classmethod
    def supported_calls(cls) -> frozenset[type[BackendTool]]:
        return ALL_CALLS

    def sandbox_count(self) -> int:
        """Return how many sandboxes this process holds open."""
        return len(self._open)

    def attach(self, remote_id: str, *, spec: BackendSandboxSpec | None = None) -> BackendSandbox:
        """Return a sandbox that is on the server already, once it answers; waits.

        It is left alone at interpreter exit; closing it ends it on the server, `detach` does not.

        Args:
            remote_id: Its id, the `handle` under which it was opened.
            spec: What it was opened with, for messages and for how effects are looked for.

        Raises:
            BackendSandboxClosed: The server has no such sandbox.
            BackendError: It cannot be reached.
        """
        if not remote_id:
            raise ValueError("attach needs the id of a sandbox, got an empty text")
        sandbox = BackendSandbox(self, remote_id, spec)
        native: RemoteSandbox = sandbox.native
        try:
            self._run(native, native.client, "attaching to")
        except BackendError:
            self._open.discard(native)
            raise
        return sandbox

    def detach(self, sandbox: BackendSandbox) -> str:
        """Let go of a sandbox that goes on on the server, and return the id to attach to; waits.

        Afterwards the handle counts as closed. Frozen files that somebody holds are kept in a
        snapshot first.

        Raises:
            BackendSandboxClosed: It is closed.
            BackendError: Such files cannot be kept; the sandbox is as it was.
        """
        native = self._native(sandbox)
        runtime().run(partial(_secure, native), label=f"keeping files of {native.handle}")
        sandbox.closed = True
        runtime().forget(sandbox)
        self._open.discard(native)
        runtime().run(native.leave, label=f"detaching from {native.handle}")
        return native.handle

    def renew(self, sandbox: BackendSandbox, lifetime: timedelta) -> datetime:
        """Let a sandbox live so long from now on, and return until when; waits.

        Raises:
            BackendSandboxClosed: It is closed, or the server has it no more.
            BackendError: The server refused it or cannot be reached.
        """
        return self._ask(sandbox, lambda client: client.renew(lifetime), "renewing")

    def snapshot(self, sandbox: BackendSandbox, name: str | None = None) -> str:
        """Ask the server for a snapshot of a sandbox and return its id; waits for the answer only.

        What is mounted, as `spec.working_dir` is, belongs to no snapshot.

        Raises:
            BackendSandboxClosed: It is closed, or the server has it no more.
            BackendError: The server refused it or cannot be reached.
        """
        return self._ask(sandbox, lambda client: client.snapshot(name), "a snapshot of")

    def open_snapshot(
        self, snapshot_id: str, *, spec: BackendSandboxSpec | None = None
    ) -> BackendSandbox:
        """Open a sandbox that begins as a snapshot was; waits. `spec.image` means nothing here.

        Raises:
            BackendError: It could not be opened.
        """
        return _SnapshotSandbox(self, snapshot_id, spec).ensure_open()

    def adopt(self, sandbox: BackendSandbox) -> RemoteSandbox:
        native = self._sandbox(sandbox.handle, sandbox.spec)
        self._open.add(native)
        return native

    def identity(self, sandbox: BackendSandbox) -> SandboxIdentity:
        native: RemoteSandbox | None = sandbox.native
        isolation = self.capabilities().isolation.value
        layer = None if native is None else native.layer
        return SandboxIdentity(self.name, sandbox.handle, isolation, ROOT, ROOT, layer)

    def freeze(self, sandbox: BackendSandbox) -> FrozenWorkspace:
        """Return the files of a sandbox as they are now; must not block.

        Before the next operation that may change them, they are kept in a snapshot.

        Raises:
            BackendSandboxClosed: It was closed.
            BackendError: Its workspace is a `working_dir`, which belongs to no snapshot.
        """
        return freeze(sandbox, self._unopened, self._open_frozen)

    async def aopen_copy(self, seed: Seed, spec: BackendSandboxSpec | None) -> RemoteSandbox:
        frozen = RemoteFrozen.require(seed.frozen)
        try:
            start = await frozen.astart()
        except SnapshotFailed as exc:
            raise BackendError(f"a copy of a workspace cannot be opened: {exc}") from exc
        spec = start.spec if spec is None else replace(spec, working_dir=None)
        changes = {**start.changes, **seed.changes}
        sandbox = await self._open_frozen(Start(spec, start.snapshot, changes), begin=frozen)
        sandbox.layer = None if start.snapshot is None else "snapshot"
        self._open.add(sandbox)
        return sandbox

    async def aopen(self, spec: BackendSandboxSpec | None) -> RemoteSandbox:
        return await self.aopen_new(spec)

    async def aopen_new(
        self, spec: BackendSandboxSpec | None, *, snapshot_id: str | None = None
    ) -> RemoteSandbox:
        """Open a sandbox on the server, from an image or a snapshot."""
        access = await runtime().call_in_worker(self._find)
        client = await open_new(access, spec or BackendSandboxSpec(), snapshot_id=snapshot_id)
        sandbox = self._sandbox(client.id, spec, client)
        self._open.add(sandbox)
        return sandbox

    async def aclose(self, native: RemoteSandbox) -> None:
        self._open.discard(native)
        # At exit nobody is left who could use what is frozen.
        keep = nullcontext() if runtime().is_closing else TREES.writing(native.tree)
        try:
            async with keep:
                await _end(native)
        except SnapshotFailed as exc:
            was_removed = native.is_removed
            await _end(native)
            if not was_removed:
                raise BackendError(
                    f"the sandbox {native.handle} was ended, and files of it that a fork or undo "
                    f"still holds are lost: {exc}"
                ) from exc

    async def adispatch(self, native: RemoteSandbox, op: BackendTool) -> ToolResult | bool:
        operation = "the operation"
        try:
            operation, run = self._operation(native, op)
            if op.read_only:
                return await native.use(run)
            async with TREES.writing(native.tree):
                if not isinstance(op, (BackendToolCommandRun, BackendToolCodeRun)):
                    return await native.use(run)
                async with native.running:
                    await native.client()
                    return await observed(native, partial(native.use, run))
        except SnapshotFailed as exc:
            if native.is_removed:
                return _closed_failure(native)
            message = (
                "nothing was done: somebody holds the files as they are, which takes a snapshot, "
                f"and {exc}; close the fork that holds them, or share the workspace"
            )
            return ToolExecutionFailure("workspace_copy_failed", message, native.handle)
        except SandboxGone:
            return _closed_failure(native)
        except OutsideWorkspace as exc:
            return ToolExecutionFailure("path_outside_workspace", str(exc))
        except RemoteError as exc:
            return failure_of(exc, operation)

    async def aworkspace_digest(self, native: RemoteSandbox) -> str | None:
        try:
            async with native.running:
                return await workspace_digest(native)
        except (ScanFailed, RemoteError, SandboxGone):
            return None

    def _operation(
        self, native: RemoteSandbox, op: BackendTool
    ) -> tuple[str, Callable[[Client], Awaitable[ToolResult | bool]]]:
        """Return the name of an operation in messages, and what runs it."""
        if isinstance(op, BackendToolCommandRun):
            cwd = ROOT if op.cwd is None else absolute(op.cwd)
            return "the command", lambda client: run_command(client, op, cwd)
        if isinstance(op, BackendToolCodeRun):
            return "the code", lambda client: run_code(client, op)
        if isinstance(op, FileTool):
            name = f"the request for {op.path!r}"
            return name, lambda client: run_file_operation(native, client, op)
        raise UnsupportedBackendTool(type(op), self.name)

    def _ask(self, sandbox: BackendSandbox, ask: Callable[[Client], Awaitable[T]], label: str) -> T:
        native = self._native(sandbox)
        return self._run(native, partial(native.use, ask), label)

    def _run(self, native: RemoteSandbox, call: Callable[[], Awaitable[T]], label: str) -> T:
        """Run a call that does not belong to an operation; raises `BackendError`."""

        async def run() -> T:
            try:
                return await call()
            except SandboxGone as exc:
                raise BackendSandboxClosed(native.handle) from exc
            except RemoteError as exc:
                raise native.unreachable(exc) from exc

        return runtime().run(run, label=f"{label} {native.handle}")

    def _native(self, sandbox: BackendSandbox) -> RemoteSandbox:
        native = sandbox.native
        if sandbox.closed or not isinstance(native, RemoteSandbox):
            raise BackendSandboxClosed(sandbox.handle)
        return native

    async def _open_frozen(
        self, start: Start, *, begin: RemoteFrozen | None = None
    ) -> RemoteSandbox:
        """Open a sandbox that begins with frozen files; it is not counted."""
        snapshot_id = None if start.snapshot is None else start.snapshot.id
        access = await runtime().call_in_worker(self._find)
        client = await open_new(access, start.spec, snapshot_id=snapshot_id, changes=start.changes)
        return self._sandbox(client.id, start.spec, client, begin)

    def _sandbox(
        self,
        handle: str,
        spec: BackendSandboxSpec | None,
        client: Client | None = None,
        begin: RemoteFrozen | None = None,
    ) -> RemoteSandbox:
        async def connect() -> Client:
            module = await runtime().call_in_worker(load_client)
            access = await runtime().call_in_worker(self._find)
            connected: Client = await module.Client.connect(access, handle)
            return connected

        tree = TREES.at(handle)
        return RemoteSandbox(handle, spec, connect, tree=tree, client=client, begin=begin)


async def _end(native: RemoteSandbox) -> None:
    try:
        await native.close()
    except RemoteError as exc:
        raise BackendError(
            f"the sandbox {native.handle} could not be ended on the server, where it ends with "
            f"its lifetime: {exc}"
        ) from exc


async def _secure(native: RemoteSandbox) -> None:
    try:
        async with TREES.writing(native.tree):
            pass
    except SnapshotFailed as exc:
        raise BackendError(
            f"the sandbox {native.handle} was not let go, since a fork or undo holds its "
            f"files as they are and {exc}; close that first"
        ) from exc


def _closed_failure(native: RemoteSandbox) -> ToolExecutionFailure:
    return ToolExecutionFailure("sandbox_closed", native.removal_message(), native.handle)


class _SnapshotSandbox(BackendSandbox):
    """A sandbox that begins as a snapshot was."""

    def __init__(
        self, backend: OpenSandboxBackend, snapshot_id: str, spec: BackendSandboxSpec | None
    ) -> None:
        super().__init__(backend, "", spec)
        self._opensandbox = backend
        self._snapshot_id = snapshot_id

    async def aopen_native(self) -> RemoteSandbox:
        return await self._opensandbox.aopen_new(self.spec, snapshot_id=self._snapshot_id)
