"""Moving stored sessions to the trash, so that those that stay load as before.

A log may begin with rows or entries of another one. Before that goes, what its children need of it
is written into their own logs.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

from msgspec import structs

from rath.errors import PersistenceError
from rath.session.events import AncestorRange, Event, Header, Row
from rath.session.graph.kind import LineageKind
from rath.session.log.build import LoadedSession, LogSource, built_from, needed_by
from rath.session.log.files import FileStore
from rath.session.log.format import Encoder
from rath.session.log.reader import LineReader, read_lines
from rath.session.log.store import SessionStore, checked_id, default_store
from rath.session.record import Operation

__all__ = ["delete_session", "prunable_sessions", "prune_sessions"]

_logger = logging.getLogger(__name__)


def delete_session(
    session_id: UUID | str, *, path: Path | None = None, store: SessionStore | None = None
) -> bool:
    """Move a stored session to the trash; return whether there was one.

    Sessions that begin with rows or entries of it get these into their own logs first, so that they
    load as before. Contents that nothing names any more go when the trash is emptied, which `gc`
    does. Cost: the first line of every log is read.

    Args:
        session_id: Which one.
        path: Move this file and the partial one beside it instead; nothing else is looked at.
        store: Where it is; by default the store of the home.

    Raises:
        ValueError: `session_id` is not a UUID.
        PersistenceError: It, or one that begins with what it holds, is being written, cannot be
            written, or cannot be believed; or such a one was begun meanwhile.
    """
    wanted = checked_id(session_id)
    if path is not None:
        return FileStore.at(path, wanted).delete(wanted)
    store = store or default_store()
    if store.read(wanted) is None:
        return False
    if store.is_being_written(wanted):
        raise PersistenceError(
            f"session {wanted} is being written; wait for its run to end, or cancel it, then "
            "delete it"
        )
    before = store.stamps().keys()
    for child in _children(store, wanted):
        _make_independent(store, child, wanted)
    deleted = store.delete(wanted)
    new = _children(store, wanted, known=before) if deleted else []
    if new:
        store.restore(wanted)
        raise PersistenceError(
            f"session {wanted} is kept: session {new[0]} was begun meanwhile with what it holds; "
            "delete it again once that run has ended"
        )
    return deleted


def prune_sessions(*, older_than: timedelta, store: SessionStore | None = None) -> list[UUID]:
    """Move the sessions that were last written longer ago to the trash, and return their ids.

    Sessions that are being written are kept, those that cannot be believed, and all that a session
    which is kept came from. When a session was last written is told by its log. What was in the
    trash before is removed for good, with contents that nothing names any more.

    Args:
        older_than: Age from which a session goes.
        store: Where; by default the store of the home.
    """
    store = store or default_store()
    store.empty_trash()
    deleted: list[UUID] = []
    for session in prunable_sessions(older_than=older_than, store=store):
        try:
            if store.delete(session):
                deleted.append(session)
        except PersistenceError as exc:
            _logger.warning("session %s is kept: %s", session, exc)
    return deleted


def prunable_sessions(*, older_than: timedelta, store: SessionStore | None = None) -> list[UUID]:
    """Return the sessions that `prune_sessions` would move now, each before what it came from."""
    store = store or default_store()
    limit = datetime.now(UTC) - older_than
    first = store.stamps()
    ages = _ages(store, first, limit)
    # Those that were begun meanwhile may have come from what is old.
    ages |= _ages(store, store.stamps().keys() - first.keys(), limit)
    todo = [session for session, age in ages.items() if not age.is_old]
    retained: set[UUID] = set()
    while todo:
        session = todo.pop()
        if session not in retained and session in ages:
            retained.add(session)
            todo += ages[session].needs
    # Begun later: a child, whose parents must not go first.
    old = ages.keys() - retained
    return sorted(old, key=lambda session: ages[session].created_at, reverse=True)


@dataclass(frozen=True, slots=True)
class _Age:
    """The age and the references of a log, for pruning."""

    created_at: datetime
    needs: tuple[UUID, ...]
    is_old: bool


def _ages(store: SessionStore, sessions: Iterable[UUID], limit: datetime) -> dict[UUID, _Age]:
    source, ages = LogSource(store, recover=True), dict[UUID, _Age]()
    for session in sessions:
        try:
            content = source.find(session)
        except PersistenceError as exc:
            _logger.warning("kept, with nothing that it may have come from: %s", exc)
            continue
        if content is not None:
            is_old = content.problem is None and content.state.last_at < limit
            is_old = is_old and not store.is_being_written(session)
            ages[session] = _Age(content.header.created_at, tuple(needed_by(content)), is_old)
    return ages


def _children(store: SessionStore, session: UUID, *, known: Container[UUID] = ()) -> list[UUID]:
    """Return the sessions, but for the known ones, that begin with what `session` holds."""
    others = (each for each in store.stamps() if each != session and each not in known)
    return [each for each in others if session in _sources(store, each)]


def _sources(store: SessionStore, session: UUID) -> set[UUID]:
    """Return the sessions with whose rows or entries a log begins, or that it is a merge with.

    One that cannot be read, or whose first line cannot be believed, is logged and has none.
    """
    try:
        log = store.read(session)
        lines = () if log is None else LineReader(log.where).take(log.data.partition(b"\n")[0])
    except PersistenceError as exc:
        _logger.warning("what session %s begins with is not known: %s", session, exc)
        return set()
    headers = [line for line in lines if isinstance(line, Header)]
    sessions = {part.session for each in headers for part in (*each.rows, *each.entries)}
    merges = (each for each in headers if each.kind is LineageKind.OP_MERGE)
    return sessions.union(*(each.parents[1:] for each in merges))


def _make_independent(store: SessionStore, child: UUID, of: UUID) -> None:
    """Write a log anew, so that nothing of session `of` is needed to load it.

    Raises:
        PersistenceError: It is being written, or cannot be.
        SessionDamaged: It, or one that it came from, cannot be believed.
    """
    log = store.read(child)
    if log is None:
        return
    if store.is_being_written(child):
        raise PersistenceError(
            f"session {child} begins with what session {of} holds and is being written; wait for "
            "its run to end"
        )
    source = LogSource(store)
    content = source.content(log.data, log.where, is_finished=log.is_finished)
    built = built_from(content, source)
    read = read_lines(log.data, log.where, make_blob=source.make_blob)
    lines = _independent_lines(built, read.lines, of)
    encoder = Encoder(child, names_theirs=True)
    store.rewrite(child, b"".join(encoder.add(line).data for line in lines), size=len(log.data))


def _independent_lines(built: LoadedSession, lines: Sequence[Event], of: UUID) -> list[Event]:
    """Return the lines of a log that say themselves what stood in session `of`."""
    header = built.content.header
    rows, n_rows = _parts_before(header.rows, of)
    entries, n_entries = _parts_before(header.entries, of)
    n_inherited = sum(part.stop - part.start for part in header.entries)
    own = {entry.id: entry for entry in built.entries.items.since(n_inherited)}
    inline_rows = built.rows.items.prefix(built.content.state.n_before).since(n_rows)
    inline_entries = built.entries.items.prefix(n_inherited).since(n_entries)
    # A merge has the record that the second parent had.
    later = (own[line.id] if isinstance(line, Operation) else line for line in lines[1:])
    return [
        structs.replace(header, rows=rows, entries=entries),
        *(Row(index, row) for index, row in enumerate(inline_rows, start=n_rows)),
        *inline_entries,
        *later,
    ]


def _parts_before(
    parts: Sequence[AncestorRange], of: UUID
) -> tuple[tuple[AncestorRange, ...], int]:
    """Return the parts before the first one of `of`, and how many items they have."""
    stop = next((at for at, part in enumerate(parts) if part.session == of), len(parts))
    prefix = tuple(parts[:stop])
    return prefix, sum(part.stop - part.start for part in prefix)
