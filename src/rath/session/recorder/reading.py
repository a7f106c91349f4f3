"""Where a log that is to be gone on with ends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from rath.errors import PersistenceError, SessionDamaged
from rath.session.body import Body
from rath.session.log.store import SessionStore, StoredLog
from rath.session.persistence import index
from rath.session.persistence.codec import LineReader, LogLines, read_lines
from rath.session.persistence.lines import (
    SCHEMA_VERSION,
    EntryLine,
    HeaderLine,
    IntentLine,
    Line,
    PlacementLine,
    ResultLine,
    RoundLine,
    RowLine,
)
from rath.session.persistence.records import decode_header
from rath.session.recorder.ranges import n_told


@dataclass(frozen=True, slots=True)
class WrittenLog:
    """What stands in a log, as far as it matters for what is added to it."""

    reader: LineReader
    """Where its last line that counts ends."""

    n_rows: int
    """Of the whole table, with what the session begins with."""

    n_entries: int
    """Of the whole record."""

    entries: tuple[UUID, ...]
    """The ids of its own entries, which are the last ones."""

    is_finished: bool
    """Whether the log has its final name."""

    n_torn: int = 0
    """Bytes behind its last line that a writer has left which was cut off."""

    open_lines: tuple[IntentLine | ResultLine, ...] = ()
    """Calls that were made, and what came of them, after its last row and entry."""

    place: HeaderLine | PlacementLine | None = None
    """Where the session works, by the last line that tells it."""


def read_log(store: SessionStore, session: UUID) -> WrittenLog:
    """Read the log of a session; blocks.

    Raises:
        PersistenceError: It is gone, or cannot be read, or takes no more lines.
        SessionDamaged: It cannot be believed.
    """
    written = find_log(store, session)
    if written is None:
        raise PersistenceError(
            f"the log of session {session} is not in {store.where} any more; nothing was added"
        )
    return written


def find_log(store: SessionStore, session: UUID) -> WrittenLog | None:
    """Read the log of a session, None where there is none; blocks.

    Raises:
        PersistenceError: It cannot be read, or takes no more lines.
        SessionDamaged: It cannot be believed.
    """
    log = store.read(session)
    if log is None:
        return None
    read = read_lines(log.data, log.where, is_finished=log.is_finished)
    if read.reader.version < SCHEMA_VERSION:
        raise PersistenceError(
            f"{log.where} is of schema version {read.reader.version}, to which nothing is added; "
            "fork the session and add to the fork"
        )
    return written_log(log, read)


def find_whole_log(store: SessionStore, session: UUID) -> WrittenLog | None:
    """Read the log of a session that is gone on with, None where there is none; blocks.

    A log that has lost its last lines is a beginning of itself: calls that these told of would be
    made once more. So others are asked how much it had: the index, and those that came from it.

    Raises:
        PersistenceError: It cannot be read, or takes no more lines.
        SessionDamaged: It cannot be believed, or something knows more of it than it holds.
    """
    memory = index.index_memory(store, session)
    written = find_log(store, session)
    if written is None:
        return None
    reader = written.reader
    held = LogExtent(written.n_rows, written.n_entries, reader.n_lines, _created_at(reader.header))
    problem = lost_lines(store, session, held, memory)
    if problem is not None:
        raise SessionDamaged(problem, where=reader.where, line=reader.n_lines)
    return written


class LogExtent(NamedTuple):
    """How much a log holds."""

    n_rows: int
    """Of the whole table, with what the session begins with."""

    n_entries: int
    """Of the whole record."""

    n_lines: int
    begun_at: datetime
    """When the session was begun."""


def lost_lines(
    store: SessionStore, session: UUID, held: LogExtent, memory: index.IndexMemory
) -> str | None:
    """Return who knows more of a session than its log holds, None where nobody does.

    Cost: the first line of each log that came from it is read; without an index, of all logs.

    Args:
        store: Where it is.
        session: Which one.
        held: How much its log holds.
        memory: What the index said of it before the log was read.
    """
    # Another log under the same id was begun at another time.
    if index.to_micros(held.begun_at) == memory.begun and held.n_lines < memory.n_lines:
        return index.lines_are_missing(held.n_lines, memory.n_lines)
    for child, stamp in store.stamps().items():
        is_known = memory.stamps.get(child) == stamp
        if child == session or (is_known and child not in memory.children):
            continue
        header = _first_line(store, child, session)
        if header is None:
            continue
        for what, n_held, parts in (
            ("rows", held.n_rows, header.rows),
            ("entries", held.n_entries, header.entries),
        ):
            stop = max((part.stop for part in parts if part.session == session), default=0)
            if stop > n_held:
                return (
                    f"session {child} begins with {what} of it up to {stop}, and it has only "
                    f"{n_held}: its end was cut off. Bring it back from a backup; with "
                    "recover=True what stands before can be read"
                )
    return None


def _first_line(store: SessionStore, session: UUID, other: UUID) -> HeaderLine | None:
    """Return the first line of a log that may name another session; None for others."""
    try:
        log = store.read(session)
        first = b"" if log is None else log.data.partition(b"\n")[0]
        # Before it is decoded: most logs have nothing to do with it.
        if log is None or str(other).encode() not in first:
            return None
        line = read_lines(first + b"\n", log.where).lines[0]
    except PersistenceError:
        return None  # what cannot be believed says nothing of others
    return line if isinstance(line, HeaderLine) else None


def _created_at(header: Mapping[str, Any]) -> datetime:
    return decode_header(dict(header)).created_at


def written_log(log: StoredLog, read: LogLines) -> WrittenLog:
    """Return where a log ends whose lines were read."""
    n_rows, n_told, entries = _counted(read.lines)
    n_entries = n_told + len(entries)
    places = (line for line in reversed(read.lines) if isinstance(line, PlacementLine | HeaderLine))
    return WrittenLog(
        read.reader,
        n_rows,
        n_entries,
        entries,
        log.is_finished,
        read.n_torn,
        _open_lines(read.lines),
        next(places, None),
    )


def knows_open_calls(written: WrittenLog, body: Body) -> bool:
    """Tell whether what a log says last of open calls is what a session knows of them.

    One that has made rows or entries since the log was written knows more than that.
    """
    if (written.n_rows, written.n_entries) != (len(body.table), len(body.record)):
        return True
    left = body.unfinished
    begun = {(each.row, each.call, each.at) for each in (left.intents if left else ())}
    ended = {each.run.id for each in (left.results if left else ())}
    last = {(line.row, line.call): line for line in written.open_lines}
    return all(
        line.run.id in ended if isinstance(line, ResultLine) else (*place, line.at) in begun
        for place, line in last.items()
    )


def _counted(lines: Iterable[Line]) -> tuple[int, int, tuple[UUID, ...]]:
    """Return how many rows lines tell, how many entries of others, and the ids of their own."""
    n_rows = n_entries = 0
    entries: list[UUID] = []
    without_row: set[UUID] = set()
    for line in lines:
        match line:
            case HeaderLine():
                n_rows, n_entries = n_told(line.rows), n_told(line.entries)
            case RowLine():
                n_rows += 1
            case EntryLine(entry):
                entries.append(entry.id)
            case ResultLine(run=run, shown=None):
                without_row.add(run.id)
            case RoundLine(_, results):
                n_rows += len(results) - len(without_row.intersection(results))
                entries += results
            case _:
                pass
    return n_rows, n_entries, tuple(entries)


def _open_lines(lines: Sequence[Line]) -> tuple[IntentLine | ResultLine, ...]:
    left: list[IntentLine | ResultLine] = []
    for line in reversed(lines):
        if isinstance(line, RowLine | EntryLine | RoundLine):
            break
        if isinstance(line, IntentLine | ResultLine):
            left.append(line)
    return tuple(left[::-1])
