"""What one log says, folded from its lines; what the session begins with is only named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import assert_never
from uuid import UUID

from rath.errors import PersistenceError, SessionDamaged
from rath.session.chunk import ChunkRow, RowId
from rath.session.outcome import Cancelled, NeedsDecision, Outcome
from rath.session.persistence.codec import LineReader, LogLines
from rath.session.persistence.lines import (
    EntryLine,
    FailureLine,
    HeaderLine,
    HeadLine,
    IntentLine,
    Line,
    OutcomeLine,
    PartialLine,
    PlacementLine,
    ReopenedLine,
    ResultLine,
    RoundLine,
    RowLine,
    ToolsLine,
    TrailerLine,
)
from rath.session.persistence.loading.unfinished import OpenCalls, Unfinished
from rath.session.record import Decision, Entry, ModelCall, Operation, ToolRun

WithImages = Callable[[ChunkRow], ChunkRow]


@dataclass(slots=True)
class Content:
    """The own rows and entries of a session, and how its run stands."""

    header: HeaderLine
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

    trailer: TrailerLine | None = None
    unfinished: Unfinished | None = None
    """None once the run has ended."""

    kept: Unfinished | None = None
    """Results without a row of a run that has ended, and waits; None where there are none."""

    outcome: Outcome | None = None
    """How a decision says it stands, where that is another than the trailer's."""

    moved: PlacementLine | None = None
    """Where the session works since, where that is another place than the header's."""

    problem: SessionDamaged | None = None
    """What could not be believed; the rest is from before it."""

    @property
    def place(self) -> HeaderLine | PlacementLine:
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
    def n_begun(self) -> int:
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


def content_of(read: LogLines, with_images: WithImages, *, recover: bool = False) -> Content:
    """Return what the lines of a log say.

    Args:
        read: All that can be believed.
        with_images: Gives the images of a row their bytes.
        recover: Return what stands before a line that contradicts those before it, instead of
            raising.

    Raises:
        SessionDamaged: Lines contradict each other.
    """
    header, reader = read.lines[0], read.reader
    assert isinstance(header, HeaderLine)
    content = Content(header, reader.where, reader, read.n_torn, problem=read.problem)
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

    def __init__(self, content: Content, with_images: WithImages) -> None:
        self.content = content
        self._with_images = with_images
        self._calls = OpenCalls(content.header.session)
        self._partial: list[str] = []
        self._failure: FailureLine | None = None
        self._n_rows = content.n_begun

    def take(self, line: Line) -> None:
        """Add what a line says.

        Raises:
            PersistenceError: It contradicts the lines before it.
        """
        match line:
            case EntryLine(entry):
                self._take_entry(entry)
            case RowLine(index, row):
                self._take_row(index, row)
            case IntentLine():
                self._calls.intend(line)
            case ResultLine(shown=shown):
                if shown is not None and "images" in shown.payload:
                    line = replace(line, shown=self._with_images(shown))
                self._calls.keep(line)
            case RoundLine():
                self._end_round(line)
            case PartialLine(_, text):
                self._partial.append(text)
            case HeadLine() | ToolsLine():
                pass  # The entries that name them hold them.
            case PlacementLine():
                self.content.moved = line
            case HeaderLine():
                raise PersistenceError("duplicate header")
            case FailureLine() | ReopenedLine() | OutcomeLine() | TrailerLine():
                self._take_state(line)
            case _:
                assert_never(line)

    def finished(self) -> Content:
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
            entry = replace(entry, head=tuple(map(self._with_images, entry.head)))
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

    def _end_round(self, line: RoundLine) -> None:
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
                run = replace(run, rows=(named,))
            self.content.entries.append(run)

    def _take_state(self, line: FailureLine | ReopenedLine | OutcomeLine | TrailerLine) -> None:
        match line:
            case FailureLine():
                self._failure = line
            case ReopenedLine():
                self._reopen()
            case OutcomeLine(outcome):
                self.content.outcome = outcome
            case TrailerLine():
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
