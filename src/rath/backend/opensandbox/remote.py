"""An open sandbox of a server: its client, its locks, and whether it is still there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Literal, TypeVar

from rath.backend.abc import BackendSandboxSpec
from rath.backend.changes import ScanCache
from rath.backend.opensandbox.contents import Contents
from rath.backend.opensandbox.defaults import LIFETIME
from rath.backend.opensandbox.exact_changes import ExactChanges
from rath.backend.opensandbox.faults import NotReached, Refused, RemoteFault
from rath.errors import BackendError

if TYPE_CHECKING:
    from rath.backend.opensandbox.client import Client
    from rath.backend.opensandbox.frozen import RemoteFrozen
    from rath.backend.snapshots import WorkspaceTree

T = TypeVar("T")


class Gone(Exception):
    """The server has no such sandbox any more."""


class RemoteSandbox:
    """A sandbox by its id, connected on first use.

    Args:
        handle: Id of the sandbox on the server.
        spec: What it was opened with.
        connect: Makes its client; called once.
        tree: Its workspace among those of this process.
        client: Its client, where there is one already.
        begin: The frozen files with which it began; they are kept as long as it is.
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
        self.is_attached = client is None
        """Whether it was there before, so that its spec may not tell all of it."""
        self.layer: Literal["snapshot"] | None = None
        """What a workspace of its own began with, besides its image."""
        self.spec = spec or BackendSandboxSpec()
        self.lifetime = self.spec.timeout or (None if client is None else LIFETIME)
        """How long the server was asked to let it live, where that is known."""
        self.is_gone = False
        """Whether the server said that it does not know it any more."""
        self.running = asyncio.Lock()
        """Held by the command or the code that runs: one at a time, so that effects are told."""
        self.writing = PathLocks()
        self.contents = Contents()
        self.known: ScanCache = {}
        """Files that were looked at, which are not read again until they change."""
        self.changes = ExactChanges()
        self._connect = connect
        self._client = client
        self._connecting = asyncio.Lock()

    async def client(self) -> Client:
        """Return its client, connected now if it has not been.

        Raises:
            Gone: The server has no such sandbox.
            RemoteFault: It cannot be reached.
        """
        if self.is_gone:
            raise Gone(self.handle)
        async with self._connecting:
            if self._client is None:
                try:
                    self._client = await self._connect()
                except Refused as exc:
                    if not exc.is_missing_sandbox:
                        raise
                    self.is_gone = True
                    raise Gone(self.handle) from exc
        return self._client

    async def use(self, run: Callable[[Client], Awaitable[T]]) -> T:
        """Run an operation on its client; one that fails because it is gone raises `Gone`."""
        client = await self.client()
        try:
            return await run(client)
        except RemoteFault as exc:
            if await self._has_gone(client, exc):
                raise Gone(self.handle) from exc
            raise

    async def close(self) -> None:
        """End it on the server, if it is there, and close the connections."""
        try:
            client = await self.client()
        except Gone:
            await self.leave()
            return
        try:
            await client.kill()
            self.is_gone = True
        finally:
            await client.aclose()

    async def leave(self) -> None:
        """Close the connections and let the sandbox go on."""
        if self._client is not None:
            await self._client.aclose()

    async def _has_gone(self, client: Client, fault: RemoteFault) -> bool:
        """Ask the server, where the fault may come from a sandbox that has ended."""
        if isinstance(fault, Refused) and fault.status < 500 and not fault.is_missing_sandbox:
            return False
        try:
            self.is_gone = not await client.is_there()
        except RemoteFault:
            return False
        return self.is_gone


def gone_message(sandbox: RemoteSandbox) -> str:
    """Return what is said of a sandbox that the server does not have any more."""
    lifetime = "lifetime" if sandbox.lifetime is None else f"lifetime of {sandbox.lifetime}"
    return (
        f"the sandbox {sandbox.handle} is not on the server any more: it was ended there, or its "
        f"{lifetime} was over. Open another one, with a longer `timeout` in its spec if it lived "
        "too short"
    )


def unreachable(handle: str, fault: RemoteFault) -> BackendError:
    """Return the error of a sandbox that cannot be asked."""
    how = "cannot be reached" if isinstance(fault, NotReached) else "could not be used"
    return BackendError(f"the sandbox {handle} {how}: {fault}")


class PathLocks:
    """One lock for each path that is being written; those that nobody uses are forgotten."""

    def __init__(self) -> None:
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}

    def __len__(self) -> int:
        return len(self._locks)

    @asynccontextmanager
    async def holding(self, path: str) -> AsyncGenerator[None]:
        """Be the only one who writes to `path`."""
        lock, n_users = self._locks.get(path, (asyncio.Lock(), 0))
        self._locks[path] = (lock, n_users + 1)
        try:
            async with lock:
                yield
        finally:
            _, n_users = self._locks[path]
            if n_users == 1:
                del self._locks[path]
            else:
                self._locks[path] = (lock, n_users - 1)
