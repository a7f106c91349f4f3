"""Sessions of a store put together with what they came from and what their logs name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from uuid import UUID

from rath._core.blobs import Blob
from rath.errors import PersistenceError, SessionDamaged
from rath.session.persistence.bundle.decode import Bundle
from rath.session.persistence.codec import read_lines
from rath.session.persistence.lines import (
    EntryLine,
    HeaderLine,
    HeadLine,
    Line,
    ResultLine,
    RowLine,
)
from rath.session.persistence.store.abc import SessionStore, StoredLog
from rath.session.record import Operation


def pack(
    store: SessionStore,
    sessions: Sequence[UUID],
    *,
    note: str = "",
    report: Callable[[int, int], None] | None = None,
) -> Bundle:
    """Return sessions, and all of the store that they came from, as a bundle; blocks.

    What agents did inside the tool calls of these is taken along, as far as the store holds it.

    Args:
        store: Where they are.
        sessions: Which ones.
        note: What the bundle is.
        report: Is told how many logs were read, and of how many that are known by then.

    Raises:
        PersistenceError: One of them is not there or cannot be read. What a session came from
            and the store does not hold is left out and named, as it is when the session is loaded.
        SessionDamaged: A log is not what was written.
    """
    logs: dict[UUID, StoredLog] = {}
    blobs: dict[str, bytes] = {}
    entered: set[UUID] = set()
    todo = [(session, False) for session in reversed(sessions)]
    read: dict[UUID, StoredLog] = {}
    lacks: list[UUID] = []
    inside: dict[UUID, None] = {}
    waiting: list[UUID] = []
    while todo or waiting:
        session, is_after_parents = todo.pop() if todo else (waiting.pop(0), False)
        if is_after_parents:
            logs[session] = read[session]
            if report is not None:
                report(len(logs), len(entered))
            continue
        if session in entered:
            continue
        entered.add(session)
        log = store.read(session)
        if log is None:
            if session in sessions:
                raise PersistenceError(f"{store.where} holds no session {session}")
            if session not in inside:
                lacks.append(session)
            continue
        looked = look_into(log)
        read[session] = looked.log
        for digest in looked.named - blobs.keys():
            content = store.blob(digest)
            if content is not None:
                blobs[digest] = content
        todo.append((session, True))
        todo += [(each, False) for each in looked.above]
        waiting += (each for each in looked.inside if each not in inside)
        inside |= dict.fromkeys(looked.inside)
    return Bundle(sessions=tuple(sessions), logs=logs, blobs=blobs, note=note, lacks=tuple(lacks))


@dataclass(frozen=True, slots=True)
class Looked:
    """What a log needs beside itself."""

    log: StoredLog
    """Its whole lines."""

    named: frozenset[str]
    """Digests of the contents that it names and a store should have."""

    above: tuple[UUID, ...]
    """The sessions that it came from or takes ranges of."""

    inside: tuple[UUID, ...]
    """The sessions that runs inside its tool calls made."""


def look_into(log: StoredLog) -> Looked:
    """Return what a log names.

    Raises:
        SessionDamaged: It is not what was written, or is that of another session.
    """
    named: set[str] = set()

    def take(digest: str, size: int, is_kept: bool) -> Blob:
        if is_kept:
            named.add(digest)
        return Blob(digest, size)

    found = read_lines(log.data, log.where, is_finished=log.is_finished, make_blob=take)
    header = found.lines[0]
    assert isinstance(header, HeaderLine), "a log without a header is none"
    if header.session != log.session:
        problem = f"is the log of session {header.session}, not of {log.session}"
        raise SessionDamaged(problem, where=log.where, line=1)
    named.update(digest for line in found.lines for digest in _images(line))
    data = log.data[: found.reader.n_good]
    parts = (part.session for part in (*header.rows, *header.entries))
    # Version 1 stored no parents: files that bear their names say nothing of them.
    above = dict.fromkeys((*header.parents, *parts)) if found.reader.version > 1 else ()
    whole = StoredLog(log.session, data, log.is_finished, log.where)
    told = (line.entry for line in found.lines if isinstance(line, EntryLine))
    made = (entry.session for entry in told if isinstance(entry, Operation))
    inside = dict.fromkeys(each for each in made if each != log.session and each not in above)
    return Looked(whole, frozenset(named), tuple(above), tuple(inside))


def _images(line: Line) -> list[str]:
    match line:
        case RowLine(_, row):
            rows = [row]
        case HeadLine(_, rows_of_head):
            rows = list(rows_of_head)
        case ResultLine(shown=row) if row is not None:
            rows = [row]
        case _:
            return []
    return [image.blob.digest for row in rows for image in row.images]
