"""The test server: both APIs of OpenSandbox on loopback ports, with faults on demand."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import struct
import tempfile
import threading
import uuid
from collections import Counter
from collections.abc import Coroutine, Mapping
from contextlib import aclosing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Self, TypeVar

from tests.support.chat_replies import Gate
from tests.support.opensandbox_server.container import (
    BrokenExchangeError,
    Exchange,
    remove_tree,
    why_not,
)
from tests.support.opensandbox_server.http import (
    Action,
    Answer,
    CapturedRequest,
    CutHow,
    CutStream,
    Drop,
    Fault,
    Journal,
    Reply,
    encode_chunk,
    encode_head,
    error_reply,
    read_request,
)
from tests.support.opensandbox_server.lifecycle import Lifecycle, Sandbox

API_KEY = "test-key"
DAEMON_PORT = "44772"
_TIMEOUT = 50.0
_METHODS = ("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT")
_PROXY = re.compile(r"/proxy/(\d+)(/.*)?")
_SERVER_PROXY = re.compile(r"(?:/v1)?/sandboxes/([^/]+)(/proxy/\d+.*)")
_FRAME_END = b"\n\n"
_Result = TypeVar("_Result")


class UnavailableError(RuntimeError):
    """The server cannot run here; the text says why."""


class _BreakError(Exception):
    """The connection is to end now."""

    def __init__(self, how: CutHow = "close") -> None:
        super().__init__()
        self.how = how


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
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.domain = f"127.0.0.1:{self._socket.getsockname()[1]}"
        """Host and port, as the SDK takes them."""
        self._journal = Journal()
        self._lifecycle = Lifecycle(
            self._root,
            api_key=self.api_key,
            origin=self.domain,
            on_opened=self._listen,
            on_closed=self._close_port,
        )
        self._servers: dict[str, asyncio.Server] = {}
        self._open: dict[asyncio.StreamWriter, str | None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="opensandbox-server", daemon=True)
        self._thread.start()

    @property
    def variables(self) -> Mapping[str, str]:
        """Environment variables that lead the SDK here."""
        return {"OPEN_SANDBOX_DOMAIN": self.domain, "OPEN_SANDBOX_API_KEY": self.api_key}

    @property
    def requests(self) -> list[CapturedRequest]:
        """All requests so far, in order of arrival."""
        return self._journal.matching("*", "*")

    @property
    def calls(self) -> Counter[tuple[str, str]]:
        """How often each method and path was asked for."""
        return Counter((request.method, request.path) for request in self.requests)

    @property
    def allowed_host_paths(self) -> list[Path]:
        """Directories of the host under which volumes may stand; none at first."""
        return self._lifecycle.allowed_host_paths

    @property
    def sandbox_ids(self) -> list[str]:
        """Sandboxes that are there, oldest first; expired ones may still be among them."""
        return [*self._lifecycle.sandboxes]

    @property
    def snapshot_ids(self) -> list[str]:
        """Snapshots that are there, oldest first."""
        return [*self._lifecycle.snapshots]

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
            action: What happens to them.
            skip: So many fitting requests pass first.
            times: So many are concerned then; None for all.
        """
        self._journal.add(Fault(method, path, action, skip, times))

    def clear_faults(self) -> None:
        """Let everything go well again."""
        self._journal.clear_faults()

    def advance(self, seconds: float) -> None:
        """Let time pass; sandboxes whose time is over are gone when this returns."""
        self._lifecycle.ahead += timedelta(seconds=seconds)
        self._await(self._lifecycle.expire())

    def root_of(self, sandbox_id: str) -> Path:
        """Where the tree of a sandbox stands on this machine; its volumes are not in it."""
        return self._lifecycle.sandboxes[sandbox_id].container.root

    def restart(self) -> None:
        """Break all connections and start the processes of all sandboxes anew; ports stay."""

        async def restart() -> None:
            _abort(list(self._open))
            await self._lifecycle.renew_processes()

        self._await(restart())

    def close(self) -> None:
        """Cut every connection, end every process, delete every file.

        Raises:
            RuntimeError: A daemon failed in a way that is a bug of this server.
        """
        if self._thread.is_alive():
            with contextlib.suppress(RuntimeError):  # the loop may end by itself in between
                self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(_TIMEOUT)
        complaints = self._lifecycle.complaints()
        remove_tree(self._root)
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        if complaints:
            raise RuntimeError(f"the daemon in a sandbox failed:\n{complaints}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _await(self, coroutine: Coroutine[Any, Any, _Result]) -> _Result:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(_TIMEOUT)

    # ------------------------------------------------------------ ports

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
            _abort(writers)
            await self._lifecycle.stop()
            await asyncio.sleep(0)

    def _accept(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        sandbox_id: str | None,
    ) -> None:
        self._open[writer] = sandbox_id
        task = self._loop.create_task(self._converse(reader, writer, sandbox_id))
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

    async def _close_port(self, sandbox: Sandbox) -> None:
        """Close the port of a sandbox that is gone, and break what is connected to it."""
        await self._stop_listening(self._servers.pop(sandbox.id))
        _abort([writer for writer, owner in self._open.items() if owner == sandbox.id])

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

    # ------------------------------------------------------------ connections

    async def _converse(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, sandbox_id: str | None
    ) -> None:
        """Answer the requests of one connection until either side ends it."""
        try:
            while (request := await read_request(reader)) is not None:
                await self._reply(_addressed(request, sandbox_id), writer)
        except _BreakError as exc:
            if exc.how == "reset":
                connection = writer.get_extra_info("socket")
                linger = struct.pack("ii", 1, 0)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        except ConnectionError:
            pass  # the client hung up in the middle of an answer
        finally:
            writer.close()

    async def _reply(self, request: CapturedRequest, writer: asyncio.StreamWriter) -> None:
        action = self._journal.note(request)
        if isinstance(action, Answer):
            reply: Reply | Exchange = action.to_reply()
        else:
            if isinstance(action, Drop) and action.when == "before":
                raise _BreakError(action.how)
            if isinstance(action, Gate):
                await _stand_at(action)
            reply = await self._carry_out(request)
        if isinstance(reply, Exchange):
            await _relay(reply, action, writer)
            return
        if isinstance(action, Drop):
            raise _BreakError(action.how)
        writer.write(reply.encode())
        await writer.drain()

    async def _carry_out(self, request: CapturedRequest) -> Exchange | Reply:
        """Answer as the lifecycle API, or have the daemon of a sandbox answer."""
        if request.sandbox_id is None:
            reply = await self._lifecycle.answer(request)
            own = {"server": "uvicorn", "vary": "Origin", "x-request-id": uuid.uuid4().hex}
            return replace(reply, headers={**own, **reply.headers})
        await self._lifecycle.expire()
        sandbox = self._lifecycle.sandboxes.get(request.sandbox_id)
        if sandbox is None:
            text = f"Sandbox {request.sandbox_id} not found."
            return error_reply(404, "DOCKER::SANDBOX_NOT_FOUND", text)
        if request.path.startswith("/proxy/") or request.method not in _METHODS:
            return Reply(502, b"no service listens on this port")
        try:
            return await sandbox.container.exchange(request)
        except BrokenExchangeError as exc:
            raise _BreakError from exc


async def _relay(exchange: Exchange, action: Action | None, writer: asyncio.StreamWriter) -> None:
    """Pass on what a daemon answers, as far as the fault lets it."""
    async with aclosing(exchange.blocks) as blocks:
        try:
            if isinstance(action, Drop):
                async for _ in blocks:
                    pass
                raise _BreakError(action.how)
            if not exchange.is_stream:
                body = b"".join([block async for block in blocks])
                writer.write(encode_head(exchange.status, exchange.headers, length=len(body)))
                writer.write(body)
                await writer.drain()
                return
            cut = action if isinstance(action, CutStream) else None
            n_sent = 0
            writer.write(encode_head(exchange.status, exchange.headers, length=None))
            async for block in blocks:
                frames = block.split(_FRAME_END)[:-1]
                if cut is not None and n_sent + len(frames) >= cut.n_frames:
                    rest = frames[: cut.n_frames - n_sent]
                    if rest:
                        writer.write(encode_chunk(b"".join(each + _FRAME_END for each in rest)))
                        await writer.drain()
                    raise _BreakError(cut.how)
                n_sent += len(frames)
                writer.write(encode_chunk(block))
                await writer.drain()
            writer.write(encode_chunk(b""))
            await writer.drain()
        except BrokenExchangeError as exc:
            raise _BreakError from exc


def _addressed(request: CapturedRequest, sandbox_id: str | None) -> CapturedRequest:
    """The request with the sandbox it is meant for, and without the prefix of the proxy."""
    path = request.path
    if sandbox_id is None:
        through = _SERVER_PROXY.fullmatch(path)
        if through is None:
            return request
        sandbox_id, path = through[1], through[2]
    proxied = _PROXY.fullmatch(path)
    if proxied is not None and proxied[1] == DAEMON_PORT:
        path = proxied[2] or "/"
    return replace(request, path=path, sandbox_id=sandbox_id)


async def _stand_at(gate: Gate) -> None:
    """Wait for the release of a gate."""
    released = asyncio.Event()
    loop = asyncio.get_running_loop()

    def wake() -> None:
        with contextlib.suppress(RuntimeError):  # released after the server was closed
            loop.call_soon_threadsafe(released.set)

    gate.on_release(wake)
    gate.reached.set()
    await released.wait()


def _abort(writers: list[asyncio.StreamWriter]) -> None:
    for writer in writers:
        writer.transport.abort()
