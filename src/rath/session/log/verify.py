"""Checks of stored sessions, and moving them to the trash so that the others load as before."""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Literal
from uuid import UUID

from msgspec import structs

from rath._core.blobs import Blob
from rath._core.dataclasses import dataclass
from rath.errors import PersistenceError, SessionDamaged
from rath.llm.chat_response import RathLLMTokenUsage
from rath.session.events import AncestorRange, Event, Header, Row
from rath.session.graph.kind import LineageKind
from rath.session.log import index
from rath.session.log.build import (
    LoadedSession,
    LogSource,
    ParsedLog,
    build,
    built_from,
    closure,
    missing,
    needed_by,
    read_together,
)
from rath.session.log.files import FileStore
from rath.session.log.format import Encoder
from rath.session.log.paths import checked_id
from rath.session.log.reader import LineReader, read_lines
from rath.session.log.store import SessionStore, default_store
from rath.session.log.writer import LogExtent, lost_lines
from rath.session.record import Entry, Operation, ToolRun

__all__ = ["delete_session", "prunable_sessions", "prune_sessions"]


Severity = Literal["damaged", "missing", "note"]
"""`damaged`: something is not what was written. `missing`: something that was kept is not there any
more; the rest can be believed. `note`: worth knowing, nothing is wrong."""

ProblemKind = Literal[
    "line", "range", "usage", "parent", "blob", "cut off", "unfinished", "unchecked"
]
"""Kind of a problem.

`line`: one that does not fit its checksum, or those before it. `range`: what the session begins
with is not what another one holds, or the trailer counts otherwise. `usage`: the trailer sums up
otherwise. `parent`: its log is not there. `blob`: content that was kept is not there, or is another
one. `cut off`: bytes at the end are no whole line. `unfinished`: the run has not ended.
`unchecked`: version 1 has no checksums."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is not as it should be."""

    severity: Severity
    kind: ProblemKind
    session: UUID
    """In whose log."""

    text: str
    """The message, with the place."""


@dataclass(frozen=True, slots=True)
class Verification:
    """The findings of a check of stored sessions."""

    session: UUID
    n_sessions: int
    """Logs that were read, with those of its ancestors."""

    n_lines: int
    n_blobs: int
    """Contents that were read."""

    problems: tuple[Problem, ...] = ()

    @property
    def is_sound(self) -> bool:
        """Whether all of it is what was written, and all that was kept is there."""
        return all(problem.severity == "note" for problem in self.problems)

    @property
    def worst(self) -> Severity | None:
        """The worst severity, None where there is no problem."""
        severities = {problem.severity for problem in self.problems}
        ranked: tuple[Severity, ...] = ("damaged", "missing", "note")
        return next((severity for severity in ranked if severity in severities), None)


def verify(store: SessionStore, session: UUID | str) -> Verification:
    """Check a stored session, and all that it came from.

    Checksums of lines, ranges of other sessions with which sessions begin, counts and sums of
    trailers, and contents that were kept. Cost: every log is read, and every content.

    Raises:
        ValueError: `session` is no UUID.
        PersistenceError: There is no such session, or it cannot be read.
    """
    wanted = checked_id(session)

    def look(source: LogSource) -> Verification:
        return _verified(source, wanted)

    return read_together(
        store, look, recover=True, is_sound=lambda verification: verification.worst != "damaged"
    )


def _verified(source: LogSource, wanted: UUID) -> Verification:
    memory = index.index_memory(source.store, wanted)
    log = source.read(wanted)
    if log is None:
        raise missing(wanted, source.store)
    if not log.is_finished and b"\n" not in log.data:
        text = f"{log.where}: its writer was cut off in the first line, so it says nothing"
        return Verification(wanted, 1, 0, 0, (Problem("note", "cut off", wanted, text),))
    try:
        content = source.content(log.data, log.where, is_finished=log.is_finished)
        content.require(wanted)
    except SessionDamaged as exc:
        problem = Problem("damaged", "line", wanted, str(exc))
        return Verification(wanted, 1, 0, 0, (problem,))
    checking = _Checking(source)
    contents = checking.closure(content)
    return checking.result(wanted, contents, memory)


class _Checking:
    """Collects problems of the logs of one session and its ancestors."""

    def __init__(self, source: LogSource) -> None:
        self._source = source
        self._problems: list[Problem] = []
        self._unread: set[UUID] = set()

    def closure(self, content: ParsedLog) -> list[ParsedLog]:
        """Return the credible logs of a session and its ancestors, parents first."""
        try:
            return closure(content, self._find)
        except SessionDamaged as exc:  # it builds on itself
            self._add("damaged", "range", content.header.session, str(exc))
            return [content]

    def result(
        self, session: UUID, contents: list[ParsedLog], memory: index.IndexMemory
    ) -> Verification:
        """Look at all, and return what was found."""
        built = build(contents, recover=True)
        self._look_at_end(built[session], memory)
        there = {content.header.session for content in contents}
        digests: dict[str, Blob] = {}
        for content in contents:
            self._look(content, built[content.header.session], there)
            self._look_at_blobs(content, digests)
        return Verification(
            session,
            len(contents),
            sum(content.reader.n_lines for content in contents),
            len(digests),
            tuple(self._problems),
        )

    def _find(self, session: UUID) -> ParsedLog | None:
        try:
            return self._source.find(session)
        except PersistenceError as exc:
            self._unread.add(session)
            self._add("damaged", "line", session, str(exc))
            return None

    def _look_at_end(self, built: LoadedSession, memory: index.IndexMemory) -> None:
        """Ask others whether the session that is checked had more."""
        content, header = built.content, built.content.header
        if content.problem is not None or built.problem is not None:
            return  # what stands behind the damage is not known
        sizes = len(built.rows.items), len(built.entries.items)
        extent = LogExtent(*sizes, content.reader.n_lines, header.created_at)
        problem = lost_lines(self._source.store, header.session, extent, memory)
        if problem is not None:
            self._add("damaged", "line", header.session, f"{content.where}: {problem}")

    def _look(self, content: ParsedLog, built: LoadedSession, there: set[UUID]) -> None:
        session = content.header.session
        if content.problem is not None:
            self._add("damaged", "line", session, str(content.problem))
        elif built.problem is not None:
            self._add("damaged", "range", session, str(built.problem))
        else:
            self._look_at_usage(content, built)
        for parent in needed_by(content):
            if parent not in there and parent not in self._unread:
                self._add(
                    "missing",
                    "parent",
                    session,
                    f"{content.where}: session {parent}, which it came from, is not in "
                    f"{self._source.store.where}",
                )
        if content.n_torn:
            self._add(
                "note",
                "cut off",
                session,
                f"{content.where}: the last {content.n_torn} bytes are no whole line: its writer "
                "was cut off; they are left out",
            )
        if content.state.trailer is None and content.problem is None:
            self._add("note", "unfinished", session, f"{content.where}: the run has not ended")
        if not content.reader.takes_more:
            self._add(
                "note",
                "unchecked",
                session,
                f"{content.where}: of schema version {content.reader.version}, which has no "
                "checksums",
            )

    def _look_at_usage(self, content: ParsedLog, built: LoadedSession) -> None:
        trailer = content.state.trailer
        if trailer is None or not content.reader.takes_more:
            return
        recorded, counted = trailer.usage, built.cell.result().usage()
        if _counts(recorded) != _counts(counted):
            self._add(
                "damaged",
                "usage",
                content.header.session,
                f"{content.where}: the trailer says {_counts(recorded)} tokens (prompt, "
                f"completion, total), and the model calls sum up to {_counts(counted)}",
            )

    def _look_at_blobs(self, content: ParsedLog, checked: dict[str, Blob]) -> None:
        for blob in _stored_blobs(content):
            if blob.digest in checked:
                continue
            checked[blob.digest] = blob
            problem = self._problem_of(blob)
            if problem is not None:
                text = f"{content.where}: content {blob.digest}, {blob.size} bytes, {problem}"
                self._add("missing", "blob", content.header.session, text)

    def _problem_of(self, blob: Blob) -> str | None:
        try:
            data = self._source.store.blob(blob.digest)
        except PersistenceError as exc:
            return f"cannot be read: {exc}"
        if data is None:
            return f"is not in {self._source.store.where} any more, or is damaged there"
        if sha256(data).hexdigest() != blob.digest or len(data) != blob.size:
            return "is another one"
        return None

    def _add(self, severity: Severity, kind: ProblemKind, session: UUID, text: str) -> None:
        self._problems.append(Problem(severity, kind, session, text))


def _stored_blobs(content: ParsedLog) -> Iterator[Blob]:
    """Yield the contents that a log names and that were kept."""
    results = content.state.results.values()
    for row in (*content.rows, *(each.shown for each in results if each.shown is not None)):
        yield from (image.blob for image in row.images if image.blob.is_kept)
    for entry in content.entries:
        yield from (blob for blob in _blobs_of(entry) if blob.is_kept)
    for result in results:
        yield from (blob for blob in _blobs_of(result.run) if blob.is_kept)


def _blobs_of(entry: Entry) -> Iterator[Blob]:
    if not isinstance(entry, ToolRun):
        return
    yield entry.shown
    sides = (side for effect in entry.file_effects for side in (effect.before, effect.after))
    files = None if entry.start is None else entry.start.files
    yield from (blob for blob in (entry.full, files, *sides) if blob is not None)


def _counts(usage: RathLLMTokenUsage | None) -> tuple[int, int, int] | None:
    if usage is None:
        return None
    return usage.prompt_tokens, usage.completion_tokens, usage.total_tokens


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
    advice = "wait for its run to end, or cancel it, then delete it"
    store.require_free(wanted, advice=advice)
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
    store.require_free(
        child, advice=f"it begins with what session {of} holds, so wait for its run to end"
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
