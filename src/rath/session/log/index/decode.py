"""The events of a log to the facts of an index."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from rath._core.text import valid_unicode
from rath.errors import PersistenceError, SessionDamaged
from rath.llm.exchange import CallEvidence
from rath.session.body import NON_IDEMPOTENT
from rath.session.chunk import ChunkRow
from rath.session.events import (
    Event,
    Failed,
    Finished,
    Header,
    Intent,
    OutcomeChange,
    PendingResult,
    PlacementChange,
    Reopened,
    RoundEnd,
    Row,
)
from rath.session.log.index.database import (
    CallFacts,
    CallPrice,
    LogFacts,
    RowRange,
    SaidRow,
)
from rath.session.log.index.query import OUTCOME_STATES
from rath.session.log.parsed import OpenCalls
from rath.session.log.reader import LOST_END, LineReader
from rath.session.record import Decision, ModelCall, Operation, RecordEntry, ToolRun

__all__ = ["facts_of"]

_MAX_CHARS = 100_000
"""Of a row that can be searched; a longer one is kept by its beginning."""


def facts_of(session: UUID, data: bytes, *, is_finished: bool = False) -> LogFacts:
    """Return what a log says; of one that cannot be believed, what stands before the bad line.

    Args:
        session: Whose log.
        data: All of it.
        is_finished: Whether its writer has finished it: then its run has an end.
    """
    reader, folding = LineReader(""), _Folding(session, len(data))
    number = 0
    for number, line in enumerate(data.split(b"\n")[:-1], start=1):
        try:
            group = reader.take(line)
        except SessionDamaged as exc:
            return folding.damaged(f"line {number}: {exc.__cause__}")
        first = number - len(group) + 1
        for at, event in enumerate(group, start=first):
            try:
                folding.take(event)
            except PersistenceError as exc:
                return folding.damaged(f"line {at}: {exc}")
        folding.facts.n_lines = reader.n_lines
    if not number:
        return folding.damaged("line 1: missing header: the file has no complete line")
    if is_finished and not reader.is_over and reader.takes_more:
        return folding.damaged(f"line {number}: {LOST_END}")
    return folding.finished(reader)


class _Folding:
    """Takes events in order, and counts what they say."""

    def __init__(self, session: UUID, size: int) -> None:
        self.facts = LogFacts(session=session, size=size)
        self._calls = OpenCalls(session)
        self._outcome: str | None = None
        self._failure: Failed | None = None
        self._usage: int | None = None

    def finished(self, reader: LineReader) -> LogFacts:
        """Return what all whole groups say."""
        facts = self.facts
        facts.is_open = self._outcome is None
        if not reader.takes_more and self._usage is not None:
            # Version 1 kept no calls, but their sum.
            facts.given[facts.session] = self._usage
        if self._outcome is not None:
            facts.state = self._outcome
        elif self._failure is not None:
            facts.state = self._failure.how
            is_failed = facts.state != "cancelled"
            facts.problem = valid_unicode(self._failure.error) if is_failed else ""
        elif any(
            intent.effects == NON_IDEMPOTENT and intent.call_id not in self._calls.decided
            for intent in self._calls.intents
        ):
            facts.state = "needs_decision"
        return facts

    def damaged(self, problem: str) -> LogFacts:
        """Return what is known of a log that cannot be believed."""
        self.facts.state, self.facts.problem = "damaged", valid_unicode(problem)
        self.facts.is_open = not self.facts.n_lines
        return self.facts

    def take(self, event: Event) -> None:
        """Count what an event says.

        Raises:
            PersistenceError: It contradicts those before it.
        """
        match event:
            case Header():
                self._take_header(event)
            case Row(index, row):
                if index != self.facts.n_rows:
                    raise PersistenceError(
                        f"row {index} stands where row {self.facts.n_rows} is expected"
                    )
                self._take_row(row)
            case RecordEntry():
                self._take_entry(event)
            case Intent():
                self._set_time(event.at)
                self._calls.intend(event)
            case PendingResult():
                self._calls.keep(event)
            case RoundEnd():
                self._end_round(event)
            case PlacementChange():
                self.facts.backend = event.sandbox_backend
            case Failed() | Reopened() | OutcomeChange() | Finished():
                self._take_state(event)
            case _:
                pass  # Nothing is kept of it.

    def _take_state(self, event: Failed | Reopened | OutcomeChange | Finished) -> None:
        match event:
            case Failed(at=at):
                self._set_time(at)
                self._failure = event
            case Reopened(at=at):
                self._set_time(at)
                self._outcome = self._failure = None
            case OutcomeChange(outcome):
                self._outcome = OUTCOME_STATES[type(outcome).__name__]
            case Finished(closed_at=at, usage=usage, outcome=outcome):
                self._set_time(at)
                self._outcome = OUTCOME_STATES[type(outcome).__name__]
                self._usage = None if usage is None else usage.total_tokens

    def _set_time(self, at: datetime) -> None:
        self.facts.updated_at = at

    def _take_header(self, header: Header) -> None:
        facts = self.facts
        if header.session != facts.session:
            raise PersistenceError(f"this is the log of session {header.session}")
        facts.created_at = facts.updated_at = header.created_at
        facts.operator = valid_unicode(header.operator)
        facts.kind = header.kind
        facts.parents = header.parents
        facts.backend = header.sandbox_backend
        facts.begins_with = tuple(
            RowRange(part.session, part.start, part.stop) for part in header.rows
        )
        facts.n_rows = sum(rows.stop - rows.start for rows in facts.begins_with)
        for given in header.given:
            facts.given[given.session] = given.usage.total_tokens

    def _take_row(self, row: ChunkRow) -> None:
        text = "\n".join(filter(None, _row_texts(row.kind_name, row.payload)))
        if text.strip():
            shown = valid_unicode(text[:_MAX_CHARS])
            self.facts.said.append(SaidRow(self.facts.n_rows, valid_unicode(row.kind_name), shown))
        self.facts.n_rows += 1

    def _take_entry(self, entry: RecordEntry) -> None:
        facts = self.facts
        self._set_time(entry.at)
        match entry:
            case Operation():
                if entry.session == facts.session and not facts.path:
                    facts.path = valid_unicode(entry.place.path)
                    facts.ordinal, facts.run = entry.place.ordinal, entry.place.run
            case ModelCall():
                facts.calls[entry.id] = _call(entry)
            case ToolRun():
                facts.n_tool_runs += 1
                self._calls.end_call(entry)
            case Decision():
                self._calls.decide(entry)
            case _:
                pass

    def _end_round(self, event: RoundEnd) -> None:
        try:
            done = self._calls.end_round(event.row, event.results)
        except KeyError as exc:
            raise PersistenceError(
                f"the round of row {event.row} names result {exc}, which is in no line before"
            ) from exc
        for result in done:
            self._set_time(result.run.at)
            self.facts.n_tool_runs += 1
            if result.shown is not None:
                self._take_row(result.shown)


def _row_texts(kind: str, payload: Mapping[str, Any]) -> Iterator[str | None]:
    """Yield what a row says, as texts."""
    if kind not in ("system", "user", "assistant", "tool_result"):
        return
    yield _text(payload.get("content"))
    for call in payload.get("tool_calls") or ():
        function: Mapping[str, Any] = call.get("function") or {}
        yield f"{_text(function.get('name')) or ''} {_text(function.get('arguments')) or ''}"


def _call(entry: ModelCall) -> CallFacts:
    evidence, usage = entry.evidence, entry.evidence.usage
    model = evidence.served_model or evidence.requested_model
    cost = evidence.cost
    return CallFacts(
        id=entry.id,
        at=entry.at,
        model=valid_unicode(model or evidence.provider_kind),
        purpose=entry.purpose,
        status=entry.status,
        prompt_tokens=0 if usage is None else usage.prompt_tokens,
        cached_tokens=evidence.cached_tokens or 0,
        completion_tokens=0 if usage is None else usage.completion_tokens,
        total_tokens=0 if usage is None else usage.total_tokens,
        usd=None if cost is None else cost.usd,
        price=_price(evidence),
    )


def _price(evidence: CallEvidence) -> CallPrice:
    """Return what is known of the cost of a call, as `rath.session.body` tells it."""
    if evidence.cost is not None:
        return "known"
    if evidence.usage is not None:
        return "unpriced"
    tries = evidence.attempts
    was_refused = bool(tries) and all(each.status is not None for each in tries)
    return "uncounted" if evidence.was_sent and not was_refused else "nothing"


def _text(value: object) -> str | None:
    return value if value is None or isinstance(value, str) else str(value)
