"""Logs that were read and folded, one or a set of them."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field, replace
from typing import TypeVar
from uuid import UUID

from msgspec import structs

from rath._core.blobs import Blob, is_digest
from rath.errors import PersistenceError, SessionDamaged
from rath.llm.image import Image
from rath.session.chunk import ChunkRow
from rath.session.events import Header, PendingResult, PlacementChange, Row
from rath.session.log.reader import LineReader, LogLines, read_lines
from rath.session.log.store import SessionStore, StoredLog
from rath.session.open_calls import own_operation
from rath.session.record import Entry, Operation
from rath.session.state import State, Unfinished

WithImages = Callable[[ChunkRow], ChunkRow]


@dataclass(slots=True)
class ParsedLog:
    """A log whose events were read and folded."""

    header: Header
    where: str
    reader: LineReader
    """Where the log can be gone on with."""

    rows: list[ChunkRow]
    """Its own; those that it begins with are others'."""

    entries: list[Entry]
    """Those of the run, and then those that came late."""

    state: State
    n_torn: int = 0
    """Bytes at its end that a writer has left which was cut off."""

    is_finished: bool = False
    """Whether the log has its final name."""

    problem: SessionDamaged | None = None
    """What could not be believed; the rest is from before it."""

    @property
    def place(self) -> Header | PlacementChange:
        """Where the session works."""
        return self.state.place or self.header

    @property
    def unfinished(self) -> Unfinished | None:
        """The unfinished part of the run; None once it has ended and waits for nothing."""
        is_open = self.state.trailer is None or self.state.is_open
        return self.state.unfinished if is_open else None

    @property
    def n_inherited_entries(self) -> int:
        """How many entries the session begins with that are another's."""
        return sum(part.stop - part.start for part in self.header.entries)

    @property
    def n_entries(self) -> int:
        """Of the whole record."""
        return self.n_inherited_entries + len(self.entries)

    @property
    def operation(self) -> Operation | None:
        """The operation that makes the session, where the log says it."""
        return own_operation(self.entries, self.header.session)

    def require(self, session: UUID) -> None:
        """Refuse the log of another session.

        Raises:
            SessionDamaged: It is one.
        """
        if self.header.session != session:
            raise SessionDamaged(
                f"is the log of session {self.header.session}, expected that of {session}; a file "
                "under another name is read by its path",
                where=self.where,
                line=1,
            )


def parse_log(
    read: LogLines,
    with_images: WithImages | None = None,
    *,
    recover: bool = False,
    is_finished: bool = False,
) -> ParsedLog:
    """Return the fold of the lines of a log.

    Args:
        read: All that can be believed.
        with_images: Gives the images of a row their bytes; None leaves them without.
        recover: Return what stands before a line that contradicts those before it, instead of
            raising.
        is_finished: Whether the log has its final name.

    Raises:
        SessionDamaged: Lines contradict each other.
    """
    header, reader = read.header, read.reader
    rows: list[ChunkRow] = []
    entries: list[Entry] = []
    n_before = sum(part.stop - part.start for part in header.rows)
    state = State(header.session, rows, entries, n_before=n_before)
    problem = read.problem
    for number, event in enumerate(read.lines, start=1):
        if with_images is not None and isinstance(event, Row | PendingResult | Operation):
            event = _with_images(event, with_images)
        try:
            state.apply(event)
        except PersistenceError as exc:
            damage = SessionDamaged(str(exc), where=reader.where, line=number)
            if not recover:
                raise damage from exc
            problem = damage
            break
    return ParsedLog(
        header, reader.where, reader, rows, entries, state, read.n_torn, is_finished, problem
    )


def _with_images(
    event: Row | PendingResult | Operation, with_images: WithImages
) -> Row | PendingResult | Operation:
    """Return an event whose images have their bytes."""
    match event:
        case Row(index, row):
            return Row(index, with_images(row)) if "images" in row.payload else event
        case PendingResult(shown=shown):
            if shown is None or "images" not in shown.payload:
                return event
            return structs.replace(event, shown=with_images(shown))
        case Operation(head=head):
            if not any("images" in row.payload for row in head):
                return event
            return structs.replace(event, head=tuple(map(with_images, head)))


Find = Callable[[UUID], ParsedLog | None]
"""Gives what the log of a session says, None where there is none."""


def closure(content: ParsedLog, find: Find, *, known: Container[UUID] = ()) -> list[ParsedLog]:
    """Parse the logs of a session and its ancestors, each once, after those it builds on.

    Ancestors without a log are left out. Cost: each log is read once; no recursion.

    Args:
        content: What the session itself says.
        find: Reads the others.
        known: Those that are left out, with what they came from, since they were built before.

    Raises:
        SessionDamaged: A log cannot be believed, or a session builds on itself.
    """
    logs: dict[UUID, ParsedLog | None] = {content.header.session: content}
    entered: set[UUID] = set()
    done: dict[UUID, ParsedLog] = {}
    todo = [(content.header.session, False)]
    while todo:
        session, is_after_parents = todo.pop()
        if session not in logs:
            logs[session] = _found(session, find, content.header.session)
        current = logs[session]
        if current is None or session in done:
            continue
        if is_after_parents:
            done[session] = current
            continue
        if session in entered:
            raise SessionDamaged(
                f"session {session} builds on a session that builds on itself",
                where=current.where,
                line=1,
            )
        entered.add(session)
        todo.append((session, True))
        needed = (each for each in needed_by(current) if each not in done and each not in known)
        todo += [(each, False) for each in needed]
    return list(done.values())


def needed_by(content: ParsedLog) -> Iterator[UUID]:
    """Yield the sessions that a session builds on, each once: parents, and sources of its parts.

    Version 1 stored no parents: files that bear their names say nothing of them.
    """
    header = content.header
    if content.reader.takes_more:
        parts = (part.session for part in (*header.rows, *header.entries))
        yield from dict.fromkeys((*header.parents, *parts))


def _found(session: UUID, find: Find, wanted: UUID) -> ParsedLog | None:
    try:
        return find(session)
    except SessionDamaged as exc:
        exc.add_note(f"session {wanted} came from session {session}, whose log this is")
        raise


T = TypeVar("T")

MAX_READS = 10
"""How often logs are read that change meanwhile, until what they say together is believed; a
guess. Each time all of them are read."""


@dataclass(frozen=True, slots=True)
class LogSource:
    """Reads what logs say.

    Args:
        store: Where they are, and the contents that they name.
        recover: Read each up to what cannot be believed, instead of raising.
    """

    store: SessionStore
    recover: bool = False
    _blobs: dict[str, Blob] = field(default_factory=dict[str, Blob], init=False, repr=False)
    _seen: dict[UUID, object] = field(default_factory=dict[UUID, object], init=False, repr=False)
    """How each log was when it was read last."""

    def read(self, session: UUID) -> StoredLog | None:
        """Return the log of a session, None where there is none.

        Raises:
            PersistenceError: It cannot be read.
        """
        log = self.store.read(session)
        self._seen[session] = _state(log)
        return log

    def has_changed(self) -> bool:
        """Tell whether a log is another one than when it was read; reads all of them again.

        Raises:
            PersistenceError: One cannot be read.
        """
        return any(_state(self.store.read(each)) != state for each, state in self._seen.items())

    def content(self, data: bytes, where: str, *, is_finished: bool) -> ParsedLog:
        """Return the content of a log.

        Raises:
            SessionDamaged: It cannot be believed.
        """
        read = read_lines(
            data, where, is_finished=is_finished, make_blob=self.make_blob, recover=self.recover
        )
        return parse_log(read, self.with_images, recover=self.recover, is_finished=is_finished)

    def find(self, session: UUID) -> ParsedLog | None:
        """Return the content of the log of a session, None where there is none.

        Raises:
            PersistenceError: It cannot be read.
            SessionDamaged: It cannot be believed, or is that of another session.
        """
        log = self.read(session)
        if log is None:
            return None
        content = self.content(log.data, log.where, is_finished=log.is_finished)
        content.require(session)
        return content

    def find_ancestor(self, session: UUID) -> ParsedLog | None:
        """Return the content of the log of a session; also None for none to believe, to recover."""
        try:
            return self.find(session)
        except SessionDamaged:
            if not self.recover:
                raise
            return None

    def make_blob(self, digest: str, size: int, is_stored: bool) -> Blob:
        """Return a blob whose bytes are read from the store when somebody wants them.

        There is one for each content, so that it is held once however often it is named.
        """
        if not is_stored:
            return Blob(digest, size)
        blob = self._blobs.get(digest)
        if blob is None or blob.size != size:
            blob = self._blobs[digest] = Blob.fetched(digest, size, self.store.blob)
        return blob

    def with_images(self, row: ChunkRow) -> ChunkRow:
        """Return a row whose images have their bytes when somebody wants them."""
        return row.with_images(tuple(map(self._image, row.images)))

    def _image(self, image: Image) -> Image:
        blob = image.blob
        if not is_digest(blob.digest):
            return image
        absent = f"its bytes in {self.store.where} are missing or damaged"
        return replace(image, blob=self.make_blob(blob.digest, blob.size, True), absent=absent)


def read_together(
    store: SessionStore,
    read: Callable[[LogSource], T],
    *,
    recover: bool = False,
    is_sound: Callable[[T], bool] = lambda _: True,
    first: LogSource | None = None,
) -> T:
    """Read several logs, again until they belong together.

    Logs are written parents first, and read one after another: one that was read early may have
    been gone on with before its child is read, which then begins with more than was read. So what
    looks damaged is read again as long as logs have changed meanwhile.

    Args:
        store: Where the logs are.
        read: Reads them; called again with a new source.
        recover: As for `LogSource`.
        is_sound: Tells whether there is no damage in what was made.
        first: The source with which to begin; a new one by default.

    Raises:
        SessionDamaged: What `read` raises of logs that stay as they are.
    """
    for _ in range(MAX_READS - 1):
        source, first = first or LogSource(store, recover), None
        try:
            result = read(source)
        except SessionDamaged:
            if not source.has_changed():
                raise
        else:
            if is_sound(result) or not source.has_changed():
                return result
    return read(LogSource(store, recover))


def _state(log: StoredLog | None) -> object:
    # The last line ends with the checksum over all before it.
    return None if log is None else (len(log.data), log.is_finished, log.data[-64:])


def missing(session: UUID, store: SessionStore) -> PersistenceError:
    """Return the error that a session is not there."""
    return PersistenceError(
        f"session {session} not found in {store.where}; list_persisted_sessions() tells what is "
        "there"
    )
