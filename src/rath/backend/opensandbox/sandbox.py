"""Sandboxes of a server: opened once for each request, connected, and known to be there or gone."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from uuid import uuid4
from weakref import WeakValueDictionary

from rath._async.runtime import Running, runtime
from rath._core.dataclasses import dataclass
from rath.backend.abc import BackendSandboxSpec
from rath.backend.changes import ScanCache
from rath.backend.opensandbox.changes import RemoteContents, WriteMonitor
from rath.backend.opensandbox.connection import (
    LIFETIME,
    ROOT,
    AnswerLost,
    NotReached,
    RemoteError,
    RequestRefused,
    SandboxGone,
    ServerAccess,
    is_installed,
    strict_workspace_bind,
)
from rath.backend.opensandbox.files import apply_changes
from rath.backend.snapshots import NewFile, WorkspaceTree
from rath.errors import BackendError, MissingExtra

if TYPE_CHECKING:
    from rath.backend.opensandbox.client import Client
    from rath.backend.opensandbox.snapshots import RemoteFrozen

IMAGE = "opensandbox/code-interpreter:v1.1.0"
"""Image with the interpreters of all languages that `run_code` offers."""

ENTRYPOINT = ("/opt/code-interpreter/code-interpreter.sh",)
"""Program that starts the interpreters of `IMAGE`."""

MARK = "rath-opening"
"""Metadata by which the sandbox of a request is found whose answer was lost."""

CPU = "1"
"""The SDK's own default; repeated where memory is limited."""

T = TypeVar("T")

_log = logging.getLogger("rath.backend")


class RemoteSandbox:
    """A sandbox by its id, connected on first use.

    Args:
        handle: Id of the sandbox on the server.
        spec: What it was opened with.
        connect: Makes its client; called once.
        tree: Its workspace among those of this process.
        client: Its client, where there is one already.
        begin: The frozen files with which it began; they are held as long as it is.
    """

    def __init__(
        self,
        handle: str,
        spec: BackendSandboxSpec | None,
        connect: Callable[[], Awaitable[Client]],
        *,
        tree: WorkspaceTree[RemoteFrozen],
        client: Client | None = None,
        begin: RemoteFrozen | None = None,
    ) -> None:
        self.handle = handle
        self.tree = tree
        self.begin = begin
        self.is_attached: bool = client is None
        """Whether it was there before, so that its spec may not tell all of it."""
        self.layer: Literal["snapshot"] | None = None
        """Origin of a workspace of its own, besides its image."""
        self.spec: BackendSandboxSpec = spec or BackendSandboxSpec()
        self.lifetime: timedelta | None = self.spec.timeout or (
            None if client is None else LIFETIME
        )
        """How long the server was asked to let it live, where that is known."""
        self.is_removed: bool = False
        """Whether the server said that it does not know it any more."""
        self.running: asyncio.Lock = asyncio.Lock()
        """Held by the command or the code that runs: one at a time, so that effects are told."""
        self.path_locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self.contents: RemoteContents = RemoteContents()
        self.scan_cache: ScanCache = {}
        """Files of the last scan, which are not read again until they change."""
        self.writes: WriteMonitor = WriteMonitor()
        self._connect = connect
        self._client = client
        self._connecting = asyncio.Lock()

    async def client(self) -> Client:
        """Return its client, connected now if it has not been.

        Raises:
            SandboxGone: The server has no such sandbox.
            RemoteError: It cannot be reached.
        """
        if self.is_removed:
            raise SandboxGone(self.handle)
        async with self._connecting:
            if self._client is None:
                try:
                    self._client = await self._connect()
                except RequestRefused as exc:
                    if not exc.is_missing_sandbox:
                        raise
                    self.is_removed = True
                    raise SandboxGone(self.handle) from exc
        return self._client

    async def use(self, run: Callable[[Client], Awaitable[T]]) -> T:
        """Run an operation on its client; raises `SandboxGone` where that is why it fails."""
        client = await self.client()
        try:
            return await run(client)
        except RemoteError as exc:
            if await self._was_removed(client, exc):
                raise SandboxGone(self.handle) from exc
            raise

    def path_lock(self, path: str) -> asyncio.Lock:
        """Return the lock of those who write to a path; one that nobody uses is forgotten."""
        return self.path_locks.setdefault(path, asyncio.Lock())

    async def close(self) -> None:
        """End it on the server, if it is there, and close the connections."""
        try:
            client = await self.client()
        except SandboxGone:
            await self.leave()
            return
        await client.end()
        self.is_removed = True

    async def leave(self) -> None:
        """Close the connections and let the sandbox go on."""
        if self._client is not None:
            await self._client.aclose()

    async def _was_removed(self, client: Client, error: RemoteError) -> bool:
        """Ask the server, where the error may come from a sandbox that has ended."""
        if isinstance(error, RequestRefused) and not (
            error.status >= 500 or error.is_missing_sandbox
        ):
            return False
        try:
            self.is_removed = not await client.is_there()
        except RemoteError:
            return False
        return self.is_removed

    def removal_message(self) -> str:
        """Return the message of a sandbox that the server does not have any more."""
        lifetime = "lifetime" if self.lifetime is None else f"lifetime of {self.lifetime}"
        return (
            f"the sandbox {self.handle} is not on the server any more: it was ended there, or its "
            f"{lifetime} was over. Open another one, with a longer `timeout` in its spec if it "
            "lived too short"
        )

    def unreachable(self, error: RemoteError) -> BackendError:
        """Return the error of a sandbox that cannot be asked."""
        how = "cannot be reached" if isinstance(error, NotReached) else "could not be used"
        return BackendError(f"the sandbox {self.handle} {how}: {error}")


# ---------------------------------------------------------------- opening


def load_client() -> Any:
    """Import the SDK and return the module that uses it; takes more than half a second at first.

    Raises:
        MissingExtra: It is not installed.
    """
    if not is_installed():
        raise MissingExtra("opensandbox", "the opensandbox backend")
    from rath.backend.opensandbox import client

    return client


def bind_workspace_volumes_from_spec(
    spec: BackendSandboxSpec | None, sandbox_root: str
) -> list[Any] | None:
    """Return the volume that mounts `spec.working_dir`, None where none is asked for.

    Makes the directory on this host, which is right where the server runs here too.

    Args:
        spec: What is opened.
        sandbox_root: Where it is mounted.

    Raises:
        MissingExtra: The SDK is not installed.
        OSError: The directory cannot be made.
    """
    if spec is None or not spec.working_dir:
        return None
    try:
        from opensandbox.models.sandboxes import Volume
    except ImportError as exc:
        raise MissingExtra("opensandbox", "the opensandbox backend") from exc
    path = Path(spec.working_dir).expanduser().resolve()
    path.mkdir(parents=True, exist_ok=True)
    volume = {"name": "rath-workspace", "host": {"path": str(path)}, "mountPath": sandbox_root}
    return [Volume.model_validate(volume)]


async def open_new(
    access: ServerAccess,
    spec: BackendSandboxSpec,
    *,
    snapshot_id: str | None = None,
    changes: Mapping[str, NewFile | None] | None = None,
) -> Client:
    """Open a sandbox with its workspace.

    Args:
        access: The server.
        spec: What to open.
        snapshot_id: Its beginning, in the place of an image.
        changes: Differences in its workspace, by path; None where a file is taken away.

    Raises:
        BackendError: It could not be opened; nothing is left on the server, or the text says so.
        MissingExtra: The SDK is not installed.
    """
    module = await runtime().call_in_worker(load_client)
    try:
        volumes = await runtime().call_in_worker(
            partial(bind_workspace_volumes_from_spec, spec, ROOT)
        )
    except OSError as exc:
        raise BackendError(
            f"the directory {spec.working_dir!r} cannot be made: {exc.strerror or exc}"
        ) from exc
    options: dict[str, Any] = {
        "image": None if snapshot_id is not None else spec.image or IMAGE,
        "snapshot_id": snapshot_id,
        "entrypoint": list(spec.entrypoint or ENTRYPOINT),
        "env": dict(spec.env or {}),
        "timeout": spec.timeout or LIFETIME,
        "volumes": volumes,
    }
    memory = None if spec.limits is None else spec.limits.memory_bytes
    if memory is not None:
        options["resource"] = {"cpu": CPU, "memory": f"{math.ceil(memory / (1 << 20))}Mi"}
    try:
        return await _open(module, access, options, changes or {})
    except RemoteError as exc:
        raise BackendError(
            f"no sandbox could be opened on {access.domain!r} (named by {access.origin}): {exc}"
        ) from exc


async def _open(
    module: Any,
    access: ServerAccess,
    options: dict[str, Any],
    changes: Mapping[str, NewFile | None],
) -> Client:
    try:
        client = await _create_once(module, access, options)
    except RequestRefused as exc:
        if options["volumes"] is None or not exc.is_about_mounts or strict_workspace_bind():
            raise
        _log.warning(
            "the opensandbox server does not mount the working_dir, so the workspace of the "
            "sandbox begins empty and stays apart from it: %s. Set "
            "RATH_OPENSANDBOX_STRICT_WORKSPACE_BIND=1 to make that an error",
            exc,
        )
        options["volumes"] = None
        client = await _create_once(module, access, options)
    if options["volumes"] is None:
        unwanted = _Unwanted(client)
        try:
            await client.make_directory(ROOT)
            await apply_changes(client, changes)
        except RemoteError:
            await unwanted.aclose()
            raise
        except asyncio.CancelledError:
            runtime().close_soon(unwanted)
            raise
    return client


async def _create_once(module: Any, access: ServerAccess, options: dict[str, Any]) -> Client:
    """Create a sandbox by one request that is never sent twice.

    It runs on when this is cancelled, until the server has answered, and the new sandbox is ended
    then: one whose id nobody heard could not be.
    """
    create = partial(_create, module, access, options, uuid4().hex)
    creating = runtime().submit(create, label="opening an opensandbox sandbox")
    try:
        client: Client = await asyncio.wrap_future(creating.future)
    except asyncio.CancelledError:
        creating.is_given_up = True
        creating.future.add_done_callback(partial(_end_unwanted, creating))
        raise
    return client


async def _create(module: Any, access: ServerAccess, options: dict[str, Any], mark: str) -> Client:
    try:
        client: Client = await module.Client.create(access, **options, metadata={MARK: mark})
    except AnswerLost as lost:
        try:
            ids: list[str] = await module.ids_marked(access, MARK, mark)
        except RemoteError as exc:
            raise AnswerLost(
                f"{lost}; whether a sandbox was opened could not be found out either ({exc}). One "
                f"that was has the metadata {MARK}={mark} and ends with its lifetime"
            ) from lost
        if not ids:
            raise
        client = await module.Client.connect(access, ids[0])
    return client


def _end_unwanted(creating: Running, _: object) -> None:
    if creating.future.exception() is None:
        runtime().close_soon(_Unwanted(creating.future.result()))


@dataclass(repr=False)
class _Unwanted:
    """A sandbox that nobody waits for any more."""

    client: Client

    async def aclose(self) -> None:
        """End it on the server."""
        await self.client.end()

    def __repr__(self) -> str:
        return f"<unwanted sandbox {self.client.id}>"
