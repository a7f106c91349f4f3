"""Sessions read while their runs go on: in this process, or in another one from their logs."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from functools import partial
from uuid import UUID, uuid4

from rath._async.deferred import Deferred
from rath._async.runtime import runtime
from rath._core.text import short_id
from rath._core.vector import GrowingVector
from rath.session.body import Body, State
from rath.session.chunk import ChunkTable
from rath.session.events import StreamEvent as StreamEvent
from rath.session.events import TextDelta as TextDelta
from rath.session.loading import Loaded, load
from rath.session.log.store import SessionStore, default_store, open_store
from rath.session.record import ModelCall
from rath.session.session import Session


async def stream(session: Session) -> AsyncGenerator[StreamEvent]:
    """Yield rows, entries and text of a session; see `Session.stream`."""
    n_rows, n_entries, text = 0, 0, ""
    async for body in session.body.progress():
        rows, entries = body.table.since(n_rows), body.record.since(n_entries)
        n_rows, n_entries = n_rows + len(rows), n_entries + len(entries)
        if rows or any(isinstance(entry, ModelCall) for entry in entries):
            text = ""  # the answer is whole, or was given up
        for row in rows:
            yield row
        for entry in entries:
            yield entry
        partial_text = "" if body.unfinished is None else body.unfinished.partial_text
        if partial_text.startswith(text) and len(partial_text) > len(text):
            yield TextDelta(partial_text[len(text) :])
            text = partial_text


def follow(session: UUID | str, store: SessionStore | str | None = None) -> Session:
    """Return a session that grows as its log does; see `Session.follow`."""
    opened = open_store(store) if isinstance(store, str) else store or default_store()
    loaded = load(opened, session)
    known = loaded.session
    if not opened.is_being_written(known.id):
        return load(opened, known.id).session  # it may have ended just now
    body: Deferred[Body] = Deferred.start(
        partial(_read_along, opened, loaded),
        owner=uuid4(),
        label=f"reading session {short_id(known.id)} as it comes",
        on_cancel=lambda latest: latest or known.body.result(),
        at_exit="leave",
    )
    followed = Session.from_body(
        body,
        known.provenance,
        id=known.id,
        placement=known.placement.share(),
        provider=known.provider,
        lineage=known.lineage,
    )
    return followed


async def _read_along(store: SessionStore, loaded: Loaded, cell: Deferred[Body]) -> Body:
    """Apply the events of a log as they come, and return the session when nobody writes it."""
    content, session = loaded.session.body.result(), loaded.session.id
    rows = GrowingVector(content.table.vector)
    record = GrowingVector(content.record)
    state = State(session, rows, record)
    state.resume(loaded.unfinished)
    if loaded.unfinished is not None and loaded.unfinished.partial_text:
        state.partial.append(loaded.unfinished.partial_text)
    cell.report(content)
    lines = store.follow(session, loaded.size)
    while (data := await runtime().call_in_worker(partial(_next, lines))) is not None:
        for event in loaded.reader.feed(data):
            state.apply(event)
        cell.report(
            Body(
                ChunkTable(rows.vector),
                record.vector,
                content.outcome,
                content.given,
                state.unfinished,
            )
        )
    whole = await runtime().call_in_worker(partial(load, store, session))
    return whole.session.body.result()


def _next(lines: Iterator[bytes]) -> bytes | None:
    return next(lines, None)
