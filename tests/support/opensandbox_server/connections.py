"""Connections of both APIs: who is meant by a request, what goes wrong with it, who answers it."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import struct
import uuid
from contextlib import aclosing
from dataclasses import replace
from typing import assert_never

from tests.support.chat_replies import Gate
from tests.support.opensandbox_server.container import BrokenExchangeError, Exchange
from tests.support.opensandbox_server.faults import (
    Action,
    Answer,
    CutHow,
    CutStream,
    Delay,
    Drop,
)
from tests.support.opensandbox_server.http import (
    CapturedRequest,
    Reply,
    encode_chunk,
    encode_head,
    error_reply,
    json_reply,
    read_request,
)
from tests.support.opensandbox_server.journal import Journal
from tests.support.opensandbox_server.lifecycle import Lifecycle
from tests.support.opensandbox_server.runtime import Runtime

DAEMON_PORT = "44772"
_METHODS = ("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT")
_PROXY = re.compile(r"/proxy/(\d+)(/.*)?")
_SERVER_PROXY = re.compile(r"(?:/v1)?/sandboxes/([^/]+)(/proxy/\d+.*)")
_FRAME_END = b"\n\n"


class _BreakError(Exception):
    """The connection is to end now."""

    def __init__(self, how: CutHow = "close") -> None:
        super().__init__()
        self.how = how


class Connections:
    """Serves the requests of connections; for the thread of the server."""

    def __init__(self, journal: Journal, runtime: Runtime, lifecycle: Lifecycle) -> None:
        self._journal = journal
        self._runtime = runtime
        self._lifecycle = lifecycle

    async def converse(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, sandbox_id: str | None
    ) -> None:
        """Answer the requests of one connection until either side ends it.

        Args:
            sandbox_id: The sandbox whose port it came to; None for the server's own.
        """
        try:
            while (request := await read_request(reader)) is not None:
                await self._serve(_addressed(request, sandbox_id), writer)
        except _BreakError as exc:
            if exc.how == "reset":
                _reset_on_close(writer)
        except ConnectionError:
            pass  # the client hung up in the middle of an answer
        finally:
            writer.close()

    async def _serve(self, request: CapturedRequest, writer: asyncio.StreamWriter) -> None:
        action = self._journal.note(request)
        match action:
            case Answer():
                writer.write(action.to_reply().encode())
                await writer.drain()
                return
            case Drop(when="before"):
                raise _BreakError(action.how)
            case Delay():
                await asyncio.sleep(action.seconds)
            case Gate():
                await _stand_at(action)
            case Drop() | CutStream() | None:
                pass
            case _:
                assert_never(action)
        if request.sandbox_id is None:
            reply = await self._lifecycle_reply(request)
        else:
            exchange = await self._begin(request)
            if isinstance(exchange, Exchange):
                await _relay(exchange, action, writer)
                return
            reply = exchange
        if isinstance(action, Drop):
            raise _BreakError(action.how)
        writer.write(reply.encode())
        await writer.drain()

    async def _lifecycle_reply(self, request: CapturedRequest) -> Reply:
        if request.path == "/health":
            return json_reply({"status": "healthy"})
        reply = await self._lifecycle.answer(request)
        own = {"server": "uvicorn", "vary": "Origin", "x-request-id": uuid.uuid4().hex}
        return replace(reply, headers={**own, **reply.headers})

    async def _begin(self, request: CapturedRequest) -> Exchange | Reply:
        """Let the daemon of a sandbox answer; while it is paused, nothing does."""
        await self._runtime.expire()
        sandbox = self._runtime.sandboxes.get(str(request.sandbox_id))
        if sandbox is None:
            text = f"Sandbox {request.sandbox_id} not found."
            return error_reply(404, "DOCKER::SANDBOX_NOT_FOUND", text)
        if request.path.startswith("/proxy/") or request.method not in _METHODS:
            return Reply(502, b"no service listens on this port")
        await sandbox.may_answer.wait()
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
            n_left = action.n_frames if isinstance(action, CutStream) else None
            writer.write(encode_head(exchange.status, exchange.headers, length=None))
            async for block in blocks:
                frames = block.split(_FRAME_END)[:-1]
                if n_left is not None and isinstance(action, CutStream) and len(frames) >= n_left:
                    kept = b"".join(frame + _FRAME_END for frame in frames[:n_left])
                    if kept:
                        writer.write(encode_chunk(kept))
                        await writer.drain()
                    raise _BreakError(action.how)
                n_left = None if n_left is None else n_left - len(frames)
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


def _reset_on_close(writer: asyncio.StreamWriter) -> None:
    connection = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
