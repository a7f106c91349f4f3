"""Logs of sessions, line by line, and a store of them in memory."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal
from uuid import UUID, uuid4, uuid5

from hypothesis import strategies as st

from rath._core.blobs import Blob
from rath.errors import PersistenceError
from rath.llm.chat_response import RathLLMTokenUsage, add_usage
from rath.llm.prices import Cost
from rath.session import ChunkRow, RowId, assistant_turn_chunk, tool_feedback_chunk, user_text_chunk
from rath.session.events import (
    AncestorRange,
    Failed,
    Finished,
    Header,
    Intent,
    OutcomeChange,
    PartialText,
    PendingResult,
    Reopened,
    RoundEnd,
    Row,
)
from rath.session.graph.kind import LineageKind
from rath.session.log.format import Encoder
from rath.session.operation import Place
from rath.session.outcome import Completed, NeedsInput
from rath.session.persistence.store import SessionLog, SessionStore, StoredLog
from rath.session.record import Decision, ModelCall, Operation, ToolRun
from tests.support.api import Entry, Event, Outcome, rows_digest
from tests.support.evidence import evidence, tokens

NAMESPACE = UUID(int=0)
DAY = datetime(2026, 11, 1, 12, tzinfo=UTC)


class LogMaker:
    """Writes the log of one session; each method adds a group of lines and returns this.

    Args:
        session: Its id; a new one by default.
        at: The time of the first line; each later one comes a second later.
        run: The workflow call that its operation is made in.
        header: Fields of the header line.
    """

    def __init__(
        self,
        session: UUID | None = None,
        *,
        at: datetime = DAY,
        parents: tuple[UUID, ...] = (),
        begins_with: tuple[AncestorRange, ...] = (),
        **header: Any,
    ) -> None:
        self.session = session or uuid4()
        self.data = b""
        self.blobs: dict[str, bytes] = {}
        self.rows: list[ChunkRow] = []
        """Its own."""

        self.n_rows = sum(part.stop - part.start for part in begins_with)
        self.n_entries = 0
        self.usage: RathLLMTokenUsage | None = None
        """Of its own calls."""

        self._n_ids = 0
        self.operation = self.new_id()
        self._encoder = Encoder(self.session)
        self._at = at
        self.add(
            Header(
                session=self.session,
                created_at=at,
                operator=header.pop("operator", "run_session_loop" if parents else "implicit"),
                kind=header.pop(
                    "kind", LineageKind.OP_SESSION_LOOP if parents else LineageKind.UNKNOWN
                ),
                parents=parents,
                rows=begins_with,
                **header,
            )
        )

    def now(self) -> datetime:
        """The time of the next line."""
        self._at += timedelta(seconds=1)
        return self._at

    def new_id(self) -> UUID:
        """An id that follows from that of the session, and how many there were before."""
        self._n_ids += 1
        return uuid5(self.session, str(self._n_ids))

    def add(self, *lines: Event) -> LogMaker:
        """Add a group of lines."""
        batch = self._encoder.add(*lines)
        self.data += batch.data
        self.blobs |= {blob.digest: blob.data for blob in batch.blobs if blob.data is not None}
        return self

    def row_line(self, row: ChunkRow) -> Row:
        """The line of the next row."""
        named = row.with_id(RowId(self.session, self.n_rows))
        self.rows.append(named)
        self.n_rows += 1
        return Row(self.n_rows - 1, named)

    def entry_line(self, entry: Entry) -> Entry:
        """The line of the next entry."""
        self.n_entries += 1
        return entry

    def begun(self, *, path: str = "", ordinal: int = 0, run: UUID | None = None) -> LogMaker:
        """A loop began."""
        place = Place(path, ordinal, run, None)
        entry = Operation(
            id=self.new_id(),
            operation=self.operation,
            kind="loop",
            place=place,
            session=self.session,
            at=self.now(),
        )
        return self.add(self.entry_line(entry))

    def said(self, text: str) -> LogMaker:
        """The user said something."""
        return self.add(self.row_line(user_text_chunk(text)))

    def row(self, row: ChunkRow) -> LogMaker:
        """Somebody said something."""
        return self.add(self.row_line(row))

    def answered(
        self,
        text: str | None,
        *,
        model: str | None = "gpt-5-mini",
        usage: tuple[int, int] | None = (100, 10),
        usd: str | None = "0.01",
        entry_id: UUID | None = None,
        **changes: Any,
    ) -> LogMaker:
        """A model answered, or failed to where `text` is None."""
        counts = None if usage is None else tokens(*usage)
        changes.setdefault("duration_ms", 0.0)
        self.usage = add_usage(self.usage, counts)
        seen = evidence(counts, model=model, **changes)
        seen.settle_cost(None if usd is None else Cost(Decimal(usd), "test", f"test/{model}"))
        row = None
        if text is not None:
            row = self.row_line(assistant_turn_chunk(tool_calls=None, content=text))
        entry = ModelCall(
            id=entry_id or self.new_id(),
            operation=self.operation,
            rows=() if row is None else (RowId(self.session, row.index),),
            purpose="turn",
            status=seen.status,
            seen=None,
            evidence=seen,
            at=self.now(),
        )
        line = self.entry_line(entry)
        return self.add(line) if row is None else self.add(row, line)

    def intended(self, call_id: str, *, effects: str = "non_idempotent", call: int = 0) -> LogMaker:
        """A tool call is about to be made, for the last row."""
        return self.add(
            Intent(
                operation=self.operation,
                row=self.n_rows - 1,
                call=call,
                call_id=call_id,
                tool="tool",
                effects=effects,
                at=self.now(),
            )
        )

    def tool_run(self, call_id: str, body: str = "{}", *, row: RowId | None = None) -> ToolRun:
        """What became of a tool call."""
        return ToolRun(
            id=self.new_id(),
            operation=self.operation,
            rows=() if row is None else (row,),
            call_id=call_id,
            tool="tool",
            origin="tests:tool",
            schema_digest=None,
            effects_declared="non_idempotent",
            arguments={},
            sandbox=None,
            status="done",
            error_kind=None,
            exit_code=None,
            signal=None,
            duration_ms=1.0,
            shown=Blob.from_bytes(body.encode()),
            full=None,
            file_effects=(),
            at=self.now(),
        )

    def ran(self, call_id: str, body: str = "{}") -> LogMaker:
        """A lone tool call is done."""
        line = self.row_line(tool_feedback_chunk(call_id, "tool", body))
        run = self.tool_run(call_id, body, row=RowId(self.session, line.index))
        return self.add(line, self.entry_line(run))

    def decision(self, call_id: str) -> Decision:
        """What somebody decided about a call."""
        return Decision(
            operation=self.operation,
            id=self.new_id(),
            interrupt=self.new_id(),
            choice="skip",
            by="tests",
            call_id=call_id,
            arguments=None,
            at=self.now(),
        )

    def round(self, *call_ids: str, is_done: bool = True) -> LogMaker:
        """The calls of the last row are made, and their results are there."""
        asked = self.n_rows - 1
        runs: list[ToolRun] = []
        for number, call_id in enumerate(call_ids):
            run = self.tool_run(call_id, row=RowId(self.session, asked + 1 + number))
            shown = tool_feedback_chunk(call_id, "tool", f"result of {call_id}")
            self.add(PendingResult(row=asked, call=number, run=run, shown=shown))
            runs.append(run)
            if is_done:
                self.row_line(shown)
        if is_done:
            self.n_entries += len(runs)
            self.add(RoundEnd(asked, tuple(run.id for run in runs)))
        return self

    def streamed(self, text: str) -> LogMaker:
        """A part of an answer came in."""
        return self.add(PartialText(self.operation, text))

    def failed(
        self, error: str = "it broke", how: Literal["failed", "cancelled"] = "failed"
    ) -> LogMaker:
        """The run ended without an outcome."""
        return self.add(Failed(how, error, self.now()))

    def reopened(self) -> LogMaker:
        """The run goes on."""
        return self.add(Reopened(self.now()))

    def decided(self, outcome: Outcome) -> LogMaker:
        """A decision changed how the session stands."""
        return self.add(OutcomeChange(outcome))

    def ended(self, outcome: Outcome | None = None) -> LogMaker:
        """The run has ended."""
        return self.add(
            Finished(
                closed_at=self.now(),
                n_rows=self.n_rows,
                n_entries=self.n_entries,
                usage=self.usage,
                outcome=outcome or Completed(),
            )
        )

    def part(self, start: int = 0, stop: int | None = None) -> AncestorRange:
        """A range of its rows, for a session that begins with them; of own rows alone."""
        n_begun = self.n_rows - len(self.rows)
        stop = self.n_rows if stop is None else stop
        rows = self.rows[start - n_begun : stop - n_begun]
        return AncestorRange(self.session, start, stop, rows_digest(rows))


class MemoryStore(SessionStore):
    """Logs in a dictionary; nobody writes them but `put`."""

    name = "memory"

    def __init__(self) -> None:
        self.where = f"memory://{uuid4()}"
        self.logs: dict[UUID, bytes] = {}
        self.writers: set[UUID] = set()
        self.n_reads = 0
        self._trash: dict[UUID, bytes] = {}
        self._n_puts = 0
        self._stamps: dict[UUID, str] = {}

    def put(self, *logs: LogMaker) -> MemoryStore:
        """Keep logs as they are now, each with a new stamp."""
        for log in logs:
            self.put_bytes(log.session, log.data)
        return self

    def copy(self) -> MemoryStore:
        """Return another store with the same logs, of which nothing is known yet."""
        made = MemoryStore()
        for session, data in self.logs.items():
            made.put_bytes(session, data)
        return made

    def put_bytes(self, session: UUID, data: bytes) -> None:
        """Keep bytes as the log of a session."""
        self._n_puts += 1
        self.logs[session] = data
        self._stamps[session] = str(self._n_puts)

    def create(self, session: UUID) -> SessionLog:
        raise PersistenceError("this store is only read")

    def reopen(self, session: UUID, keep: int, *, size: int | None = None) -> SessionLog:
        raise PersistenceError("this store is only read")

    def append_to_finished(
        self, session: UUID, size: int, data: bytes, *, blobs: Collection[Blob] = ()
    ) -> bool:
        raise PersistenceError("this store is only read")

    def read(self, session: UUID) -> StoredLog | None:
        self.n_reads += 1
        data = self.logs.get(session)
        if data is None:
            return None
        has_end = data.rfind(b'"event":"finished"') > data.rfind(b'"event":"reopened"')
        is_finished = has_end and session not in self.writers
        return StoredLog(session, data, is_finished, f"{self.where}/{session}")

    def stamps(self) -> Mapping[UUID, str]:
        return {session: self._stamps[session] for session in self.logs}

    def is_being_written(self, session: UUID) -> bool:
        return session in self.writers

    def delete(self, session: UUID) -> bool:
        data = self.logs.pop(session, None)
        if data is None:
            return False
        self._trash[session] = data
        return True

    def restore(self, session: UUID) -> bool:
        data = self._trash.pop(session, None)
        if data is None:
            return False
        self.put_bytes(session, data)
        return True

    def empty_trash(self) -> int:
        emptied = len(self._trash)
        self._trash.clear()
        return emptied

    def blob(self, digest: str) -> bytes | None:
        return None

    def follow(self, session: UUID, start: int) -> Iterator[bytes]:
        if data := self.logs.get(session, b"")[start:]:
            yield data


WORDS = ("fix", "the", "parser", "Ärger", "très", "请修复", "\ud800")

_texts = st.lists(st.sampled_from(WORDS), max_size=4).map(" ".join)
_steps = st.sampled_from(
    ("said", "answered", "failed_call", "tool", "round", "open_round", "intended", "streamed")
)
_ends = st.sampled_from(("none", "ended", "suspended", "failed", "cancelled", "reopened", "late"))


@st.composite
def made_logs(draw: st.DrawFn, *, known: tuple[LogMaker, ...] = ()) -> LogMaker:
    """A log of any run, perhaps made from one of `known`, and cut off anywhere between lines."""
    parent = draw(st.none() | st.sampled_from(known)) if known else None
    parents = () if parent is None else (parent.session,)
    is_whole = parent is not None and len(parent.rows) == parent.n_rows
    begins_with = (parent.part(),) if parent is not None and is_whole else ()
    at = DAY + timedelta(minutes=draw(st.integers(0, 30)))
    session = uuid5(NAMESPACE, str(draw(st.integers(0, 1 << 32))))
    log = LogMaker(session, at=at, parents=parents, begins_with=begins_with)
    run = draw(st.none() | st.sampled_from([UUID(int=1), UUID(int=2)]))
    if draw(st.booleans()):
        log.begun(path="" if run is None else "Team.planner", ordinal=1, run=run)
    for step in draw(st.lists(_steps, max_size=6)):
        _take_step(draw, log, step)
    _take_end(log, draw(_ends))
    return log


def _take_step(draw: st.DrawFn, log: LogMaker, step: str) -> None:
    match step:
        case "said":
            log.said(draw(_texts))
        case "answered":
            model = draw(st.sampled_from(["m-1", "m-2"]))
            log.answered(draw(_texts), model=model, usd=draw(st.sampled_from([None, "0.25"])))
        case "failed_call":
            log.answered(None, status="failed", usage=None, usd=None, error="no")
        case "tool":
            log.intended("a")
            log.ran("a")
        case "round" | "open_round":
            log.round("a", "b", is_done=step == "round")
        case "intended":
            log.intended("c", effects=draw(st.sampled_from(["read_only", "non_idempotent"])))
        case _:
            log.streamed(draw(_texts))


def _take_end(log: LogMaker, end: str) -> None:
    match end:
        case "ended":
            log.ended()
        case "suspended":
            log.ended(NeedsInput(log.session, "which?")).decided(Completed())
        case "failed":
            log.failed()
        case "cancelled":
            log.failed("stop", how="cancelled")
        case "reopened":
            log.failed()
            log.reopened()
        case "late":
            log.ended()
            log.answered(None, model="late")
        case _:
            pass


def session_in_a_call(directory: Path) -> str | None:
    """Return the session of a store whose run waits in a tool call; None until there is one."""
    for path in directory.glob("*partial__"):
        with suppress(FileNotFoundError):  # what it came from is finished meanwhile
            if b'"intent"' in path.read_bytes():
                return path.name.partition(".")[0]
    return None
