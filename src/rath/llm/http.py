"""HTTP/1.1 on asyncio: prepared bytes out over pooled connections, status, headers and chunks back.

Our own because of what clients of the package index cost, a request on a connection that is open,
and among 200 at once, in CPU: `httpx2` 0.7 and 1.5 ms, `niquests` 0.9 and 1 ms, `aiohttp` 0.12 and
0.15 ms with 0.27 s to be imported; `pyreqwest` 0.08 ms, but it works in no forked child and aborts
some processes at their exit. This takes 0.06 ms. The parser is `httptools`, that of Node.js.
HTTP/2 is not spoken: a request has a connection for itself, and no model endpoint needs more.

Used on one event loop. Nothing is sent twice: a connection that the other side has closed is found
out before anything is written to it, and one that was written is not written again here. Whether a
failed request is tried once more, its caller decides (`rath.llm.transport`).
"""

from __future__ import annotations

import asyncio
import contextvars
import select
import socket
import ssl
import zlib
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import field
from functools import partial
from typing import Any, NamedTuple, TypeVar, cast

import httptools

from rath._core.dataclasses import dataclass

MAX_CONNECTIONS = 1000
"""How many requests may be in flight to one origin; as in the SDKs of vendors."""

_MAX_IDLE = 200
"""How many connections with nothing to do stay open; a guess."""

IDLE_SECONDS = 5.0
"""How long a connection with nothing to do stays open; as in the SDKs of vendors."""

_STAGGER_SECONDS = 0.25
"""How long an address has before the next one is tried beside it; RFC 8305, section 5."""

_RESOLVED_SECONDS = 30.0
"""How long the addresses of a host are known; a guess."""

_MAX_HEAD_BYTES = 256 * 1024
_MAX_BUFFERED_BYTES = 256 * 1024
"""Of a body that nobody reads; the other side has to wait then."""

_BUFFER_BYTES = 64 * 1024
_INFLATED_AT_ONCE = 1024 * 1024
MAX_BODY_BYTES = 256 * 1024 * 1024
"""Of an answer, once it is not compressed any more; far above what any model endpoint sends."""

_KEEP_ALIVE_PROBES = (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 60), ("TCP_KEEPCNT", 5))
"""A model may be silent for minutes, after which many routers forget a connection; as in SDKs."""


P = TypeVar("P", bound="_Peer")


class HttpError(Exception):
    """A request without a whole answer."""


class ConnectError(HttpError):
    """No connection could be opened; nothing was sent."""


class ConnectTimeout(ConnectError):
    """No connection was open, or free, in time; nothing was sent."""


class ConnectionLost(HttpError):
    """The connection ended before its answer; the request may have arrived."""


class MalformedAnswer(HttpError):
    """An answer that is no HTTP, or beyond a limit."""


class Origin(NamedTuple):
    """Scheme, host and port."""

    scheme: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Proxy:
    """An HTTP proxy, and the value of its `Proxy-Authorization`."""

    origin: Origin
    authorization: str | None = field(default=None, repr=False)


class HttpAnswer:
    """An answer whose body is still coming."""

    def __init__(self, connection: _Connection) -> None:
        self.status: int = 0
        self.reason: str = ""
        self.headers: dict[str, str] = {}
        """By their names in lower case; repeated ones are joined by commas."""
        self._connection: _Connection | None = connection
        self._chunks: deque[bytes] = deque()
        self._n_buffered = self._n_bytes = 0
        self.is_complete: bool = False
        """Whether all of its body has come from the wire."""
        self._error: HttpError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._inflate: Any = None
        self._is_cut = False
        """Whether a part of a compressed body has begun and not ended."""

    async def next_chunk(self) -> bytes:
        """Return the next bytes of the body, and none at its end.

        Raises:
            HttpError: The connection broke, or sent what is no body.
        """
        while not self._chunks:
            if self._error is not None:
                raise self._error
            if self.is_complete:
                return b""
            await self.next_event()
        chunk = self._chunks.popleft()
        self._n_buffered -= len(chunk)
        if self._connection is not None and self._n_buffered <= _MAX_BUFFERED_BYTES // 4:
            self._connection.resume()
        return chunk

    async def read(self) -> bytes:
        """Return the rest of the body.

        Raises:
            HttpError: As `next_chunk`.
        """
        chunks: list[bytes] = []
        while chunk := await self.next_chunk():
            chunks.append(chunk)
        return b"".join(chunks)

    async def aclose(self) -> None:
        """End the answer: a whole one leaves its connection usable, any other one closes it."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.end_answer(is_complete=self.is_complete)

    @property
    def has_head(self) -> bool:
        """Whether status and headers are there.

        Raises:
            HttpError: They will never come.
        """
        if self._error is not None and not self.status:
            raise self._error
        return bool(self.status)

    def add(self, data: bytes) -> None:
        """Take bytes of the body from the wire."""
        if self._inflate is None:
            self._put(data)
            return
        self._is_cut = True
        try:
            while data:
                self._put(self._inflate.decompress(data, _INFLATED_AT_ONCE))
                data = self._inflate.unconsumed_tail
                if self._inflate.eof:
                    # A body may have several parts, each compressed by itself.
                    data = self._inflate.unused_data
                    self._inflate, self._is_cut = _decompressor(), bool(data)
        except zlib.error as exc:
            raise MalformedAnswer(f"its body is not compressed as its headers say: {exc}") from exc

    def finish(self, error: HttpError | None = None) -> None:
        """Take the end of the body, or what kept it from coming."""
        if self.is_complete or self._error is not None:
            return
        if error is None and self._is_cut:
            error = ConnectionLost("its compressed body was cut off")
        self.is_complete, self._error = error is None, error
        self._wake()

    def begin(self, status: int, reason: str, headers: dict[str, str]) -> None:
        """Take status and headers."""
        self.status, self.reason, self.headers = status, reason, headers
        encoding = headers.get("content-encoding", "identity").strip().lower()
        if encoding in ("gzip", "x-gzip", "deflate"):
            self._inflate = _decompressor()
        elif encoding not in ("", "identity"):
            raise MalformedAnswer(
                f"its body has the encoding {encoding!r}, which was not asked for"
            )
        self._wake()

    def _put(self, data: bytes) -> None:
        self._n_bytes += len(data)
        if self._n_bytes > MAX_BODY_BYTES:
            raise MalformedAnswer(f"its body is longer than {MAX_BODY_BYTES} bytes")
        if data:
            self._chunks.append(data)
            self._n_buffered += len(data)
            if self._n_buffered > _MAX_BUFFERED_BYTES and self._connection is not None:
                self._connection.pause()
            self._wake()

    def next_event(self) -> asyncio.Future[None]:
        """Return the next event: head, bytes or end; one waits for it at a time."""
        self._waiter = asyncio.get_running_loop().create_future()
        return self._waiter

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class _Peer(asyncio.BaseProtocol):
    """The other side of a connection."""

    transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def abort(self) -> None:
        """Close without waiting for anything."""
        if self.transport is not None:
            self.transport.abort()


class _Connection(_Peer, asyncio.BufferedProtocol):
    """One connection of a pool: a request at a time, and the parser of its answer."""

    def __init__(self, pool: HttpPool) -> None:
        self._pool = pool
        self._poll = select.poll() if hasattr(select, "poll") else None
        self._answer: HttpAnswer | None = None
        self._parser: Any = None
        self._is_paused = False
        self.idle_since: float = 0.0

    # ------------------------------------------------------------ requests

    def send(self, request: bytes) -> HttpAnswer:
        """Write a request, and return its answer, of which nothing is there yet."""
        assert self.transport is not None
        self._answer = answer = HttpAnswer(self)
        self._head: dict[str, str] = {}
        self._reason = b""
        self._n_head = 0
        self._has_surplus = self._stays_open = False
        self.transport.write(request)
        return answer

    def end_answer(self, *, is_complete: bool) -> None:
        """Give the connection back, or close it where more of the answer may come."""
        self._answer = self._parser = None
        self.resume()
        is_usable = is_complete and self._stays_open and not self._has_surplus
        # A server may answer before it has read all of a request.
        is_sent = self.transport is not None and not self.transport.get_write_buffer_size()
        self._pool.take_back(self, is_usable=is_usable and is_sent)

    def is_usable(self) -> bool:
        """Tell whether a request can be written, as far as is known here.

        An idle connection with something to read was closed by the other side, or has sent what
        nobody asked for.
        """
        transport = self.transport
        if transport is None or transport.is_closing():
            return False
        return self._poll is None or not self._poll.poll(0)

    def pause(self) -> None:
        if self.transport is not None and not self._is_paused:
            self._is_paused = True
            self.transport.pause_reading()

    def resume(self) -> None:
        if self.transport is not None and self._is_paused:
            self._is_paused = False
            if not self.transport.is_closing():
                self.transport.resume_reading()

    # ------------------------------------------------------------ events of the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        sock = transport.get_extra_info("socket")
        if self._poll is not None and sock is not None:
            self._poll.register(sock.fileno(), select.POLLIN)

    def get_buffer(self, sizehint: int) -> memoryview:
        del sizehint
        return self._pool.buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._answer is None:
            self.abort()
            return
        if self._parser is None:
            # One for each answer: the state of one that failed halfway is not worth keeping. Not
            # before the answer, since it holds seven objects.
            self._parser = httptools.HttpResponseParser(self)
        try:
            self._parser.feed_data(self._pool.buffer[:nbytes])
            if not self._answer.status:
                self._n_head += nbytes
                if self._n_head > _MAX_HEAD_BYTES:
                    raise MalformedAnswer(f"its headers are longer than {_MAX_HEAD_BYTES} bytes")
        except httptools.HttpParserCallbackError as exc:
            self._fail(exc.__context__ or exc)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade, HttpError) as exc:
            self._fail(exc)

    def connection_lost(self, exc: Exception | None) -> None:
        answer = self._answer
        if answer is not None:
            if exc is None and answer.status and self._ends_with_connection():
                answer.finish()
            else:
                reason = f": {exc}" if exc is not None and str(exc) else ""
                answer.finish(ConnectionLost(f"the connection was closed{reason}"))
        self.transport = None
        self._pool.forget(self)

    # ------------------------------------------------------------ events of the parser

    def on_message_begin(self) -> None:
        # What follows a whole answer belongs to no request.
        self._has_surplus = self._answer is None or self._answer.is_complete

    def on_status(self, reason: bytes) -> None:
        if not self._has_surplus:
            self._reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        self._n_head += len(name) + len(value)
        if self._n_head > _MAX_HEAD_BYTES:
            raise MalformedAnswer(f"its headers are longer than {_MAX_HEAD_BYTES} bytes")
        if self._has_surplus or self._answer is None or self._answer.status:
            return  # of a second answer, or behind the body
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        self._head[key] = f"{self._head[key]}, {text}" if key in self._head else text

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if self._has_surplus:
            return
        if status < 100:
            raise MalformedAnswer(f"it has the status {status}")
        if status >= 200 and self._answer is not None:
            self._answer.begin(status, self._reason.decode("latin-1"), self._head)
        else:
            self._head, self._reason = {}, b""

    def on_body(self, data: bytes) -> None:
        if self._answer is not None and not self._has_surplus:
            self._answer.add(data)

    def on_message_complete(self) -> None:
        # An interim answer (1xx) is followed by the real one.
        if self._answer is not None and self._answer.status and not self._has_surplus:
            # The parser knows it only here.
            self._stays_open = self._parser.should_keep_alive()
            self._answer.finish()

    def _ends_with_connection(self) -> bool:
        return "content-length" not in self._head and "transfer-encoding" not in self._head

    def _fail(self, error: BaseException) -> None:
        if self._answer is not None:
            if not isinstance(error, HttpError):
                error = MalformedAnswer(f"it is no HTTP: {error}")
            self._answer.finish(error)
        self.abort()


class HttpPool:
    """The connections to one origin.

    Args:
        origin: Where requests go.
        tls: For an origin or a proxy with TLS.
        proxy: Through which requests go; None for none.
        max_connections: How many requests may be in flight; others wait.
        idle_seconds: How long a connection with nothing to do stays open.
    """

    def __init__(
        self,
        origin: Origin,
        *,
        tls: ssl.SSLContext | None = None,
        proxy: Proxy | None = None,
        max_connections: int = MAX_CONNECTIONS,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        self._origin = origin
        self._resolving: asyncio.Future[list[str]] | None = None
        self._resolved_at = float("-inf")
        self._tls = tls
        self._proxy = proxy
        self._max_connections = max_connections
        self._idle_seconds = idle_seconds
        self._idle: list[_Connection] = []
        self._open: set[_Connection] = set()
        self._n_opening = 0
        self._n_spare = 0
        """Of those that are being opened, how many no request waits for."""
        self._waiters: deque[asyncio.Future[_Connection | None]] = deque()
        """Each gets a connection, or None where there is room to open one."""
        self._expiry: asyncio.TimerHandle | None = None
        self._is_closed = False
        self.buffer: memoryview[int] = memoryview(bytearray(_BUFFER_BYTES))
        """What any of its connections receives, until that is parsed, in the same step of the loop.

        Without it asyncio allocates 256 KiB for each read, which leaves the heap in pieces.
        """

    async def send(self, request: bytes, *, connect_seconds: float) -> HttpAnswer:
        """Send a request, head and body, and return its answer when status and headers are there.

        Cancelling it closes its connection.

        Args:
            request: All bytes.
            connect_seconds: How long a connection may take to open. How long one may take to become
                free is for the caller to say, who may cancel the wait.

        Raises:
            HttpError: No answer came.
        """
        connection = await self._acquire(connect_seconds)
        answer = connection.send(request)
        try:
            while not answer.has_head:
                await answer.next_event()
        except BaseException:
            await answer.aclose()
            raise
        return answer

    @property
    def is_warm(self) -> bool:
        """Whether a connection is open, or about to be."""
        return bool(self._open or self._n_opening)

    async def warm_up(self, *, connect_seconds: float) -> None:
        """Have a connection open, if there is none."""
        if not self.is_warm:
            self._n_spare = 1
            try:
                connection = await self._connect(connect_seconds)
            finally:
                self._n_spare = 0
            self.take_back(connection, is_usable=True)

    async def aclose(self) -> None:
        """Close every connection, those in use as well."""
        self._is_closed = True
        if self._expiry is not None:
            self._expiry.cancel()
        while self._open:
            for connection in tuple(self._open):
                connection.abort()
                if connection.transport is None:
                    self._open.discard(connection)
            await asyncio.sleep(0)  # the loop tells each that it is closed

    # ------------------------------------------------------------ for connections

    def take_back(self, connection: _Connection, *, is_usable: bool) -> None:
        """Take a connection whose answer has ended."""
        if not is_usable or self._is_closed:
            connection.abort()
            return
        # Before the limit: thousands of answers may come at once while thousands wait.
        if self._wake_one(connection):
            return
        if len(self._idle) >= _MAX_IDLE:
            connection.abort()
            return
        loop = asyncio.get_running_loop()
        connection.idle_since = loop.time()
        self._idle.append(connection)
        if self._expiry is None:
            self._set_expiry(self._idle_seconds)

    def forget(self, connection: _Connection) -> None:
        """Forget a connection that is closed."""
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        self._wake_one()

    # ------------------------------------------------------------ inner

    async def _acquire(self, seconds: float) -> _Connection:
        while True:
            while self._idle:
                connection = self._idle.pop()
                if connection.is_usable():
                    return connection
                connection.abort()
            has_room = len(self._open) + self._n_opening < self._max_connections
            if has_room and self._n_spare <= len(self._waiters):
                return await self._connect(seconds)
            waiter: asyncio.Future[_Connection | None]
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                given = await waiter
            except BaseException:
                if waiter.done() and not waiter.cancelled():
                    self._pass_on(waiter.result())
                raise
            if given is not None:
                if given.is_usable():
                    return given
                given.abort()

    def _pass_on(self, given: _Connection | None) -> None:
        """Give what a request has got, that needs it no more, to another one."""
        if given is None:
            self._wake_one()
        else:
            self.take_back(given, is_usable=given.is_usable())

    def _wake_one(self, connection: _Connection | None = None) -> bool:
        """Give a connection, or room for one, to who has waited longest; tell if there is any."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(connection)
                return True
        return False

    async def _connect(self, seconds: float) -> _Connection:
        self._n_opening += 1
        deadline = asyncio.timeout(seconds)
        # In no context: a connection would hold that of the run that opened it.
        opening = asyncio.get_running_loop().create_task(
            self._open_connection(), context=contextvars.Context()
        )
        try:
            async with deadline:
                connection = await opening
        except (OSError, UnicodeError) as exc:
            self._resolved_at = float("-inf")  # the host may have moved
            if deadline.expired():
                raise ConnectTimeout(f"no connection in {seconds:g} s") from exc
            raise ConnectError(f"{type(exc).__name__}: {exc}") from exc
        except BaseException:
            opening.add_done_callback(_abort_opened)  # it may be open by now
            raise
        finally:
            self._n_opening -= 1
            self._wake_one()
        if self._is_closed:
            connection.abort()
            raise ConnectError("the pool is closed")
        if connection.transport is None or connection.transport.is_closing():
            raise ConnectError("the connection was closed as soon as it was open")
        self._open.add(connection)
        return connection

    def _set_expiry(self, seconds: float) -> None:
        # In no context: that of a run would live as long.
        self._expiry = asyncio.get_running_loop().call_later(
            seconds, self._expire, context=contextvars.Context()
        )

    def _expire(self) -> None:
        self._expiry = None
        now = asyncio.get_running_loop().time()
        # The one that was used last is used next, so those at the front have waited longest.
        while self._idle and now - self._idle[0].idle_since >= self._idle_seconds:
            self._idle.pop(0).abort()
        if self._idle:
            self._set_expiry(self._idle[0].idle_since + self._idle_seconds - now)

    async def _open_connection(self) -> _Connection:
        origin, proxy, tls = self._origin, self._proxy, self._tls
        first = origin if proxy is None else proxy.origin
        if first.scheme == "http" and (proxy is None or origin.scheme == "http"):
            return await self._open_first(first, lambda: _Connection(self), None)
        if proxy is None:
            return await self._open_first(first, lambda: _Connection(self), tls)
        first_tls = tls if first.scheme == "https" else None
        if origin.scheme == "http":
            return await self._open_first(first, lambda: _Connection(self), first_tls)
        tunnel = await self._open_first(first, _Tunnel, first_tls)
        try:
            await tunnel.connect(origin, proxy.authorization)
            connection = _Connection(self)
            loop = asyncio.get_running_loop()
            assert tls is not None
            assert tunnel.transport is not None
            transport = await loop.start_tls(
                tunnel.transport, connection, tls, server_hostname=origin.host
            )
            if transport is None:
                raise ConnectionResetError("closed while TLS was set up")
            connection.connection_made(transport)
        except BaseException:
            tunnel.abort()
            raise
        return connection

    async def _resolve(self, origin: Origin) -> list[str]:
        """Return the addresses of a host, the best one first; those who ask at once ask once."""
        loop = asyncio.get_running_loop()
        is_fresh = loop.time() - self._resolved_at < _RESOLVED_SECONDS
        if self._resolving is None or (self._resolving.done() and not is_fresh):
            self._resolved_at = loop.time()
            self._resolving = loop.create_task(_addresses_of(origin), context=contextvars.Context())
        try:
            # Shielded: who gives up waiting does not take the answer from the others.
            return await asyncio.shield(self._resolving)
        except OSError:
            self._resolved_at = float("-inf")
            raise

    async def _open_first(
        self, origin: Origin, make: Callable[[], P], tls: ssl.SSLContext | None
    ) -> P:
        """Open a connection to the first address that takes one."""
        addresses = await self._resolve(origin)
        loop = asyncio.get_running_loop()

        async def open_one(address: str) -> P:
            transport, protocol = await loop.create_connection(
                make, address, origin.port, ssl=tls, server_hostname=origin.host if tls else None
            )
            _keep_alive(transport.get_extra_info("socket"))
            return protocol

        if len(addresses) == 1:
            return await open_one(addresses[0])
        return await _first_open([partial(open_one, each) for each in addresses])


class _Tunnel(_Peer, asyncio.Protocol):
    """Asks a proxy for a way to an origin."""

    def __init__(self) -> None:
        self._received = b""
        self._answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def connect(self, origin: Origin, authorization: str | None) -> None:
        """Have the proxy connect to `origin`.

        Raises:
            OSError: It does not.
        """
        assert self.transport is not None
        place = f"{_bracketed(origin.host)}:{origin.port}"
        head = f"CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n"
        if authorization is not None:
            head += f"Proxy-Authorization: {authorization}\r\n"
        self.transport.write(f"{head}\r\n".encode("latin-1"))
        await self._answered
        status = self._received.split(b"\r\n", 1)[0].decode("latin-1")
        parts = status.split(" ", 2)
        if len(parts) < 2 or not parts[0].startswith("HTTP/1.") or parts[1] != "200":
            raise ConnectionRefusedError(f"the proxy answered {status[:100]!r}")
        if not self._received.endswith(b"\r\n\r\n"):
            raise ConnectionRefusedError("the proxy sent more than an answer")

    def data_received(self, data: bytes) -> None:
        self._received += data
        if b"\r\n\r\n" in self._received:
            self._answer(None)
        elif len(self._received) > _MAX_HEAD_BYTES:
            self._answer(ConnectionRefusedError("the headers of the proxy never end"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._answer(ConnectionResetError("the proxy closed the connection"))

    def _answer(self, error: OSError | None) -> None:
        if not self._answered.done():
            if error is None:
                self._answered.set_result(None)
            else:
                self._answered.set_exception(error)


def _abort_opened(opening: asyncio.Task[_Connection]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().abort()


def _decompressor() -> Any:
    return zlib.decompressobj(zlib.MAX_WBITS | 32)  # 32: with the header of gzip or of zlib


async def _addresses_of(origin: Origin) -> list[str]:
    found = await asyncio.get_running_loop().getaddrinfo(
        origin.host, origin.port, type=socket.SOCK_STREAM
    )
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


def _keep_alive(sock: Any) -> None:
    with suppress(OSError, AttributeError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEP_ALIVE_PROBES:
            if hasattr(socket, name):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


async def _first_open(attempts: Sequence[Callable[[], Coroutine[Any, Any, P]]]) -> P:
    """Return the connection that is open first; each attempt has a head start on the next.

    Raises:
        OSError: That of the last attempt, when all fail.
    """
    pending: set[asyncio.Task[P]] = set()
    opened: list[P] = []
    error: BaseException | None = None
    try:
        for number, attempt in enumerate(attempts, 1):
            pending.add(asyncio.create_task(attempt()))
            while pending and not opened:
                timeout = _STAGGER_SECONDS if number < len(attempts) else None
                done, pending = await asyncio.wait(
                    pending, timeout=timeout, return_when=asyncio.FIRST_COMPLETED
                )
                for task in done:
                    error = task.exception()
                    if error is None:
                        opened.append(task.result())
                if timeout is not None:
                    break
            if opened:
                return opened.pop(0)
        assert error is not None
        raise error
    finally:
        for task in pending:
            task.cancel()
        late = await asyncio.gather(*pending, return_exceptions=True)
        for each in (*opened, *late):
            if not isinstance(each, BaseException):
                each.abort()


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
