"""The page of a session: written as one file, or served while it changes."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import html
import json
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from hashlib import sha256
from http import HTTPStatus
from importlib.resources import files
from os import PathLike
from pathlib import Path
from uuid import UUID

from rath._async.runtime import runtime
from rath._core.dataclasses import dataclass
from rath._core.files import atomic_write_text
from rath._core.text import one_line_preview, short_id, valid_unicode
from rath.session.body import Unfinished
from rath.session.graph.recording import Edge
from rath.session.loading import load
from rath.session.log.store import SessionStore
from rath.session.session import Session
from rath.session.view.page_data import PageEncoder, PageLimits, PageNode, harmless, nodes_of

STYLES = (
    "base.css", "panes.css", "rows.css", "evidence.css", "board.css", "print.css", "flame.css",
)  # fmt: skip
SCRIPTS = (
    "dom.js", "format.js", "data.js", "graph.js", "folds.js", "items.js", "list.js", "minimap.js",
    "lineage.js", "diff.js", "evidence_call.js", "evidence.js", "search.js", "compare.js",
    "share.js", "board.js", "flame.js", "keys.js", "live.js", "main.js",
)  # fmt: skip
"""In the order in which they stand in the page; together they are one module."""

PROFILE_STYLES = ("base.css", "print.css", "flame.css")
PROFILE_SCRIPTS = ("dom.js", "format.js", "flame.js", "flame_page.js")
"""Those of the page of a profile alone."""


_JSON = '<script type="application/json" id="{}">{}</script>'


def write_page(
    session: Session,
    path: str | PathLike[str],
    *,
    compare: Session | None = None,
    others: Sequence[Session] = (),
    limits: PageLimits | None = None,
    profile: str = "",
) -> Path:
    """Write one HTML file that shows a session and all that it came from; never waits for a run.

    The file needs no network and no other file. What stands in the sessions is shown as text and
    can do nothing on the page.

    Args:
        session: The one that is shown first.
        path: The file; replaced where there is one.
        compare: A second one, shown beside it from where the two part.
        others: More sessions of the lineage, such as branches that were not merged.
        limits: How much is shown of what is long.
        profile: Data of its flame view, as `Profile.flame_data` gives it; "" for none.

    Returns:
        The path of the file.

    Raises:
        OSError: The file cannot be written.
    """
    target = Path(path)
    page = explorer_html(session, compare=compare, others=others, limits=limits, profile=profile)
    atomic_write_text(target, page)
    return target


def explorer_html(
    session: Session,
    *,
    compare: Session | None = None,
    others: Sequence[Session] = (),
    limits: PageLimits | None = None,
    profile: str = "",
) -> str:
    """Return the page that `write_page` writes."""
    heads = [session.core.as_parent()]
    if compare is not None:
        heads.append(compare.core.as_parent())
    encoder = PageEncoder(limits or PageLimits())
    data = encoder.encode(nodes_of([*heads, *(each.core.as_parent() for each in others)]))
    return page_html(data, heads, title=_title(session), profile=profile)


def page_html(
    data: str,
    heads: Sequence[Edge],
    *,
    title: str,
    events: str = "",
    profile: str = "",
    board: str = "null",
) -> str:
    """Return the page.

    Args:
        data: As `PageEncoder.encode` gives it.
        heads: The session to show, and the one to compare it with, if there is one.
        title: Of the document.
        events: Where the page hears of what is new, on the server that it came from; "" for never.
        profile: Data of a flame view, as JSON; "" for none.
        board: The runs that the page shows first, as JSON; "null" for none.
    """
    data_of = {"data": data, "board": board, "profile": profile or "null"}
    return _document(STYLES, SCRIPTS, data_of, title=title, heads=heads, events=events)


def profile_html(profile: str, *, title: str) -> str:
    """Return the page of a profile alone, from the data of its flame view."""
    return _document(PROFILE_STYLES, PROFILE_SCRIPTS, {"profile": profile}, title=title)


def _document(
    styles: tuple[str, ...],
    scripts: tuple[str, ...],
    data: Mapping[str, str],
    *,
    title: str,
    heads: Sequence[Edge] = (),
    events: str = "",
) -> str:
    """Return a page in one file, whose policy allows its own style and code and nothing else.

    Args:
        styles: Files of style sheets, in order.
        scripts: Files of code, in order; together they are one module.
        data: What the code shows, as JSON by the id of its element.
        title: Of the document.
        heads: As for `page_html`.
        events: As for `page_html`.
    """
    style, code = _joined(styles), _joined(scripts)
    policy = (
        "default-src 'none'; base-uri 'none'; form-action 'none'; img-src data:; "
        f"style-src '{_hash(style)}'; script-src '{_hash(code)}'"
    )
    if events:
        policy += "; connect-src 'self'"
    values = {
        "policy": policy,
        "style": style,
        "code": code,
        "title": html.escape(valid_unicode(title)),
        "head": html.escape(" ".join(str(head.id) for head in heads)),
        "events": html.escape(events),
        "data": "\n".join(_JSON.format(name, harmless(text)) for name, text in data.items()),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: values[match[1]], _asset("page.html"))


def _title(session: Session) -> str:
    texts = (row.payload.get("content") for row in session.partial_table if row.kind == "user")
    first = next((text for text in texts if isinstance(text, str)), "")
    return " · ".join(filter(None, (one_line_preview(first, 60), short_id(session.id))))


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(sha256(text.encode()).digest()).decode()}"


@cache
def _joined(names: tuple[str, ...]) -> str:
    """Return style sheets or scripts one after the other, as they stand in their element."""
    return "\n" + "\n".join(map(_asset, names))


@cache
def _asset(name: str) -> str:
    return files("rath").joinpath("view", name).read_text("utf-8")


REST = 4
"""How many times longer than reading the log took nothing is read again: it is read as a whole each
time, and a long one must not keep a core busy. A guess."""

MAX_NOW = 2000
"""Characters of an answer that is being written; its end is shown."""


@dataclass(frozen=True, slots=True)
class PageSnapshot:
    """The sessions of a page at one moment."""

    nodes: tuple[PageNode, ...]
    heads: tuple[Edge, ...]
    """The session that is followed, and the one that it is compared with, if there is one."""

    now: tuple[tuple[str, str], ...]
    """What the run is just doing: a kind, and a text."""

    is_over: bool

    @property
    def state(self) -> str:
        """How the session that is followed stands."""
        return next(node.state for node in self.nodes if node.id == self.heads[0].id)


class Feed:
    """Reads a session again whenever its log has grown; all methods block.

    Args:
        store: Where it is.
        session: Its id.
        compare: A second session, which is read once.
    """

    def __init__(self, store: SessionStore, session: UUID, *, compare: UUID | None = None) -> None:
        self._store = store
        self._session = session
        self._compared = () if compare is None else (load(store, compare).session.core.as_parent(),)
        self._size = 0
        self._seconds = 0.0

    def read(self) -> PageSnapshot:
        """Return the session as it is now.

        Raises:
            PersistenceError: It is not there, or it cannot be read.
            SessionDamaged: Its log cannot be believed.
        """
        began = time.monotonic()
        # In this order: a writer that ends in between has written all before.
        is_over = not self._store.is_being_written(self._session)
        loaded = load(self._store, self._session)
        self._size = loaded.size
        heads = (loaded.session.core.as_parent(), *self._compared)
        nodes = nodes_of(heads)
        if not is_over:
            nodes = tuple(map(self._as_running, nodes))
        now = () if is_over else doing_now(loaded.unfinished)
        self._seconds = time.monotonic() - began
        return PageSnapshot(nodes, heads, now, is_over)

    def changes(self) -> Iterator[PageSnapshot]:
        """Yield the session each time it has grown, and once more when its run is over.

        Raises:
            PersistenceError: As for `read`.
        """
        is_over = False
        for _ in self._store.follow(self._session, self._size):
            time.sleep(REST * self._seconds)
            snapshot = self.read()
            is_over = snapshot.is_over
            yield snapshot
        if not is_over:
            yield self.read()

    def _as_running(self, node: PageNode) -> PageNode:
        return replace(node, state="running", problem="") if node.id == self._session else node


def doing_now(unfinished: Unfinished | None) -> tuple[tuple[str, str], ...]:
    """Return the activity of a run between its rows: tools that run, and the answer so far."""
    if unfinished is None:
        return ()
    tools = [
        ("runs", f"{intent.tool}, since {intent.at:%H:%M:%S} UTC") for intent in unfinished.intents
    ]
    done = [("done", result.run.tool) for result in unfinished.results]
    text = unfinished.partial_text[-MAX_NOW:]
    return (*done, *tools, *([("writes", text)] if text else []))


MAX_HEAD_BYTES = 16_384
REQUEST_SECONDS = 10.0
"""How long a client may take for its request; browsers open connections before they need them."""

_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Connection": "close",
}


@dataclass(frozen=True, slots=True)
class Request:
    """A request of a client."""

    method: str
    target: str
    headers: Mapping[str, str]
    """By name in small letters."""


class BadRequest(Exception):
    """The client did not say what could be understood."""


async def read_request(reader: asyncio.StreamReader) -> Request:
    """Return the request of a client.

    Raises:
        BadRequest: It is none, or too long, or takes too long, or did not come.
    """
    try:
        async with asyncio.timeout(REQUEST_SECONDS):
            head = await reader.readuntil(b"\r\n\r\n")
    except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError) as exc:
        raise BadRequest(str(exc)) from exc
    first, *lines = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    words = first.split(" ")
    pairs = [line.partition(":") for line in lines]
    if len(words) != 3 or not all(separator for _, separator, _ in pairs):
        raise BadRequest(first)
    headers: dict[str, str] = {}
    for name, _, value in pairs:
        key = name.lower()
        if key in headers and key in ("host", "origin"):
            raise BadRequest(f"two headers {key}")
        headers[key] = value.strip()
    return Request(words[0], words[1], headers)


def answer_head(status: HTTPStatus, kind: str, *, length: int | None) -> bytes:
    """Return the head of an answer; without a length it lasts as long as the connection."""
    headers = {**_HEADERS, "Content-Type": kind}
    if length is not None:
        headers["Content-Length"] = str(length)
    lines = [f"HTTP/1.1 {status.value} {status.phrase}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def event(name: str, data: str) -> bytes:
    """Return a server-sent event; `data` is JSON, which has no line feed."""
    return f"event: {name}\ndata: {data}\n\n".encode()


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
        self.snapshot: PageSnapshot | None = None
        """The last one that it was told."""

        self.has_listened = False

    def tell(self, snapshot: PageSnapshot) -> str:
        """Return the news for the page; blocks."""
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
        self._snapshot: PageSnapshot | None = None
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

                def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                    group.create_task(self._converse(reader, writer))

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
        elif (match := _EVENTS.fullmatch(path)) and (page := self._pages.get(int(match[1]))):
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

    async def _wait_for_more(self, snapshot: PageSnapshot, writer: asyncio.StreamWriter) -> None:
        while self._snapshot is snapshot:
            try:
                async with asyncio.timeout(self._beat), self._grown:
                    await self._grown.wait_for(lambda: self._snapshot is not snapshot)
            except TimeoutError:
                await _write(writer, b": still here\n\n")


async def _send(writer: asyncio.StreamWriter, status: HTTPStatus, kind: str, text: str) -> None:
    content = text.encode()
    await _write(writer, answer_head(status, kind, length=len(content)) + content)


async def _write(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    async with asyncio.timeout(SEND_SECONDS):
        await writer.drain()
