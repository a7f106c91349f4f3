"""The tool calls that a run has left open, and what is known of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal
from uuid import UUID

from rath.session.body import Body
from rath.session.chunk import ChunkRow, ChunkTable, RowId
from rath.session.content import AssistantTurn, ToolCall, ToolFeedback
from rath.session.record import Decision, Entry, Interrupt, ModelCall, Operation, Record, ToolRun

if TYPE_CHECKING:
    from rath.session.persistence.lines import ResultLine

CallState = Literal["asked", "begun", "known"]
"""`asked`: nothing was done. `begun`: whether it took effect is not known. `known`: there is a
result that is no row yet."""

REPEATABLE = ("read_only", "idempotent")
"""The effects of tools whose calls may be made again when their outcome is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenCall:
    """A call that a model asked for and whose result it has not read."""

    row: int
    """Index of the row in which the model asked."""

    index: int
    """Which of the calls of that row it is."""

    asked_in: RowId | None
    call: ToolCall
    state: CallState
    effects: str
    """What its tool declared when the call was begun; `non_idempotent` where that is not known."""

    decision: Decision | None = None
    """The last one that somebody made about exactly this call."""

    result: ResultLine | None = None
    """Set where the state is `known`."""

    @property
    def waits(self) -> bool:
        """Whether the run cannot go on before somebody has decided about the call."""
        is_unsure = self.state == "begun" and self.effects not in REPEATABLE
        return is_unsure and self.decision is None

    def __str__(self) -> str:
        return f"{self.call.id!r} ({self.call.name} {self.call.arguments})"


def own_operation(record: Record, session: UUID) -> Operation | None:
    """Return the operation that makes a session; None where the record does not begin one."""
    for entry in reversed(record):
        if not isinstance(entry, Operation) or entry.session != session:
            continue
        if entry.kind not in ("select", "check", "memory"):
            return entry
    return None


def entries_since(record: Record, session: UUID) -> Sequence[Entry]:
    """Return the entries from the operation on that makes `session`; none where there is none."""
    told: list[Entry] = []
    for entry in reversed(record):
        told.append(entry)
        if isinstance(entry, Operation) and entry.session == session:
            return told[::-1]
    return ()


def open_calls(body: Body, session: UUID, *, late: Record | None = None) -> tuple[OpenCall, ...]:
    """Return the calls of the last turn of a session that have no result in it; O(last round).

    Args:
        body: What the run of the session had written.
        session: Which session it makes.
        late: The record with the entries that came since.
    """
    asked = _last_turn(body.table, session)
    if asked is None:
        return ()
    at, turn = asked
    row = body.table[at]
    entries = _since(body.record if late is None else late, row, session)
    cut_off = _cut_off(entries)
    decisions = _decisions(body, entries, () if late is None else late.since(len(body.record)))
    made: list[OpenCall] = []
    for index in _without_rows(turn.calls, body.table.since(at + 1)):
        call = turn.calls[index]
        state, effects, result = _known(body, at, index)
        if state == "asked" and cut_off.get(call.id):
            state, effects = "begun", cut_off[call.id].pop(0).effects_declared
        about = [each for each in decisions if _is_about(each, row.id, index, call)]
        made.append(
            OpenCall(
                row=at,
                index=index,
                asked_in=row.id,
                call=call,
                state=state,
                effects=effects,
                decision=about[-1] if about else None,
                result=result,
            )
        )
    return tuple(made)


def last_interrupt(record: Record) -> Interrupt | None:
    """Return what a run waits for by its record, None where that does not say."""
    for entry in reversed(record):
        if isinstance(entry, Interrupt):
            return entry
        # What it waited for before its last call is past.
        if isinstance(entry, Operation | ModelCall | ToolRun):
            return None
    return None


def _last_turn(table: ChunkTable, session: UUID) -> tuple[int, AssistantTurn] | None:
    """Return the last turn of the run of `session`, if only results stand after it."""
    for offset, row in enumerate(reversed(table), start=1):
        if row.id is None or row.id.session != session:
            return None
        if isinstance(row.content, AssistantTurn):
            return len(table) - offset, row.content
        if not isinstance(row.content, ToolFeedback):
            return None
    return None


def _without_rows(calls: Sequence[ToolCall], rows: Sequence[ChunkRow]) -> list[int]:
    """Return which calls have no result; results stand in call order, some may be missing."""
    results = [row.content for row in rows]
    missing: list[int] = []
    for index, call in enumerate(calls):
        first = results[0] if results else None
        if isinstance(first, ToolFeedback) and (first.call_id, first.name) == (call.id, call.name):
            results.pop(0)
        else:
            missing.append(index)
    return missing


def _known(body: Body, row: int, index: int) -> tuple[CallState, str, ResultLine | None]:
    """Return what the lines of a file say of a call that is no entry yet."""
    left = body.unfinished
    for result in () if left is None else left.results:
        if (result.row, result.call) == (row, index):
            # One that was cut off has a result that no model reads.
            is_known = result.shown is not None
            effects = result.run.effects_declared
            return ("known", effects, result) if is_known else ("begun", effects, None)
    for intent in () if left is None else left.intents:
        if (intent.row, intent.call) == (row, index):
            return "begun", intent.effects, None
    return "asked", "non_idempotent", None


def _since(record: Record, row: ChunkRow, session: UUID) -> list[Entry]:
    """Return the entries of the run of a session after the model call that made `row`."""
    own = own_operation(record, session)
    later: list[Entry] = []
    for entry in reversed(record):
        if isinstance(entry, ModelCall) and row.id in entry.rows:
            break
        # Agents inside a call have calls of their own, perhaps under the same ids.
        if own is not None and entry.operation == own.operation:
            later.append(entry)
    return later[::-1]


def _cut_off(entries: Sequence[Entry]) -> dict[str, list[ToolRun]]:
    """Return the runs that were cut off after they had begun, by the id of their call."""
    found: dict[str, list[ToolRun]] = {}
    for entry in entries:
        # One that was cut off before it began took no time at all.
        if not isinstance(entry, ToolRun) or entry.rows or entry.status != "interrupted":
            continue
        if entry.duration_ms:
            found.setdefault(entry.call_id, []).append(entry)
    return found


def _decisions(body: Body, entries: Sequence[Entry], late: Sequence[Entry]) -> list[Decision]:
    """Return the decisions that still hold: one is used up when its call was begun again."""
    made_since = {entry.id for entry in late}
    holding: list[Decision] = []
    for entry in entries:
        if isinstance(entry, ToolRun):
            holding = [each for each in holding if each.call_id != entry.call_id]
        elif isinstance(entry, Decision):
            left = body.unfinished
            is_of_now = entry.id in made_since or left is None
            if is_of_now or (left is not None and entry.call_id in left.decided):
                holding.append(entry)
    return holding


def _is_about(decision: Decision, asked_in: RowId | None, index: int, call: ToolCall) -> bool:
    same_call = (decision.call_id, decision.tool, decision.call) == (call.id, call.name, index)
    return same_call and asked_in in decision.rows
