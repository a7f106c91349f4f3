"""A loopback chat server for tests: captures requests and gives scripted replies."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from tests.support.chat_replies import Cut, Gate, Reply, model_list, status_error

_CLOSE_TIMEOUT = 50.0
_BACKLOG = 512


@dataclass(frozen=True, slots=True)
class CapturedRequest:
    """One request as it arrived."""

    method: str
    path: str
    """Path and query as sent, such as `/v1/chat/completions`."""
    headers: Mapping[str, str]
    """Names in lower case; of a repeated header the last one."""
    body: bytes
    """The exact bytes."""

    def json(self) -> Any:
        """Decode the body."""
        return json.loads(self.body)


Models = Sequence[str] | Reply | Callable[[CapturedRequest], Reply] | None


class ChatServer:
    """An HTTP server on 127.0.0.1 with a thread of its own; a context manager.

    Each request takes the next queued reply, in order of arrival. When none is left, `answer` is
    asked; without one the client gets status 400 and a text that says so (400 is not retried).

    `GET .../models` takes no queued reply: it is answered from `models`.

    Args:
        answer: Gives the reply to a request when the queue is empty. Called on the server's
            thread, must not block; an exception in it ends the server and is raised by `close()`.
        models: See the attribute.

    Example:
        >>> from tests.support.chat_replies import completion
        >>> with ChatServer() as server:
        ...     server.queue(completion("hello"))
        ...     server.n_queued
        1
    """

    def __init__(
        self,
        answer: Callable[[CapturedRequest], Reply] | None = None,
        *,
        models: Models = None,
    ) -> None:
        self.models = models
        """What `GET .../models` is answered with; with None there is no such path."""
        self.requests: list[CapturedRequest] = []
        """All requests so far, in order of arrival."""
        self.n_connections = 0
        """Connections accepted so far."""
        self.n_open = 0
        """Connections that neither side has closed."""
        self.max_in_flight = 0
        """The most requests that were being answered at one moment."""
        self._answer = answer
        self._replies: deque[Reply] = deque()
        self._arrived = threading.Condition()
        self._in_flight = 0
        self._failure: BaseException | None = None
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=_BACKLOG)
        self._port: int = self._socket.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="chat-server", daemon=True)
        self._thread.start()

    @property
    def base_url(self) -> str:
        """What goes into `Provider(base_url=...)`; ends with `/v1`."""
        return f"http://127.0.0.1:{self._port}/v1"

    @property
    def calls(self) -> list[CapturedRequest]:
        """All requests but those for the list of models."""
        return [request for request in self.requests if not _asks_for_models(request)]

    @property
    def n_queued(self) -> int:
        """Replies that no request has taken yet."""
        return len(self._replies)

    def queue(self, *replies: Reply) -> None:
        """Add replies for the next requests, in order."""
        self._replies.extend(replies)

    def wait_for_requests(self, n_requests: int, *, timeout: float = 50.0) -> None:
        """Wait until `n_requests` have arrived in all.

        Raises:
            TimeoutError: Fewer arrived within `timeout` seconds.
        """
        with self._arrived:
            if not self._arrived.wait_for(lambda: len(self.requests) >= n_requests, timeout):
                raise TimeoutError(
                    f"{len(self.requests)} of {n_requests} requests within {timeout} s"
                )

    def close(self) -> None:
        """Cut every connection and end the thread; never waits for a client or a gate."""
        if self._thread.is_alive():
            with contextlib.suppress(RuntimeError):  # the loop may end by itself in between
                self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(_CLOSE_TIMEOUT)
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        except BaseExceptionGroup as group:
            self._failure = group.exceptions[0]
        except BaseException as exc:  # noqa: BLE001  # handed to the thread that calls close()
            self._failure = exc
        finally:
            self._socket.close()
            self._loop.close()

    async def _serve(self) -> None:
        writers: set[asyncio.StreamWriter] = set()
        async with asyncio.TaskGroup() as group:

            def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                self.n_connections += 1
                writers.add(writer)
                group.create_task(self._converse(reader, writer))

            server = await asyncio.start_server(accept, sock=self._socket, backlog=_BACKLOG)
            try:
                await self._stop.wait()
            finally:
                # What is just being accepted becomes a connection first: asyncio closes it with
                # nobody once its server is closed, and no connection may outlive the loop.
                self._loop.remove_reader(self._socket)
                for _ in range(3):
                    await asyncio.sleep(0)
                server.close()
                for writer in writers:
                    writer.transport.abort()  # ends each conversation, read or write
                await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection until either side ends it."""
        self.n_open += 1
        try:
            while (request := await _read_request(reader)) is not None:
                reply = self._take(request)
                self._in_flight += 1
                self.max_in_flight = max(self.max_in_flight, self._in_flight)
                try:
                    if not await self._play(reply, reader, writer):
                        return
                finally:
                    self._in_flight -= 1
        except ConnectionError:
            pass  # the client hung up in the middle of a reply
        finally:
            self.n_open -= 1
            writer.close()

    def _take(self, request: CapturedRequest) -> Reply:
        with self._arrived:
            self.requests.append(request)
            self._arrived.notify_all()
        if _asks_for_models(request):
            return _listing(self.models, request)
        if self._replies:
            return self._replies.popleft()
        if self._answer is not None:
            return self._answer(request)
        return status_error(
            400, "the test queued no reply for this request", code="script_exhausted"
        )

    async def _play(
        self, reply: Reply, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Do the steps of one reply; False when the connection is over."""
        for step in reply.steps:
            match step:
                case bytes():
                    writer.write(step)
                    await writer.drain()
                case Gate():
                    if not await self._stand_at(step, reader):
                        return False
                case Cut():
                    if step.how == "reset":
                        _reset_on_close(writer)
                    return False
        return True

    async def _stand_at(self, gate: Gate, reader: asyncio.StreamReader) -> bool:
        """Wait for the release of a gate; False when the client hung up first."""
        released = asyncio.Event()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # released after the server was closed
                self._loop.call_soon_threadsafe(released.set)

        gate.on_release(wake)
        gate.reached.set()
        waits = (asyncio.ensure_future(released.wait()), asyncio.ensure_future(_hang_up(reader)))
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
        if released.is_set():
            return True
        gate.abandoned.set()
        return False


def _asks_for_models(request: CapturedRequest) -> bool:
    return request.method == "GET" and request.path.partition("?")[0].endswith("/models")


def _listing(models: Models, request: CapturedRequest) -> Reply:
    if models is None:
        return status_error(404, "no such path")
    if callable(models):
        return models(request)
    return models if isinstance(models, Reply) else model_list(*models)


async def _read_request(reader: asyncio.StreamReader) -> CapturedRequest | None:
    """The next request of a connection, or None at its end."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")[:-2]
        pairs = (line.partition(":") for line in lines)
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
    except asyncio.IncompleteReadError:
        return None
    method, path, _ = first.split(" ")
    return CapturedRequest(method, path, headers, body)


async def _hang_up(reader: asyncio.StreamReader) -> None:
    """Return when the client closes its side; it sends nothing while it waits for a reply."""
    with contextlib.suppress(ConnectionError):
        await reader.read(1)


def _reset_on_close(writer: asyncio.StreamWriter) -> None:
    connection = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
