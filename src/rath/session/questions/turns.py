"""Which answer of a model each entry of a record belongs to, told by rows alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

from rath.session.content import AssistantTurn
from rath.session.questions.lineage import Lineage
from rath.session.record import CHECK_ORIGIN, Entry, ModelCall, ToolRun


def turns_of(lineage: Lineage) -> Mapping[UUID, int]:
    """Return the turns of the model calls and tool runs that belong to one, by entry id.

    Turns are counted by rows, so that they stay the same whatever is missing of the record. A
    failed call belongs to the turn that came of it in the end, what ran inside a tool call to the
    turn of that call. A selection, a check, and a call after which no answer came, have no turn.
    """
    entries = tuple(lineage.record)
    turns = _told_by_rows(lineage, entries)
    _give_to_earlier(entries, turns)
    return turns


def require_turn(lineage: Lineage, turn: int | None) -> None:
    """Refuse a turn that there is not.

    Raises:
        ValueError: The lineage has no such turn.
    """
    if turn is not None and not 1 <= turn <= lineage.n_turns:
        told = f"turns 1 to {lineage.n_turns}" if lineage.n_turns else "no turns"
        raise ValueError(f"there is no turn {turn}: session {lineage.session} has {told}")


def _told_by_rows(lineage: Lineage, entries: Sequence[Entry]) -> dict[UUID, int]:
    asked_in = _turns_of_calls(lineage)
    turns: dict[UUID, int] = {}
    for entry in entries:
        births = (lineage.births.get(row) for row in entry.rows)
        turn = next((birth.turn for birth in births if birth is not None), None)
        if turn is None and isinstance(entry, ToolRun) and not entry.rows:
            turn = asked_in.get(entry.call_id)
        if turn is not None and isinstance(entry, ModelCall | ToolRun):
            turns[entry.id] = turn
    return turns


def _turns_of_calls(lineage: Lineage) -> dict[str, int]:
    """Return the last turn in which a tool call with an id was asked for."""
    asked: dict[str, int] = {}
    for birth in lineage.births.values():
        content = birth.row.content
        if isinstance(content, AssistantTurn) and birth.turn is not None:
            asked |= dict.fromkeys((call.id for call in content.calls), birth.turn)
    return asked


def _give_to_earlier(entries: Sequence[Entry], turns: dict[UUID, int]) -> None:
    """Give what came of no row to the turn that follows: a retry's answer, a call around it."""
    answers: dict[UUID, int] = {}
    around: int | None = None
    for entry in reversed(entries):
        known = turns.get(entry.id)
        if isinstance(entry, ModelCall) and entry.purpose != "select":
            if known is not None:
                answers[entry.operation] = known
                around = None
            else:
                _set(turns, entry, answers.get(entry.operation) or around)
        elif isinstance(entry, ToolRun) and entry.origin != CHECK_ORIGIN:
            if known is not None:
                around = known
            else:
                _set(turns, entry, around)


def _set(turns: dict[UUID, int], entry: Entry, turn: int | None) -> None:
    if turn is not None:
        turns[entry.id] = turn
