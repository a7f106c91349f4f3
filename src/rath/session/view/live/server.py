"""The server of a live page: on loopback, for who knows its address, and for nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import secrets
from collections.abc import Callable
from functools import partial
from http import HTTPStatus

from rath._async.runtime import runtime
from rath.session.view.encode import PageEncoder
from rath.session.view.limits import PageLimits
from rath.session.view.live.feed import Feed, Snapshot
from rath.session.view.live.http import (
    MAX_HEAD_BYTES,
    BadRequest,
    Request,
    answer_head,
    event,
    read_request,
)
from rath.session.view.page import page_html

HOST = "127.0.0.1"
MAX_PAGES = 16
"""Pages that can hear of what is new; the oldest one is forgotten first."""

BEAT_SECONDS = 15.0
"""A guess: half of what a proxy would wait, though there is none on loopback."""

SEND_SECONDS = 10.0
"""How long a client may take for what it is sent; then it has to come again."""

_EVENTS = re.compile(r"/events/(\d{1,9})")


class _Page:
    """A page that was given out: what it knows, and whether it listens."""

    def __init__(self, limits: PageLimits) -> None:
        self.encoder = PageEncoder(limits)
        self.snapshot: Snapshot | None = None
        """The last one that it was told."""

        self.has_listened = False

    def tell(self, snapshot: Snapshot) -> str:
        """Return what is new to the page; blocks."""
        self.snapshot = snapshot
        return self.encoder.encode(snapshot.nodes)


class LiveServer:
    """Serves the page of a session, and tells it what is new.

    It answers GET at an address with a secret in it, from this machine and from its own page.

    Args:
        feed: The session.
        title: Of the page.
        limits: How much is shown of what is long.
        port: 0 for any that is free.
        beat: After so many seconds of silence a comment is sent, which tells whether the client
            is still there.
    """

    def __init__(
        self,
        feed: Feed,
        *,
        title: str,
        limits: PageLimits | None = None,
        port: int = 0,
        beat: float = BEAT_SECONDS,
    ) -> None:
        self._feed = feed
        self._title = title
        self._limits = limits or PageLimits()
        self._port = port
        self._beat = beat
        self._token = secrets.token_urlsafe(24)
        self._pages: dict[int, _Page] = {}
        self._n_pages = 0
        self._snapshot: Snapshot | None = None
        self._grown = asyncio.Condition()

    def serve(self, *, on_ready: Callable[[str], None], on_end: Callable[[str], None]) -> None:
        """Serve until the caller is interrupted; called from any thread but the runtime's own.

        Args:
            on_ready: Is given the address of the page.
            on_end: Is given the state of the session when its run is over.

        Raises:
            KeyboardInterrupt: Ctrl-C.
            OSError: The port is taken.
            PersistenceError: The session is not there, or cannot be read any more.
        """
        runtime().run(partial(self.aserve, on_ready, on_end), label="the live page")

    async def aserve(self, on_ready: Callable[[str], None], on_end: Callable[[str], None]) -> None:
        """Serve until cancelled, on the runtime."""
        self._snapshot = await runtime().call_in_worker(self._feed.read)
        try:
            async with asyncio.TaskGroup() as group:
                connected = partial(self._connected, group)
                server = await asyncio.start_server(
                    connected, HOST, self._port, limit=MAX_HEAD_BYTES
                )
                try:
                    self._port = server.sockets[0].getsockname()[1]
                    address = f"http://{HOST}:{self._port}/{self._token}/"
                    await runtime().call_in_worker(partial(on_ready, address))
                    await self._follow(on_end)
                    await asyncio.Event().wait()
                finally:
                    # Not `async with server`: it waits for conversations that the group ends.
                    server.close()
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _follow(self, on_end: Callable[[str], None]) -> None:
        changes = self._feed.changes()
        while True:
            snapshot = await runtime().call_in_worker(partial(next, changes, None))
            if snapshot is None:
                break
            async with self._grown:
                self._snapshot = snapshot
                self._grown.notify_all()
        assert self._snapshot is not None
        await runtime().call_in_worker(partial(on_end, self._snapshot.state))

    def _connected(
        self,
        group: asyncio.TaskGroup,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        group.create_task(self._converse(reader, writer))

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A client that goes away is no error of the server.
        with contextlib.suppress(BadRequest, OSError, TimeoutError):
            try:
                await self._answer(await read_request(reader), writer)
            finally:
                writer.close()

    async def _answer(self, request: Request, writer: asyncio.StreamWriter) -> None:
        refusal = self._refusal(request)
        path = request.target.removeprefix(f"/{self._token}")
        if refusal is not None:
            await _send(writer, refusal, "text/plain; charset=utf-8", refusal.phrase)
        elif path == "/":
            await _send(writer, HTTPStatus.OK, "text/html; charset=utf-8", await self._new_page())
        elif (found := _EVENTS.fullmatch(path)) and (page := self._pages.get(int(found[1]))):
            await self._tell(page, writer)
        else:
            await _send(writer, HTTPStatus.NOT_FOUND, "text/plain; charset=utf-8", "Not Found")

    def _refusal(self, request: Request) -> HTTPStatus | None:
        """Return why a request is not answered; None for one that is."""
        hosts = (f"{HOST}:{self._port}", f"localhost:{self._port}")
        headers = request.headers
        # Pages of others reach this port too, by a name that leads here, and from their own origin.
        if headers.get("host") not in hosts:
            return HTTPStatus.MISDIRECTED_REQUEST
        if headers.get("origin", f"http://{headers['host']}") != f"http://{headers['host']}":
            return HTTPStatus.FORBIDDEN
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return HTTPStatus.FORBIDDEN
        if request.method != "GET":
            return HTTPStatus.METHOD_NOT_ALLOWED
        first = request.target.split("/")[1:2]
        if not secrets.compare_digest("".join(first).encode("latin-1"), self._token.encode()):
            return HTTPStatus.NOT_FOUND
        return None

    async def _new_page(self) -> str:
        number, page = self._n_pages, _Page(self._limits)
        self._n_pages += 1
        self._pages[number] = page
        while len(self._pages) > MAX_PAGES:
            del self._pages[min(self._pages)]
        snapshot = self._snapshot
        assert snapshot is not None

        def make() -> str:
            data = page.tell(snapshot)
            events = f"events/{number}"
            return page_html(data, snapshot.heads, title=self._title, events=events)

        return await runtime().call_in_worker(make)

    async def _tell(self, page: _Page, writer: asyncio.StreamWriter) -> None:
        """Tell a page what is new, until it goes away or the run is over."""
        await _write(writer, answer_head(HTTPStatus.OK, "text/event-stream", length=None))
        if page.has_listened:
            # Nobody knows what of the last telling has arrived.
            await _write(writer, event("again", "{}"))
            return
        page.has_listened = True
        while True:
            snapshot = self._snapshot
            assert snapshot is not None
            if snapshot is not page.snapshot:
                part = await runtime().call_in_worker(partial(page.tell, snapshot))
                await _write(writer, event("part", part))
            await _write(writer, event("now", json.dumps(snapshot.now)))
            if snapshot.is_over:
                await _write(writer, event("end", json.dumps({"state": snapshot.state})))
                return
            await self._wait_for_more(snapshot, writer)

    async def _wait_for_more(self, known: Snapshot, writer: asyncio.StreamWriter) -> None:
        while self._snapshot is known:
            try:
                async with asyncio.timeout(self._beat), self._grown:
                    await self._grown.wait_for(lambda: self._snapshot is not known)
            except TimeoutError:
                await _write(writer, b": still here\n\n")


async def _send(writer: asyncio.StreamWriter, status: HTTPStatus, kind: str, text: str) -> None:
    content = text.encode()
    await _write(writer, answer_head(status, kind, length=len(content)) + content)


async def _write(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    async with asyncio.timeout(SEND_SECONDS):
        await writer.drain()
