"""The HTTP client over real connections: hostile answers, reuse, limits, proxies and TLS."""

from __future__ import annotations

import asyncio
import gzip
import ssl
import zlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import pytest
import trustme

from rath.llm.http import (
    ConnectError,
    ConnectionLost,
    ConnectTimeout,
    HttpAnswer,
    HttpError,
    HttpPool,
    MalformedAnswer,
    Origin,
    Proxy,
)
from tests.support.waiting import PATIENCE

T = TypeVar("T")
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

REQUEST = b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n{}"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
HELLO = (200, "OK", b"hello")


def run(test: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(test, PATIENCE))


@dataclass
class Server:
    """A server on 127.0.0.1 and what it has seen."""

    origin: Origin
    n_connections: int = 0
    n_requests: int = 0
    n_open: int = 0
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    def has_accepted(self, n_connections: int) -> bool:
        return self.n_connections == n_connections

    async def until(self, holds: Callable[[], bool]) -> None:
        async with self.changed:
            await self.changed.wait_for(holds)

    async def count(self, **more: int) -> None:
        async with self.changed:
            for name, number in more.items():
                setattr(self, name, getattr(self, name) + number)
            self.changed.notify_all()


@asynccontextmanager
async def serving(talk: Talk, *, tls: ssl.SSLContext | None = None) -> AsyncGenerator[Server]:
    """Serve connections, each by `talk`, until it returns."""
    tasks = set[asyncio.Task[Any]]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(current := asyncio.current_task() or asyncio.create_task(asyncio.sleep(0)))
        await server.count(n_connections=1, n_open=1)
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                await talk(reader, writer)
        finally:
            writer.transport.abort()
            tasks.discard(current)
            await server.count(n_open=-1)

    listener = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    scheme = "http" if tls is None else "https"
    server = Server(Origin(scheme, "127.0.0.1", listener.sockets[0].getsockname()[1]))
    try:
        yield server
    finally:
        listener.close()
        for task in tuple(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def read_request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
    return head + await reader.readexactly(int(length or 0))


def answering(parts: Sequence[bytes], *, ends: bool) -> Talk:
    """Answer each request with the parts, one after another."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_request(reader)
            for part in parts:
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(0)
            if ends:
                writer.close()
                await writer.wait_closed()
                return

    return talk


@asynccontextmanager
async def pool_of(origin: Origin, **options: Any) -> AsyncGenerator[HttpPool]:
    pool = HttpPool(origin, **options)
    try:
        yield pool
    finally:
        await pool.aclose()


async def ask(pool: HttpPool, request: bytes = REQUEST) -> tuple[int, str, bytes]:
    answer = await pool.send(request, connect_seconds=PATIENCE)
    try:
        return answer.status, answer.reason, await answer.read()
    finally:
        await answer.aclose()


def head(*headers: str, status: str = "200 OK") -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status}", *headers, "", ""]).encode()


def compressed(kind: int, data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=kind)
    return packer.compress(data) + packer.flush()


CHUNKED = head("Transfer-Encoding: chunked")
GZIPPED = gzip.compress(b"hello")
LONG = b"z" * 3_000_000

GOOD: dict[str, tuple[Sequence[bytes], bool, tuple[int, str, bytes]]] = {
    "length": ([OK], False, HELLO),
    "byte-by-byte": ([OK[i : i + 1] for i in range(len(OK))], False, HELLO),
    "to-the-end": ([head(), b"hello"], True, HELLO),
    "chunked": ([CHUNKED + b"2\r\nhe", b"\r\n3;x=1\r\nllo\r\n0\r\nT: 1\r\n\r\n"], False, HELLO),
    "after-interim-answers": (
        [head(status="100 Continue"), head("Link: x", status="103 Early Hints") + OK],
        False,
        HELLO,
    ),
    "no-content": ([head(status="204 No Content")], False, (204, "No Content", b"")),
    "no-reason": ([b"HTTP/1.1 200 \r\nContent-Length: 0\r\n\r\n"], False, (200, "", b"")),
    "old-version": ([OK.replace(b"1.1", b"1.0")], True, HELLO),
    "gzip": ([head("Content-Encoding: gzip", f"Content-Length: {len(GZIPPED)}") + GZIPPED], False,
             HELLO),
    "gzip-twice": ([head("Content-Encoding: gzip"), gzip.compress(b"hel"), gzip.compress(b"lo")],
                   True, HELLO),
    "no-gzip-at-all": ([head("Content-Encoding: gzip", "Content-Length: 0", status="401 No")],
                       False, (401, "No", b"")),
    "deflate": ([head("Content-Encoding: deflate"), compressed(15, b"hello")], True, HELLO),
    "much": ([head(f"Content-Length: {len(LONG)}"), LONG], False, (200, "OK", LONG)),
    "redirect": ([head("Location: http://other/", "Content-Length: 0", status="307 Moved")], False,
                 (307, "Moved", b"")),
}  # fmt: skip


@pytest.mark.parametrize("name", GOOD)
def test_an_answer_is_read_in_every_form(name: str) -> None:
    parts, ends, wanted = GOOD[name]

    async def test() -> None:
        async with (
            serving(answering(parts, ends=ends)) as server,
            pool_of(server.origin) as pool,
        ):
            assert await ask(pool) == wanted
            if not ends:
                assert await ask(pool) == wanted
                assert server.n_connections == 1

    run(test())


BAD: dict[str, tuple[Sequence[bytes], type[HttpError], str]] = {
    "nothing": ([], ConnectionLost, "the connection was closed"),
    "half-a-head": ([b"HTTP/1.1 200 OK\r\nConte"], ConnectionLost, "closed"),
    "half-a-body": ([head("Content-Length: 50"), b"hello"], ConnectionLost, "closed"),
    "half-of-the-chunks": ([CHUNKED + b"5\r\nhello\r\n"], ConnectionLost, "closed"),
    "half-of-gzip": ([head("Content-Encoding: gzip") + GZIPPED[:-9]], ConnectionLost, "cut off"),
    "other-protocol": ([b"SSH-2.0-x\r\n\r\n"], MalformedAnswer, "no HTTP"),
    "chunk-without-size": ([CHUNKED + b"zz\r\nhello\r\n"], MalformedAnswer, "no HTTP"),
    "two-lengths": (
        [head("Content-Length: 5", "Content-Length: 6"), b"hello!"], MalformedAnswer, "no HTTP"
    ),
    "length-and-chunks": (
        [head("Content-Length: 5", "Transfer-Encoding: chunked")], MalformedAnswer, "no HTTP"
    ),
    "no-status": ([head("Content-Length: 0", status="000 No")], MalformedAnswer, "status 0"),
    "switch": ([head("Upgrade: x", "Connection: upgrade", status="101 S")], MalformedAnswer, "no"),
    "no-gzip": ([head("Content-Encoding: gzip"), b"hello"], MalformedAnswer, "not compressed"),
    "not-asked-for": ([head("Content-Encoding: br"), b"x"], MalformedAnswer, "encoding 'br'"),
    "endless-head": (
        [head()[:-2], *[b"A: " + b"x" * 60_000 + b"\r\n"] * 9], MalformedAnswer, "longer"
    ),
    "endless-name": ([head()[:-2], *[b"x" * 60_000] * 9], MalformedAnswer, "longer"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_answer_is_an_error_and_closes_the_connection(name: str) -> None:
    parts, kind, words = BAD[name]

    async def test() -> None:
        async with (
            serving(answering(parts, ends=True)) as server,
            pool_of(server.origin) as pool,
        ):
            with pytest.raises(kind, match=words):
                await ask(pool)
            await server.until(lambda: server.n_open == 0)
            with pytest.raises(kind, match=words):
                await ask(pool)
            assert server.n_connections == 2

    run(test())


@pytest.mark.parametrize(
    "answer",
    [OK + b"HTTP/1.1 200 OK\r\n", OK + OK, OK.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)],
    ids=["half-an-answer-more", "an-answer-more", "close"],
)
def test_a_connection_is_not_used_again_after(answer: bytes) -> None:
    async def test() -> None:
        async with (
            serving(answering([answer], ends=False)) as server,
            pool_of(server.origin) as pool,
        ):
            for _ in range(3):
                assert await ask(pool) == HELLO
            assert server.n_connections == 3

    run(test())


def test_a_connection_that_was_closed_meanwhile_is_found_out_before_anything_is_sent() -> None:
    requests: list[bytes] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await read_request(reader))
        writer.write(OK)
        await writer.drain()

    async def test() -> None:
        async with serving(talk) as server, pool_of(server.origin) as pool:
            for n_asked in range(1, 4):
                assert await ask(pool) == HELLO
                # The loop of the pool may not have heard of the end yet; the socket has.
                await server.until(lambda: server.n_open == 0)
                assert len(requests) == n_asked

    run(test())


def test_a_request_that_may_have_arrived_is_not_sent_again() -> None:
    n_read = 0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal n_read
        await read_request(reader)
        n_read += 1
        if n_read == 1:
            writer.write(OK)
            await read_request(reader)
            n_read += 1

    async def test() -> None:
        async with serving(talk) as server, pool_of(server.origin) as pool:
            assert await ask(pool) == HELLO
            with pytest.raises(ConnectionLost):
                await ask(pool)
            assert (n_read, server.n_connections) == (2, 1)

    run(test())


def held(gate: asyncio.Event) -> Talk:
    """Answer each request when the gate is open."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_request(reader)
            await gate.wait()
            writer.write(OK)

    return talk


def test_requests_beyond_the_limit_wait_for_a_connection() -> None:
    async def test() -> None:
        gate = asyncio.Event()
        async with (
            serving(held(gate)) as server,
            pool_of(server.origin, max_connections=3) as pool,
        ):
            asking = [asyncio.create_task(ask(pool)) for _ in range(20)]
            await server.until(lambda: server.n_open == 3)
            gate.set()
            assert await asyncio.gather(*asking) == [HELLO] * 20
            assert server.n_connections == 3

    run(test())


def test_connections_stay_open_for_those_who_wait_however_many_answers_come_at_once() -> None:
    async def test() -> None:
        gate = asyncio.Event()
        async with (
            serving(held(gate)) as server,
            pool_of(server.origin, max_connections=250) as pool,
        ):
            asking = [asyncio.create_task(ask(pool)) for _ in range(600)]
            await server.until(lambda: server.n_open == 250)
            gate.set()
            assert await asyncio.gather(*asking) == [HELLO] * 600
            assert server.n_connections == 250

    run(test())


def test_a_connection_for_who_gave_up_in_that_moment_goes_to_the_next() -> None:
    async def test() -> None:
        gate = asyncio.Event()
        async with (
            serving(held(gate)) as server,
            pool_of(server.origin, max_connections=1) as pool,
        ):
            gate.set()
            first = await pool.send(REQUEST, connect_seconds=PATIENCE)
            gives_up, waits = (asyncio.create_task(ask(pool)) for _ in range(2))
            await asyncio.sleep(0)
            assert await first.read() == b"hello"
            await first.aclose()  # the connection is given to the one that gives up
            gives_up.cancel()
            assert await waits == HELLO
            assert server.n_connections == 1

    run(test())


def test_a_request_waits_for_a_free_connection_as_long_as_its_caller() -> None:
    n_requests = 0

    async def test() -> None:
        gate = asyncio.Event()

        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal n_requests
            while True:
                await read_request(reader)
                n_requests += 1
                await gate.wait()
                writer.write(OK)

        async with serving(talk) as server, pool_of(server.origin, max_connections=1) as pool:
            first = asyncio.create_task(ask(pool))
            await server.until(lambda: server.n_open == 1)
            patient = asyncio.create_task(pool.send(REQUEST, connect_seconds=0.001))
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await pool.send(REQUEST, connect_seconds=PATIENCE)
            gate.set()
            assert await first == HELLO
            answer = await patient
            assert await answer.read() == b"hello"
            await answer.aclose()
            assert await ask(pool) == HELLO
            assert server.n_connections == 1

    run(test())
    assert n_requests == 3  # the one that was given up was never sent


def test_a_connection_that_does_not_open_in_time_is_an_error() -> None:
    async def talk(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()  # says nothing, not even in TLS

    async def test() -> None:
        async with serving(talk) as server:
            origin = server.origin._replace(scheme="https")
            async with pool_of(origin, tls=ssl.create_default_context()) as pool:
                with pytest.raises(ConnectTimeout, match=r"no connection in 0\.01 s"):
                    await pool.send(REQUEST, connect_seconds=0.01)

    run(test())


@pytest.mark.parametrize("is_streaming", [False, True], ids=["head", "body"])
def test_a_cancelled_request_closes_its_connection_and_makes_room(is_streaming: bool) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        if is_streaming:
            writer.write(head("Content-Length: 50") + b"hello")
        await reader.read()

    async def test() -> None:
        async with (
            serving(talk) as server,
            pool_of(server.origin, max_connections=1) as pool,
        ):
            for n_connections in (1, 2):
                asking = asyncio.create_task(ask(pool))
                await server.until(partial(server.has_accepted, n_connections))
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)
                assert asking.cancelled()
                await server.until(lambda: server.n_open == 0)

    run(test())


def test_connections_with_nothing_to_do_are_closed_after_a_while() -> None:
    async def test() -> None:
        async with (
            serving(answering([OK], ends=False)) as server,
            pool_of(server.origin, idle_seconds=0.01) as pool,
        ):
            await asyncio.gather(*(ask(pool) for _ in range(5)))
            await server.until(lambda: server.n_open == 0)
            assert await ask(pool) == HELLO

    run(test())


def test_a_body_that_nobody_reads_stays_with_the_other_side() -> None:
    size = 200_000_000
    is_full = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(head(f"Content-Length: {size}"))
        for _ in range(size // 1_000_000):
            writer.write(bytes(1_000_000))
            if not is_full.is_set() and writer.transport.get_write_buffer_size() > 20_000_000:
                is_full.set()
            await writer.drain() if is_full.is_set() else await asyncio.sleep(0)

    async def test() -> None:
        async with serving(talk) as server, pool_of(server.origin) as pool:
            answer = await pool.send(REQUEST, connect_seconds=PATIENCE)
            await is_full.wait()
            n_read = 0
            while chunk := await answer.next_chunk():
                n_read += len(chunk)
            assert n_read == size
            await answer.aclose()

    run(test())


def test_a_small_answer_that_swells_is_unpacked_piece_by_piece() -> None:
    bomb = gzip.compress(bytes(100_000_000))
    parts = [head("Content-Encoding: gzip", f"Content-Length: {len(bomb)}"), bomb]

    async def test() -> None:
        async with (
            serving(answering(parts, ends=False)) as server,
            pool_of(server.origin) as pool,
        ):
            answer = await pool.send(REQUEST, connect_seconds=PATIENCE)
            assert len(await answer.next_chunk()) <= 1024 * 1024
            await answer.aclose()

    run(test())


def test_nobody_at_the_address_is_an_error_before_anything_is_sent() -> None:
    async def test() -> None:
        async with serving(answering([OK], ends=False)) as server:
            origin = server.origin
        async with pool_of(origin) as pool:
            with pytest.raises(ConnectError, match="ConnectionRefusedError"):
                await ask(pool)

    run(test())


def test_an_unknown_host_is_an_error() -> None:
    async def test() -> None:
        async with pool_of(Origin("http", "no-such-host.invalid", 80)) as pool:
            with pytest.raises(ConnectError, match="gaierror"):
                await ask(pool)

    run(test())


def test_every_address_of_a_host_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    async def resolve(*_: object, **__: object) -> list[tuple[Any, ...]]:
        return [(0, 0, 0, "", ("127.0.0.2", 0)), (0, 0, 0, "", ("127.0.0.1", 0))]

    async def test() -> None:
        async with serving(answering([OK], ends=False)) as server:
            monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
            origin = server.origin._replace(host="two.example")
            async with pool_of(origin) as pool:
                assert await ask(pool) == HELLO

    run(test())


@pytest.mark.parametrize("n_addresses", [1, 2])
def test_a_connection_that_is_closed_as_soon_as_it_is_open_leaves_nothing(
    n_addresses: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def resolve(*_: object, **__: object) -> list[tuple[Any, ...]]:
        return [(0, 0, 0, "", (f"127.0.0.{n}", 0)) for n in range(1, n_addresses + 1)]

    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    async def test() -> None:
        async with serving(hang_up) as server:
            monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
            origin = server.origin._replace(host="two.example")
            async with pool_of(origin, max_connections=2) as pool:
                for _ in range(20):
                    with pytest.raises((ConnectError, ConnectionLost)):
                        await ask(pool)
                await server.until(lambda: server.n_open == 0)

    run(test())


def test_the_end_of_an_answer_stays_what_it_was() -> None:
    parts = [OK.replace(b"\r\n\r\n", b"\r\nX: 1\r\n\r\n"), b"HTTP/1.1 500 No\r\nX: 2\r\n\r\n"]

    async def test() -> None:
        async with (
            serving(answering([b"".join(parts)], ends=True)) as server,
            pool_of(server.origin) as pool,
        ):
            answer = await pool.send(REQUEST, connect_seconds=PATIENCE)
            await server.until(lambda: server.n_open == 0)
            assert await answer.read() == b"hello"
            assert (answer.status, answer.headers["x"]) == (200, "1")
            await answer.aclose()

    run(test())


def test_trailers_are_no_headers() -> None:
    parts = [CHUNKED + b"5\r\nhello\r\n0\r\nTransfer-Encoding: x\r\n\r\n"]

    async def test() -> None:
        async with (
            serving(answering(parts, ends=False)) as server,
            pool_of(server.origin) as pool,
        ):
            answer = await pool.send(REQUEST, connect_seconds=PATIENCE)
            assert await answer.read() == b"hello"
            assert answer.headers["transfer-encoding"] == "chunked"
            await answer.aclose()

    run(test())


def test_a_body_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rath.llm.http.MAX_BODY_BYTES", 1000)
    packed = gzip.compress(bytes(1001))

    async def test() -> None:
        async with (
            serving(answering([head("Content-Encoding: gzip"), packed], ends=True)) as server,
            pool_of(server.origin) as pool,
        ):
            with pytest.raises(MalformedAnswer, match="longer than 1000 bytes"):
                await ask(pool)

    run(test())


def test_a_connection_whose_request_was_not_read_is_not_used_again() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK)
        await writer.drain()
        await asyncio.Event().wait()

    large = b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 64000000\r\n\r\n" + bytes(64_000_000)

    async def test() -> None:
        async with serving(talk) as server, pool_of(server.origin) as pool:
            assert await ask(pool, large) == HELLO
            assert await ask(pool) == HELLO
            assert server.n_connections == 2

    run(test())


def test_a_connection_can_be_open_before_the_first_request() -> None:
    async def test() -> None:
        async with (
            serving(answering([OK], ends=False)) as server,
            pool_of(server.origin) as pool,
        ):
            await pool.warm_up(connect_seconds=PATIENCE)
            await pool.warm_up(connect_seconds=PATIENCE)
            assert await ask(pool) == HELLO
            assert server.n_connections == 1

    run(test())


def test_a_request_takes_the_connection_that_is_being_opened() -> None:
    async def test() -> None:
        async with (
            serving(answering([OK], ends=False)) as server,
            pool_of(server.origin) as pool,
        ):
            opening = asyncio.create_task(pool.warm_up(connect_seconds=PATIENCE))
            await asyncio.sleep(0)
            assert await ask(pool) == HELLO
            await opening
            assert server.n_connections == 1

    run(test())


def test_a_request_opens_its_own_connection_where_the_other_one_fails() -> None:
    async def test() -> None:
        async with serving(answering([OK], ends=False)) as server:
            origin = server.origin
        async with pool_of(origin) as pool:  # nobody listens any more
            opening = asyncio.create_task(pool.warm_up(connect_seconds=PATIENCE))
            await asyncio.sleep(0)
            with pytest.raises(ConnectError):
                await ask(pool)
            with pytest.raises(ConnectError):
                await opening

    run(test())


def test_a_closed_pool_sends_nothing() -> None:
    async def test() -> None:
        async with serving(answering([OK], ends=False)) as server:
            pool = HttpPool(server.origin)
            assert await ask(pool) == HELLO
            await pool.aclose()
            await server.until(lambda: server.n_open == 0)
            with pytest.raises(ConnectError, match="closed"):
                await ask(pool)

    run(test())


# ---------------------------------------------------------------- TLS and proxies


@dataclass(frozen=True)
class Certificates:
    """A certificate for 127.0.0.1 and who trusts it."""

    server: ssl.SSLContext
    client: ssl.SSLContext


@pytest.fixture(scope="module")
def certificates() -> Certificates:
    authority: Any = trustme.CA()  # its types need those of OpenSSL, which are not there
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(server)
    client = ssl.create_default_context()
    authority.configure_trust(client)
    return Certificates(server, client)


def test_requests_go_over_tls(certificates: Certificates) -> None:
    async def test() -> None:
        async with (
            serving(answering([OK], ends=False), tls=certificates.server) as server,
            pool_of(server.origin, tls=certificates.client) as pool,
        ):
            for _ in range(2):
                assert await ask(pool) == HELLO
            assert server.n_connections == 1

    run(test())


def test_a_certificate_that_nobody_trusts_is_refused(certificates: Certificates) -> None:
    async def test() -> None:
        async with (
            serving(answering([OK], ends=False), tls=certificates.server) as server,
            pool_of(server.origin, tls=ssl.create_default_context()) as pool,
        ):
            with pytest.raises(ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
                await ask(pool)

    run(test())


def proxying(seen: list[bytes], answer: bytes = head(status="200 Connection established")) -> Talk:
    """Connect to whatever is asked for, and hand everything on."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(answer)
        if b" 200 " not in answer:
            return
        host, _, port = seen[-1].split(b" ")[1].decode().rpartition(":")
        reader_there, writer_there = await asyncio.open_connection(host, int(port))

        async def hand_on(source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
            while data := await source.read(65536):
                to.write(data)

        try:
            await asyncio.wait(
                [
                    asyncio.create_task(hand_on(reader, writer_there)),
                    asyncio.create_task(hand_on(reader_there, writer)),
                ],
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            writer_there.close()

    return talk


@pytest.mark.parametrize("is_encrypted", [False, True], ids=["http", "https"])
def test_a_proxy_makes_a_way_for_tls(certificates: Certificates, is_encrypted: bool) -> None:
    seen: list[bytes] = []

    async def test() -> None:
        tls = certificates.server if is_encrypted else None
        async with (
            serving(answering([OK], ends=False), tls=certificates.server) as server,
            serving(proxying(seen), tls=tls) as proxy,
            pool_of(
                server.origin, tls=certificates.client, proxy=Proxy(proxy.origin, "Basic xyz")
            ) as pool,
        ):
            for _ in range(2):
                assert await ask(pool) == HELLO
            assert (proxy.n_connections, server.n_connections) == (1, 1)
            place = f"127.0.0.1:{server.origin.port}"
        (head_,) = seen
        assert head_.startswith(f"CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n".encode())
        assert b"Proxy-Authorization: Basic xyz\r\n" in head_

    run(test())


@pytest.mark.parametrize(
    "answer",
    [head(status="407 Login"), b"nonsense\r\n\r\n", b"", head(status="200 OK") + b"more"],
    ids=["refused", "nonsense", "closed", "more"],
)
def test_a_proxy_that_makes_no_way_is_an_error(certificates: Certificates, answer: bytes) -> None:
    async def test() -> None:
        async with (
            serving(proxying([], answer)) as proxy,
            pool_of(
                Origin("https", "h.example", 443),
                tls=certificates.client,
                proxy=Proxy(proxy.origin),
            ) as pool,
        ):
            with pytest.raises(ConnectError, match="proxy"):
                await ask(pool)

    run(test())


def test_a_proxy_gets_plain_requests_as_they_are() -> None:
    async def test() -> None:
        async with (
            serving(answering([OK], ends=False)) as proxy,
            pool_of(Origin("http", "h.example", 80), proxy=Proxy(proxy.origin)) as pool,
        ):
            assert await ask(pool) == HELLO

    run(test())


def test_an_answer_says_its_headers_once_each() -> None:
    async def test() -> HttpAnswer:
        parts = [head("A: 1", "a: 2", "B: 3", "Content-Length: 0")]
        async with (
            serving(answering(parts, ends=False)) as server,
            pool_of(server.origin) as pool,
        ):
            answer = await pool.send(REQUEST, connect_seconds=PATIENCE)
            await answer.aclose()
            return answer

    assert run(test()).headers == {"a": "1, 2", "b": "3", "content-length": "0"}
