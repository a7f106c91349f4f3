"""The test server: both APIs of OpenSandbox on loopback ports, with faults on demand."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import tempfile
import threading
from collections import Counter
from collections.abc import Coroutine, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from tests.support.opensandbox_server.connections import Connections
from tests.support.opensandbox_server.container import remove_tree, why_not
from tests.support.opensandbox_server.faults import Action, Fault
from tests.support.opensandbox_server.http import CapturedRequest
from tests.support.opensandbox_server.journal import Journal
from tests.support.opensandbox_server.lifecycle import Lifecycle
from tests.support.opensandbox_server.records import Sandbox
from tests.support.opensandbox_server.runtime import Runtime

API_KEY = "test-key"
_TIMEOUT = 50.0
_BACKLOG = 512
_Result = TypeVar("_Result")


class UnavailableError(RuntimeError):
    """The server cannot run here; the text says why."""


unavailable_reason = why_not
"""Why the server cannot run here; None if it can. The first look takes a short process."""


class OpenSandboxServer:
    """Both APIs on 127.0.0.1 with a thread of its own; a context manager.

    Sandboxes are real processes inside bubblewrap, with trees below a temporary directory of the
    server. No path that a client names reaches another one: only the daemon in a sandbox opens it.

    Raises:
        UnavailableError: Nothing here can hold a sandbox.
    """

    def __init__(self) -> None:
        reason = why_not()
        if reason is not None:
            raise UnavailableError(reason)
        self.api_key = API_KEY
        self._root = Path(tempfile.mkdtemp(prefix="opensandbox-"))
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=_BACKLOG)
        self._port: int = self._socket.getsockname()[1]
        self._journal = Journal()
        self._runtime = Runtime(self._root, on_opened=self._listen, on_closed=self._deafen)
        lifecycle = Lifecycle(self._runtime, api_key=self.api_key, origin=self.domain)
        self._connections = Connections(self._journal, self._runtime, lifecycle)
        self._servers: dict[str, asyncio.Server] = {}
        self._open: dict[asyncio.StreamWriter, str | None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="opensandbox-server", daemon=True)
        self._thread.start()

    @property
    def domain(self) -> str:
        """Host and port, as the SDK takes them."""
        return f"127.0.0.1:{self._port}"

    @property
    def variables(self) -> Mapping[str, str]:
        """Environment variables that lead the SDK here."""
        return {"OPEN_SANDBOX_DOMAIN": self.domain, "OPEN_SANDBOX_API_KEY": self.api_key}

    @property
    def requests(self) -> list[CapturedRequest]:
        """All requests so far, in order of arrival."""
        return self._journal.requests

    @property
    def calls(self) -> Counter[tuple[str, str]]:
        """How often each method and path was asked for."""
        return Counter((request.method, request.path) for request in self.requests)

    @property
    def allowed_host_paths(self) -> list[Path]:
        """Directories of the host under which volumes may stand; none at first."""
        return self._runtime.allowed_host_paths

    @property
    def sandbox_ids(self) -> list[str]:
        """Sandboxes that are there, oldest first; expired ones may still be among them."""
        return [*self._runtime.sandboxes]

    @property
    def snapshot_ids(self) -> list[str]:
        """Snapshots that are there, oldest first."""
        return [*self._runtime.snapshots]

    def matching(self, method: str, path: str) -> list[CapturedRequest]:
        """Requests of a method (or `*`) whose path fits a pattern with `*` and `?`."""
        return self._journal.matching(method, path)

    def wait_for(
        self, method: str, path: str, *, n_requests: int = 1, timeout: float = 50.0
    ) -> None:
        """Wait until so many requests of a kind have arrived in all.

        Raises:
            TimeoutError: Fewer arrived within `timeout` seconds.
        """
        self._journal.wait_for(method, path, n_requests=n_requests, timeout=timeout)

    def inject(
        self, method: str, path: str, action: Action, *, skip: int = 0, times: int | None = 1
    ) -> None:
        """Let something go wrong with requests to come.

        Args:
            method: Such as `POST`, or `*`.
            path: Pattern, such as `/v1/sandboxes/*` or, of the daemon of any sandbox, `/command`.
            skip: So many fitting requests pass first.
            times: So many are concerned then; None for all.
        """
        self._journal.add(Fault(method, path, action, skip=skip, times=times))

    def clear_faults(self) -> None:
        """Let everything go well again."""
        self._journal.clear_faults()

    def advance(self, seconds: float) -> None:
        """Let time pass; sandboxes whose time is over are gone when this returns."""
        self._runtime.clock.advance(seconds)
        self._await(self._runtime.expire())

    def root_of(self, sandbox_id: str) -> Path:
        """Where the tree of a sandbox stands on this machine; its volumes are not in it."""
        return self._runtime.sandboxes[sandbox_id].container.root

    def crash(self, sandbox_id: str) -> None:
        """End the processes of a sandbox; it stays in the list, and its port stays open."""
        self._await(self._runtime.sandboxes[sandbox_id].container.stop())

    def restart(self, *, sandboxes: Literal["fresh", "kept"] = "fresh") -> None:
        """Break all connections, as a restart of the server does; ports stay the same.

        Args:
            sandboxes: `fresh` also starts their processes anew on the same files, so that commands
                and code contexts are forgotten; `kept` leaves them alone.
        """
        self._await(self._renew(sandboxes))

    def close(self) -> None:
        """Cut every connection, end every process, delete every file.

        Raises:
            RuntimeError: A daemon failed in a way that is a bug of this server.
        """
        if self._thread.is_alive():
            with contextlib.suppress(RuntimeError):  # the loop may end by itself in between
                self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(_TIMEOUT)
        complaints = self._runtime.complaints()
        remove_tree(self._root)
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        if complaints:
            raise RuntimeError(f"the daemon in a sandbox failed:\n{complaints}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _await(self, coroutine: Coroutine[Any, Any, _Result]) -> _Result:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(_TIMEOUT)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        except BaseException as exc:  # noqa: BLE001  # handed to the thread that calls close()
            self._failure = exc
        finally:
            self._socket.close()
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()

    async def _serve(self) -> None:
        server = await asyncio.start_server(
            lambda reader, writer: self._accept(reader, writer, None), sock=self._socket
        )
        try:
            await self._stop.wait()
        finally:
            await self._stop_listening(server, *self._servers.values())
            writers = list(self._open)
            for task in [*self._tasks]:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self._abort(writers)
            await self._runtime.stop()
            await asyncio.sleep(0)

    def _accept(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        sandbox_id: str | None,
    ) -> None:
        self._open[writer] = sandbox_id
        talk = self._connections.converse(reader, writer, sandbox_id)
        task = self._loop.create_task(talk)
        self._tasks.add(task)

        def forget(done: asyncio.Task[None]) -> None:
            self._tasks.discard(done)
            self._open.pop(writer, None)
            failure = None if done.cancelled() else done.exception()
            if failure is not None:
                self._failure = self._failure or failure
                self._stop.set()

        task.add_done_callback(forget)

    async def _listen(self, sandbox: Sandbox) -> None:
        """Make the daemon of a new sandbox reachable on a port of its own."""
        server = await asyncio.start_server(
            lambda reader, writer: self._accept(reader, writer, sandbox.id), "127.0.0.1", 0
        )
        sandbox.port = server.sockets[0].getsockname()[1]
        self._servers[sandbox.id] = server

    async def _deafen(self, sandbox: Sandbox) -> None:
        """Close the port of a sandbox that is gone, and break what is connected to it."""
        await self._stop_listening(self._servers[sandbox.id])
        self._servers.pop(sandbox.id)
        self._abort([writer for writer, owner in self._open.items() if owner == sandbox.id])

    async def _stop_listening(self, *servers: asyncio.Server) -> None:
        """Close ports; what is just being accepted becomes a connection first.

        asyncio closes it with nobody once its server is closed, and none may outlive the loop.
        """
        for listening in (each for server in servers for each in server.sockets):
            self._loop.remove_reader(listening)
        for _ in range(3):
            await asyncio.sleep(0)
        for server in servers:
            server.close()

    async def _renew(self, sandboxes: Literal["fresh", "kept"]) -> None:
        self._abort(list(self._open))
        if sandboxes == "fresh":
            await self._runtime.renew_processes()

    @staticmethod
    def _abort(writers: list[asyncio.StreamWriter]) -> None:
        for writer in writers:
            writer.transport.abort()
