"""The events of one log folded to rows, entries and open calls; and a set of such logs."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TypeVar, assert_never
from uuid import UUID

from msgspec import structs

from rath._core.blobs import Blob, is_digest
from rath.errors import PersistenceError, SessionDamaged
from rath.llm.image import Image
from rath.session.body import Unfinished
from rath.session.chunk import ChunkRow, RowId
from rath.session.events import (
    AgentRows,
    CallSetup,
    Event,
    Failed,
    Finished,
    Header,
    Intent,
    OutcomeChange,
    PartialText,
    PendingResult,
    PlacementChange,
    Reopened,
    RoundEnd,
    Row,
    ToolSchemas,
)
from rath.session.log.reader import LineReader, LogLines, read_lines
from rath.session.log.store import SessionStore, StoredLog
from rath.session.outcome import Cancelled, NeedsDecision, Outcome
from rath.session.record import Decision, Entry, ModelCall, Operation, RecordEntry, ToolRun

_Key = tuple[int, int]
"""Index of the row in which a model asked, and which of its calls."""


class OpenCalls:
    """Follows the calls of a run through the lines of its log."""

    def __init__(self, session: UUID) -> None:
        self._session = session
        self._intents: dict[_Key, Intent] = {}
        self._results: dict[_Key, PendingResult] = {}
        self._decided: set[_Key] = set()

    @property
    def intents(self) -> tuple[Intent, ...]:
        """Calls without a result, by row and place in it."""
        return tuple(self._intents[key] for key in sorted(self._intents))

    @property
    def results(self) -> tuple[PendingResult, ...]:
        """Results without a row, by row and place in it."""
        return tuple(self._results[key] for key in sorted(self._results))

    @property
    def decided(self) -> tuple[str, ...]:
        """Calls without a result about which somebody has decided."""
        undecided = {
            each.call_id for key, each in self._intents.items() if key not in self._decided
        }
        decided = [self._intents[key].call_id for key in sorted(self._decided)]
        return tuple(call_id for call_id in decided if call_id not in undecided)

    def intend(self, line: Intent) -> None:
        """Note a call that is about to be made, perhaps once more; a decision on it is used up."""
        key = line.row, line.call
        self._intents[key] = line
        # One that had stopped to wait is made from its start.
        self._results.pop(key, None)
        self._decided.discard(key)

    def decide(self, decision: Decision) -> None:
        """Note that somebody has decided about a call of which it was not known what it did."""
        if decision.choice not in ("retry", "skip", "done"):
            return
        for key, intent in self._intents.items():
            asked_in = RowId(self._session, intent.row)
            same_tool = decision.tool in (None, intent.tool) and decision.call in (
                None,
                intent.call,
            )
            same_row = asked_in in decision.rows or not decision.rows
            if decision.call_id == intent.call_id and same_tool and same_row:
                self._decided.add(key)

    def keep(self, line: PendingResult) -> None:
        """Note what became of a call."""
        self._close(line.row, line.call)
        self._results[line.row, line.call] = line

    def end_call(self, run: ToolRun) -> None:
        """Forget a call that has its entry, unless that says that it was cut off."""
        for key in [key for key, line in self._results.items() if line.run.id == run.id]:
            del self._results[key]
        if run.status == "interrupted" and not run.rows:
            return
        for key in sorted(self._intents):
            intent = self._intents[key]
            # A run inside a call has calls of its own, perhaps under the same ids.
            if (intent.operation, intent.call_id) == (run.operation, run.call_id):
                self._close(*key)
                return

    def end_round(self, row: int, results: Iterable[UUID]) -> list[PendingResult]:
        """Forget the calls of a row, and return what became of those that are named.

        Raises:
            KeyError: A result that is named is not there.
        """
        known = {line.run.id: line for line in self._results.values()}
        done = [known[entry] for entry in results]
        for key in [key for key in {*self._intents, *self._results} if key[0] == row]:
            self._results.pop(key, None)
            self._close(*key)
        return done

    def _close(self, row: int, call: int) -> None:
        self._intents.pop((row, call), None)
        self._decided.discard((row, call))


WithImages = Callable[[ChunkRow], ChunkRow]


@dataclass(slots=True)
class ParsedLog:
    """The own rows and entries of a session, and how its run stands."""

    header: Header
    where: str
    reader: LineReader
    """Where the log can be gone on with."""

    n_torn: int = 0
    """Bytes at its end that a writer has left which was cut off."""

    rows: list[ChunkRow] = field(default_factory=list[ChunkRow])
    entries: list[Entry] = field(default_factory=list[Entry])
    """Those of the run, and then those that came late."""

    n_of_run: int | None = None
    """How many of the entries the run has made, where it has ended."""

    trailer: Finished | None = None
    unfinished: Unfinished | None = None
    """None once the run has ended."""

    kept: Unfinished | None = None
    """Results without a row of a run that has ended, and waits; None where there are none."""

    outcome: Outcome | None = None
    """How a decision says it stands, where that is another than the trailer's."""

    moved: PlacementChange | None = None
    """Where the session works since, where that is another place than the header's."""

    problem: SessionDamaged | None = None
    """What could not be believed; the rest is from before it."""

    @property
    def place(self) -> Header | PlacementChange:
        """Where the session works."""
        return self.moved or self.header

    @property
    def last_written(self) -> datetime:
        """When the log was last written to, as its lines tell."""
        left = self.unfinished
        failure = None if left is None else left.failure
        times = [self.header.created_at]
        times += [entry.at for entry in self.entries[-1:]]
        times += [] if self.trailer is None else [self.trailer.closed_at]
        times += [] if failure is None else [failure.at]
        times += [intent.at for intent in (() if left is None else left.intents)]
        return max(times)

    @property
    def n_inherited_rows(self) -> int:
        """How many rows the session begins with that are another's."""
        return sum(part.stop - part.start for part in self.header.rows)

    @property
    def operation(self) -> Operation | None:
        """The operation that makes the session, where the log says it."""
        made = self.header.session
        own = (each for each in reversed(self.entries) if isinstance(each, Operation))
        return next((each for each in own if each.session == made and _makes(each)), None)

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

    def stands(self) -> Outcome:
        """Return how the run ended, or what it waits for."""
        if self.trailer is not None:
            return self.outcome or self.trailer.outcome
        left = self.unfinished
        if left is not None and left.failure is not None and left.failure.how == "cancelled":
            return Cancelled(self.header.session)
        return NeedsDecision(self.header.session, () if left is None else left.unknown_calls)


def parse_log(read: LogLines, with_images: WithImages, *, recover: bool = False) -> ParsedLog:
    """Return what the lines of a log say.

    Args:
        read: All that can be believed.
        with_images: Gives the images of a row their bytes.
        recover: Return what stands before a line that contradicts those before it, instead of
            raising.

    Raises:
        SessionDamaged: Lines contradict each other.
    """
    header, reader = read.header, read.reader
    content = ParsedLog(header, reader.where, reader, read.n_torn, problem=read.problem)
    folding = _Folding(content, with_images)
    for number, line in enumerate(read.lines[1:], start=2):
        try:
            folding.take(line)
        except PersistenceError as exc:
            damage = SessionDamaged(str(exc), where=reader.where, line=number)
            if not recover:
                raise damage from exc
            content.problem = damage
            break
    return folding.finished()


class _Folding:
    """Takes lines in order."""

    def __init__(self, content: ParsedLog, with_images: WithImages) -> None:
        self.content = content
        self._with_images = with_images
        self._calls = OpenCalls(content.header.session)
        self._partial: list[str] = []
        self._failure: Failed | None = None
        self._n_rows = content.n_inherited_rows

    def take(self, line: Event) -> None:
        """Add what a line says.

        Raises:
            PersistenceError: It contradicts the lines before it.
        """
        match line:
            case RecordEntry():
                self._take_entry(line)
            case Row(index, row):
                self._take_row(index, row)
            case Intent():
                self._calls.intend(line)
            case PendingResult(shown=shown):
                if shown is not None and "images" in shown.payload:
                    line = structs.replace(line, shown=self._with_images(shown))
                self._calls.keep(line)
            case RoundEnd():
                self._end_round(line)
            case PartialText(_, text):
                self._partial.append(text)
            case AgentRows() | ToolSchemas() | CallSetup():
                pass  # The entries that name them hold them.
            case PlacementChange():
                self.content.moved = line
            case Header():
                raise PersistenceError("duplicate header")
            case Failed() | Reopened() | OutcomeChange() | Finished():
                self._take_state(line)
            case _:
                assert_never(line)

    def finished(self) -> ParsedLog:
        """Return what all lines together say."""
        content, results = self.content, self._calls.results
        operation = None if content.operation is None else content.operation.operation
        if content.trailer is None:
            content.unfinished = Unfinished(
                operation=operation,
                intents=self._calls.intents,
                results=results,
                decided=self._calls.decided,
                partial_text="".join(self._partial),
                failure=self._failure,
            )
        elif results:
            content.kept = Unfinished(operation=operation, results=results, has_ended=True)
        return content

    def _take_row(self, index: int, row: ChunkRow) -> None:
        if index != self._n_rows:
            raise PersistenceError(f"row {index} stands where row {self._n_rows} is expected")
        self.content.rows.append(self._with_images(row) if "images" in row.payload else row)
        self._n_rows += 1
        self._partial.clear()

    def _take_entry(self, entry: Entry) -> None:
        if isinstance(entry, Operation) and any("images" in row.payload for row in entry.head):
            entry = structs.replace(entry, head=tuple(map(self._with_images, entry.head)))
        self.content.entries.append(entry)
        match entry:
            case ToolRun():
                self._calls.end_call(entry)
            case ModelCall():
                self._partial.clear()
            case Decision():
                self._calls.decide(entry)
            case _:
                pass

    def _end_round(self, line: RoundEnd) -> None:
        try:
            done = self._calls.end_round(line.row, line.results)
        except KeyError as exc:
            raise PersistenceError(
                f"the round of row {line.row} names result {exc}, which is in no line before"
            ) from exc
        for result in done:
            run = result.run
            if result.shown is not None:
                # Which row it becomes is known only now, when all calls of the round are done.
                named = RowId(self.content.header.session, self._n_rows)
                self.content.rows.append(result.shown.with_id(named))
                self._n_rows += 1
                run = structs.replace(run, rows=(named,))
            self.content.entries.append(run)

    def _take_state(self, line: Failed | Reopened | OutcomeChange | Finished) -> None:
        match line:
            case Failed():
                self._failure = line
            case Reopened():
                self._reopen()
            case OutcomeChange(outcome):
                self.content.outcome = outcome
            case Finished():
                self.content.trailer = line
                self.content.n_of_run = len(self.content.entries)
            case _:
                assert_never(line)

    def _reopen(self) -> None:
        content = self.content
        content.trailer = content.outcome = content.n_of_run = None
        self._failure = None
        self._partial.clear()


def _makes(operation: Operation) -> bool:
    """Tell whether an operation of this kind makes a session, rather than serving one."""
    return operation.kind not in ("select", "check", "memory")


Find = Callable[[UUID], ParsedLog | None]
"""Gives what the log of a session says, None where there is none."""


def closure(content: ParsedLog, find: Find, *, known: Container[UUID] = ()) -> list[ParsedLog]:
    """Return what a session and its ancestors say, each once, after what it builds on.

    Ancestors without a log are left out. Cost: each log is read once; no recursion.

    Args:
        content: What the session itself says.
        find: Reads the others.
        known: Those that are left out, with what they came from, since they were built before.

    Raises:
        SessionDamaged: A log cannot be believed, or a session builds on itself.
    """
    found: dict[UUID, ParsedLog | None] = {content.header.session: content}
    entered: set[UUID] = set()
    done: dict[UUID, ParsedLog] = {}
    todo = [(content.header.session, False)]
    while todo:
        session, is_after_parents = todo.pop()
        if session not in found:
            found[session] = _found(session, find, content.header.session)
        current = found[session]
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
        return any(_state(self.store.read(each)) != seen for each, seen in self._seen.items())

    def content(self, data: bytes, where: str, *, is_finished: bool) -> ParsedLog:
        """Return what a log says.

        Raises:
            SessionDamaged: It cannot be believed.
        """
        read = read_lines(
            data, where, is_finished=is_finished, make_blob=self.make_blob, recover=self.recover
        )
        return parse_log(read, self.with_images, recover=self.recover)

    def find(self, session: UUID) -> ParsedLog | None:
        """Return what the log of a session says, None where there is none.

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
        """Return what the log of a session says; also None for none to believe, to recover."""
        try:
            return self.find(session)
        except SessionDamaged:
            if not self.recover:
                raise
            return None

    def make_blob(self, digest: str, size: int, is_kept: bool) -> Blob:
        """Return a blob whose bytes are read from the store when somebody wants them.

        There is one for each content, so that it is held once however often it is named.
        """
        if not is_kept:
            return Blob(digest, size)
        found = self._blobs.get(digest)
        if found is None or found.size != size:
            found = self._blobs[digest] = Blob.fetched(digest, size, self.store.blob)
        return found

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
) -> T:
    """Return what `read` makes of several logs, once these belong together.

    Logs are written parents first, and read one after another: one that was read early may have
    been gone on with before its child is read, which then begins with more than was read. So what
    looks damaged is read again as long as logs have changed meanwhile.

    Args:
        store: Where the logs are.
        read: Reads them; called again with a new source.
        recover: As for `LogSource`.
        is_sound: Tells whether there is no damage in what was made.

    Raises:
        SessionDamaged: What `read` raises of logs that stay as they are.
    """
    for _ in range(MAX_READS - 1):
        source = LogSource(store, recover)
        try:
            made = read(source)
        except SessionDamaged:
            if not source.has_changed():
                raise
        else:
            if is_sound(made) or not source.has_changed():
                return made
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
