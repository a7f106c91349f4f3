"""Logs that were read: their contents, sets of them, and the sessions they are built into."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from hashlib import sha256
from operator import attrgetter
from types import MappingProxyType
from typing import Generic, Protocol, Self, TypeVar
from uuid import UUID

from msgspec import structs

from rath._async.deferred import Deferred
from rath._core.blobs import Blob, is_digest
from rath._core.dataclasses import dataclass
from rath._core.vector import Vector
from rath.backend.effects import FileEffect
from rath.errors import PersistenceError, SessionDamaged
from rath.llm.image import Image
from rath.session.bindings import PlacementRef
from rath.session.body import Body, State, Unfinished
from rath.session.chunk import ChunkRow, ChunkTable
from rath.session.events import (
    AncestorRange,
    GivenUsage,
    Header,
    PendingResult,
    PlacementChange,
    Row,
)
from rath.session.graph.recording import PARENT_ROWS, Edge, Provenance
from rath.session.log.format import BlobMaker
from rath.session.log.reader import LineReader, LogLines, read_lines
from rath.session.log.store import SessionStore, StoredLog
from rath.session.open_calls import own_operation
from rath.session.outcome import NeedsDecision, Outcome
from rath.session.record import Entry, ModelCall, Operation, Record, ToolRun

T = TypeVar("T")


class Hash(Protocol):
    """A digest that is being made."""

    def update(self, data: bytes, /) -> None: ...
    def copy(self) -> Self: ...
    def hexdigest(self) -> str: ...


class Ranges(Generic[T]):
    """The rows or entries of one session, and digests over ranges of them.

    A digest goes on from the longest one that is known: those of a chain of sessions cost together
    as much as one over all their rows.

    Args:
        items: All of them.
        to_bytes: What is hashed of one.
        known: A size, and the digest over that many items.
    """

    __slots__ = ("_prefixes", "_to_bytes", "items")

    def __init__(
        self,
        items: Vector[T],
        to_bytes: Callable[[T], bytes],
        known: tuple[int, Hash] | None = None,
    ) -> None:
        self.items: Vector[T] = items
        self._to_bytes = to_bytes
        self._prefixes: list[tuple[int, Hash]] = [(0, sha256())]
        if known is not None and known[0]:
            self._prefixes.append(known)

    def digest(self, start: int, stop: int) -> str:
        """Return the sha256 over the items from `start` to `stop`, in hex."""
        if not start:
            return self.known(stop)[1].hexdigest()
        return self._grown(sha256(), start, stop).hexdigest()

    def known(self, size: int) -> tuple[int, Hash]:
        """Return `size` and the digest over that many items, which must not be changed."""
        at = bisect_right(self._prefixes, size, key=lambda known: known[0])
        n_hashed, digest = self._prefixes[at - 1]
        if n_hashed != size:
            digest = self._grown(digest.copy(), n_hashed, size)
            self._prefixes.insert(at, (size, digest))
        return size, digest

    def extended(self, items: Sequence[T]) -> Ranges[T]:
        """Return these and some more."""
        return Ranges(self.items.extend(items), self._to_bytes, self._prefixes[-1])

    def _grown(self, digest: Hash, start: int, stop: int) -> Hash:
        digest.update(b"".join(map(self._to_bytes, self.items.prefix(stop).since(start))))
        return digest


def joined(
    parts: Sequence[AncestorRange],
    find: Callable[[UUID], Ranges[T] | None],
    to_bytes: Callable[[T], bytes],
    what: str,
) -> tuple[Ranges[T], PersistenceError | None]:
    """Join the inherited ranges, up to the first one that cannot be had, and say why.

    The first range shares the memory of the session that it is from.

    Args:
        parts: The ranges, in order.
        find: Gives the rows or entries of a session, None where it is not there.
        to_bytes: What is hashed of one.
        what: What they are, for messages: "rows" or "entries".
    """
    ranges = Ranges(Vector[T](), to_bytes)
    for part in parts:
        source = find(part.session)
        problem = _problem(part, source, what)
        if problem is not None or source is None:
            return ranges, problem
        if not len(ranges.items) and not part.start:
            ranges = Ranges(source.items.prefix(part.stop), to_bytes, source.known(part.stop))
        else:
            ranges = ranges.extended(source.items.prefix(part.stop).since(part.start))
    return ranges, None


def _problem(part: AncestorRange, source: Ranges[T] | None, what: str) -> PersistenceError | None:
    begins = f"the session begins with {what} {part.start} to {part.stop} of session {part.session}"
    if source is None:
        return PersistenceError(
            f"{begins}, which is not there; bring that one back from the trash or import it"
        )
    if part.stop > len(source.items):
        return PersistenceError(
            f"{begins}, which has only {len(source.items)}: its log was cut, or is another one"
        )
    if source.digest(part.start, part.stop) != part.digest:
        return PersistenceError(
            f"{begins}, and these are not what they were: its log was changed, or is another one"
        )
    return None


UNDO = "Session.undo"
"""The operator of sessions that leave rows of their parent out."""


@dataclass(frozen=True, slots=True)
class LoadedSession:
    """A session as its log and those of its ancestors tell it."""

    content: ParsedLog
    rows: Ranges[ChunkRow]
    entries: Ranges[Entry]
    """With those that came late."""

    n_of_run: int
    """How many of the entries are not late."""

    cell: Deferred[Body]
    """The content as what was made of it holds it: without late entries."""

    provenance: Provenance
    problem: SessionDamaged | None = None
    """Why it is only a beginning."""

    @property
    def body(self) -> Body:
        """The content as the session itself holds it: with late entries, and what is left open."""
        unfinished = None if self.problem else self.content.unfinished
        return replace(self.cell.result(), record=self.entries.items, unfinished=unfinished)

    def body_at(self, n_rows: int, n_entries: int) -> Body:
        """Return the content as it was when the run had made that much."""
        table, record = self.rows.items.prefix(n_rows), self.entries.items.prefix(n_entries)
        return Body(ChunkTable(table), record, given=self.cell.result().given)


def build(
    contents: Iterable[ParsedLog],
    *,
    recover: bool = False,
    known: Mapping[UUID, LoadedSession] = MappingProxyType({}),
) -> dict[UUID, LoadedSession]:
    """Return the sessions that logs tell, by id.

    Args:
        contents: What the logs say; what a session builds on stands before it.
        recover: Make of a session what can be believed, instead of raising.
        known: Sessions that were built before, on which these stand too; they are returned as well.

    Raises:
        SessionDamaged: A session begins with what is not there or is not what it was, or its
            counts do not fit.
    """
    built = dict(known)
    for content in contents:
        built[content.header.session] = _build_one(content, built, recover=recover)
    return built


def _build_one(
    content: ParsedLog, built: Mapping[UUID, LoadedSession], *, recover: bool
) -> LoadedSession:
    header = content.header
    rows, no_rows = joined(
        header.rows,
        lambda each: built[each].rows if each in built else None,
        attrgetter("digest"),
        "rows",
    )
    entries, no_entries = joined(
        header.entries,
        lambda each: built[each].entries if each in built else None,
        attrgetter("id.bytes"),
        "entries",
    )
    problem = no_rows or no_entries
    n_inherited = n_of_run = len(entries.items)
    outcome: Outcome = NeedsDecision(header.session, ())
    if problem is None:
        own, problem = _with_second_parents(content, entries.items, built)
        rows, entries = rows.extended(content.rows), entries.extended(sharing_effects(own))
        rows = _before_its_summary(content, rows, built)
        n_own = content.state.n_of_run
        n_of_run = n_inherited + (len(own) if n_own is None else n_own)
        problem = problem or _miscounted(content, len(rows.items), n_of_run)
        outcome = content.state.outcome
    damage = content.problem
    if problem is not None:
        damage = SessionDamaged(str(problem), where=content.where, line=1)
        if not recover:
            raise damage
    table, record = ChunkTable(rows.items), entries.items.prefix(n_of_run)
    edges = tuple(_edge(header, parent, built.get(parent)) for parent in header.parents)
    return LoadedSession(
        content=content,
        rows=rows,
        entries=entries,
        n_of_run=n_of_run,
        cell=Deferred.of(Body(table, record, outcome, _prior_usage(content), content.unfinished)),
        provenance=Provenance(header.operator, header.kind, edges, header.extras),
        problem=damage,
    )


def _before_its_summary(
    content: ParsedLog, rows: Ranges[ChunkRow], built: Mapping[UUID, LoadedSession]
) -> Ranges[ChunkRow]:
    """Return the rows of a log; of a compression that has none yet, those of its input."""
    operation, parents = content.operation, content.header.parents
    has_only_header = content.state.trailer is None and not len(rows.items)
    if not has_only_header or operation is None or operation.kind != "compress" or not parents:
        return rows
    user = built.get(parents[0])
    return rows if user is None else user.rows


def _edge(header: Header, parent: UUID, loaded: LoadedSession | None) -> Edge:
    if loaded is None:
        return Edge(parent)
    n_rows = max((part.stop for part in header.rows if part.session == parent), default=None)
    if n_rows is None:
        n_rows_field = dict(header.extras).get(PARENT_ROWS)
        n_rows = n_rows_field if isinstance(n_rows_field, int) else None
    n_entries = max((part.stop for part in header.entries if part.session == parent), default=0)
    # A parent that was recovered may have less than it had.
    n_entries = min(n_entries, len(loaded.entries.items))
    if n_rows is not None and n_rows < len(loaded.rows.items) and header.operator != UNDO:
        # It has gone on since: what was made inside one of its calls knew its rows so far.
        body = Deferred.of(loaded.body_at(n_rows, n_entries))
        return Edge(parent, body, loaded.provenance, place=_place(loaded))
    late = loaded.entries.items.prefix(n_entries) if n_entries > loaded.n_of_run else None
    return Edge(parent, loaded.cell, loaded.provenance, late, _place(loaded))


def _place(loaded: LoadedSession) -> PlacementRef:
    line = loaded.content.place
    where = line.sandbox_backend, line.sandbox_spec, line.sandbox_handle_id
    return PlacementRef(*where, line.workspace)


def _prior_usage(content: ParsedLog) -> tuple[GivenUsage, ...]:
    trailer = content.state.trailer
    if content.reader.takes_more or trailer is None or trailer.usage is None:
        return content.header.given
    # Version 1 kept no calls, but their sum.
    return (GivenUsage(content.header.session, trailer.usage),)


def _with_second_parents(
    content: ParsedLog, inherited: Record, built: Mapping[UUID, LoadedSession]
) -> tuple[list[Entry], PersistenceError | None]:
    """Return the own entries, merges with the record that the second parent had."""
    decoder = content.reader.decoder
    by_id = {entry.id: entry for entry in (*inherited, *content.entries)} if decoder.theirs else {}
    entries: list[Entry] = []
    problem: PersistenceError | None = None
    for at, entry in enumerate(content.entries, len(inherited)):
        if isinstance(entry, Operation):
            theirs = decoder.theirs.get(entry.id, ())
            if theirs and all(each in by_id for each in theirs):
                entry = structs.replace(entry, theirs=Vector(by_id[each] for each in theirs))
            elif entry.id in decoder.n_theirs:
                entry, lacks = _with_second_parent(content, entry, built)
                problem = problem or lacks
            problem = problem or _overcounted(content, entry, at)
        entries.append(entry)
    return entries, problem


def _overcounted(content: ParsedLog, operation: Operation, at: int) -> PersistenceError | None:
    """Return why an operation of this session cannot have begun with so many entries.

    What ran inside a tool call stands in this record, too, and counts in that of its own session.
    """
    if (
        operation.session != content.header.session
        or operation.n_ours is None
        or 0 <= operation.n_ours <= at
    ):
        return None
    return PersistenceError(
        f"operation {operation.id} was made when its first parent had {operation.n_ours} entries, "
        f"and {at} stand before it: something was left out, or it is another one"
    )


def _with_second_parent(
    content: ParsedLog, merge: Operation, built: Mapping[UUID, LoadedSession]
) -> tuple[Operation, PersistenceError | None]:
    """Return a merge with as many entries of the second parent as it had; None for one unknown."""
    n_theirs = content.reader.decoder.n_theirs[merge.id]
    parents = content.header.parents
    if not n_theirs:
        return structs.replace(merge, theirs=Vector[Entry]()), None
    if merge.session != content.header.session or len(parents) < 2 or parents[1] not in built:
        return merge, None
    theirs = built[parents[1]].entries.items
    if 0 <= n_theirs <= len(theirs):
        return structs.replace(merge, theirs=theirs.prefix(n_theirs)), None
    return merge, PersistenceError(
        f"the merge was made when its second parent {parents[1]} had {n_theirs} entries, and it "
        f"has only {len(theirs)}: its log was cut, or is another one"
    )


def _miscounted(content: ParsedLog, n_rows: int, n_entries: int) -> PersistenceError | None:
    trailer = content.state.trailer
    if trailer is None or not content.reader.takes_more:
        return None
    if (trailer.n_rows, trailer.n_entries) == (n_rows, n_entries):
        return None
    return PersistenceError(
        f"the trailer counts {trailer.n_rows} rows and {trailer.n_entries} entries, and there are "
        f"{n_rows} and {n_entries}"
    )


def built_from(content: ParsedLog, source: LogSource) -> LoadedSession:
    """Return a session as its log and those of its ancestors tell it.

    Raises:
        SessionDamaged: One of them is not what was written.
    """
    contents = closure(content, source.find_ancestor)
    return build(contents, recover=source.recover)[content.header.session]


def sharing_effects(entries: Sequence[Entry]) -> list[Entry]:
    """Return entries in which a call tells of the very effects that calls inside it tell of.

    O(entries), and for each round once more what happened inside its calls.
    """
    out_entries: list[Entry] = []
    for entry in entries:
        if isinstance(entry, ToolRun) and entry.file_effects:
            inside = _effects_inside(out_entries, entry)
            if inside:
                effects = tuple(_take_known(effect, inside) for effect in entry.file_effects)
                entry = structs.replace(entry, file_effects=effects)
        out_entries.append(entry)
    return out_entries


def _effects_inside(before: Sequence[Entry], call: ToolRun) -> list[FileEffect]:
    """Return the effects of other runs since the model asked for a call, each once."""
    effects: dict[int, FileEffect] = {}
    for entry in reversed(before):
        if isinstance(entry, ModelCall) and entry.operation == call.operation:
            break
        if isinstance(entry, ToolRun) and entry.operation != call.operation:
            effects |= {id(effect): effect for effect in reversed(entry.file_effects)}
    return list(effects.values())[::-1]


def _take_known(effect: FileEffect, inside: list[FileEffect]) -> FileEffect:
    """Return the effect that is known already, and let it be known no more; else `effect`."""
    for at, known in enumerate(inside):
        if known == effect and known.sandbox == effect.sandbox:
            return inside.pop(at)
    return effect


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
        if with_images is not None and isinstance(event, _MAY_SHOW):
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


_MAY_SHOW = (Row, PendingResult, Operation)
"""Events that may have images."""


def _with_images(
    event: Row | PendingResult | Operation, with_images: WithImages
) -> Row | PendingResult | Operation:
    """Return an event whose images have their bytes."""
    if isinstance(event, Row):
        row = event.row
        return Row(event.index, with_images(row)) if row.images else event
    match event:
        case PendingResult(shown=shown):
            if shown is None or not shown.images:
                return event
            return structs.replace(event, shown=with_images(shown))
        case Operation(head=head):
            if not any(row.images for row in head):
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
    _blob_maker: BlobMaker = field(init=False, repr=False)
    _seen: dict[UUID, object] = field(default_factory=dict[UUID, object], init=False, repr=False)
    """How each log was when it was read last."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_blob_maker", BlobMaker(self.make_blob))

    def read(self, session: UUID) -> StoredLog | None:
        """Return the log of a session, None where there is none.

        Raises:
            PersistenceError: It cannot be read.
        """
        log = self.store.read(session)
        self._seen[session] = _state(log)
        return log

    def has_changed(self, session: UUID | None = None) -> bool:
        """Tell whether a log is another one than when it was read.

        Args:
            session: Whose log; by default all that were read, which are read again.

        Raises:
            PersistenceError: One cannot be read.
        """
        seen = self._seen if session is None else {session: self._seen.get(session)}
        return any(_state(self.store.read(each)) != state for each, state in seen.items())

    def content(self, data: bytes, where: str, *, is_finished: bool) -> ParsedLog:
        """Return the content of a log.

        Raises:
            SessionDamaged: It cannot be believed.
        """
        read = read_lines(
            data, where, is_finished=is_finished, make_blob=self._blob_maker, recover=self.recover
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
