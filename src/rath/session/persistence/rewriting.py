"""Logs written anew, so that what they begin with stands in themselves."""

from __future__ import annotations

import logging
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from uuid import UUID

from rath.errors import PersistenceError
from rath.session.graph.kind import LineageKind
from rath.session.persistence.codec import Encoder, LineReader, read_lines
from rath.session.persistence.lines import EntryLine, HeaderLine, Line, Part, RowLine
from rath.session.persistence.loading.build import Built
from rath.session.persistence.loading.load import built_from
from rath.session.persistence.loading.sources import Source
from rath.session.persistence.store.abc import SessionStore
from rath.session.record import Entry, Operation

_logger = logging.getLogger(__name__)


def children_of(store: SessionStore, session: UUID, *, known: Container[UUID] = ()) -> list[UUID]:
    """Return the sessions that begin with rows or entries of `session`.

    Cost: every log is read, and its first line decoded. One that cannot be read, or whose first
    line cannot be believed, is logged and left out.

    Args:
        store: Where they are.
        session: What they begin with.
        known: Those that are not looked at.
    """
    others = (each for each in store.stamps() if each != session and each not in known)
    return [each for each in others if _begins_with(store, each, session)]


def make_independent(store: SessionStore, child: UUID, *, of: UUID) -> None:
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
    source = Source(store)
    content = source.content(log.data, log.where, is_finished=log.is_finished)
    built = built_from(content, source)
    read = read_lines(log.data, log.where, make_blob=source.make_blob)
    lines = independent_lines(built, read.lines, of)
    encoder = Encoder(child, names_theirs=True)
    store.rewrite(child, b"".join(encoder.add(line).data for line in lines), size=len(log.data))


def independent_lines(built: Built, lines: Sequence[Line], of: UUID | None) -> list[Line]:
    """Return the lines of a log that say themselves what stood in session `of`.

    Args:
        built: The session as it is.
        lines: Of its log.
        of: Whose rows and entries it shall not begin with; None for those of all others.
    """
    header = built.content.header
    rows, n_rows = _kept(header.rows, of)
    entries, n_entries = _kept(header.entries, of)
    n_begun = sum(part.stop - part.start for part in header.entries)
    own = {entry.id: entry for entry in built.entries.items.since(n_begun)}
    inline_rows = built.rows.items.prefix(built.content.n_begun).since(n_rows)
    inline_entries = built.entries.items.prefix(n_begun).since(n_entries)
    return [
        replace(header, rows=rows, entries=entries),
        *(RowLine(index, row) for index, row in enumerate(inline_rows, start=n_rows)),
        *map(EntryLine, inline_entries),
        *(_with_second_parent(line, own) for line in lines[1:]),
    ]


def _with_second_parent(line: Line, own: Mapping[UUID, Entry]) -> Line:
    """Return a line whose merge, if it is one, has the record that the second parent had."""
    if isinstance(line, EntryLine) and isinstance(line.entry, Operation):
        return EntryLine(own[line.entry.id])
    return line


def _kept(parts: Sequence[Part], of: UUID | None) -> tuple[tuple[Part, ...], int]:
    """Return the parts before the first one of `of`, and how much they tell."""
    kept: list[Part] = []
    for part in parts:
        if of is None or part.session == of:
            break
        kept.append(part)
    return tuple(kept), sum(part.stop - part.start for part in kept)


def _begins_with(store: SessionStore, session: UUID, other: UUID) -> bool:
    try:
        log = store.read(session)
        if log is None:
            return False
        line, _, _ = log.data.partition(b"\n")
        group = LineReader(log.where).take(line)
    except PersistenceError as exc:
        _logger.warning("whether it begins with session %s is not known: %s", other, exc)
        return False
    return any(_needs(header, other) for header in group if isinstance(header, HeaderLine))


def _needs(header: HeaderLine, other: UUID) -> bool:
    """Tell whether a session begins with what `other` holds, or is a merge with it."""
    if header.kind is LineageKind.OP_MERGE and other in header.parents[1:]:
        return True
    return any(part.session == other for part in (*header.rows, *header.entries))
