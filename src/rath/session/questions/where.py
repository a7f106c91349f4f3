"""Where did tools run? For each run: sandbox, backend, isolation, root, cwd, and how it ended."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from uuid import UUID

from rath.backend.abc import SandboxIdentity
from rath.session.chunk import RowId
from rath.session.content import AssistantTurn, ToolCall, ToolFeedback
from rath.session.outcome import NeedsApproval, NeedsInput
from rath.session.questions.lineage import Lineage, lineage_of
from rath.session.questions.missing import Missing, find_missing
from rath.session.questions.turns import require_turn, turns_of
from rath.session.record import ToolRun
from rath.session.resume.open_calls import CallState
from rath.session.session import Session


@dataclass(frozen=True, slots=True)
class PlacedRun:
    """One tool run; it tells itself where it ran."""

    turn: int | None
    run: ToolRun


@dataclass(frozen=True, slots=True)
class UntoldCall:
    """A call that the model asked for and of which no result was ever recorded."""

    turn: int | None
    row: RowId
    """The row in which it was asked for."""

    call: ToolCall
    state: CallState = "begun"
    """`asked`: it was not made. `suspended`: it stopped at a question. `begun`: whether it took
    effect is not known."""


@dataclass(frozen=True, slots=True)
class WhereToolsRan:
    """The answer."""

    session: UUID
    runs: tuple[PlacedRun, ...]
    untold: tuple[UntoldCall, ...]
    """Calls without a result: the run ended before, or waits for somebody."""

    missing: tuple[Missing, ...]

    @property
    def sandboxes(self) -> tuple[tuple[SandboxIdentity, int], ...]:
        """The sandboxes in which something ran, in order, and how many runs that were."""
        counts: dict[SandboxIdentity, int] = {}
        for each in self.runs:
            if each.run.sandbox is not None:
                counts[each.run.sandbox] = counts.get(each.run.sandbox, 0) + 1
        return tuple(counts.items())


def where_tools_ran(session: Session, *, turn: int | None = None) -> WhereToolsRan:
    """Return where each tool run happened; O(rows and entries). Waits for the run.

    Args:
        session: In memory or loaded.
        turn: Only the runs of this turn.

    Raises:
        ValueError: There is no such turn.
    """
    lineage = lineage_of(session)
    require_turn(lineage, turn)
    turns = turns_of(lineage)
    runs = tuple(
        PlacedRun(turns.get(entry.id), entry)
        for entry in lineage.record
        if isinstance(entry, ToolRun) and turn in (None, turns.get(entry.id))
    )
    # Elsewhere a record that says nothing of a call does not say that it was not made.
    waits = isinstance(session.outcome, NeedsApproval | NeedsInput)
    known = session.open_calls if waits else ()
    states: dict[tuple[RowId | None, int], CallState] = {
        (each.asked_in, each.index): each.state for each in known
    }
    untold = tuple(each for each in _untold(lineage, states) if turn in (None, each.turn))
    return WhereToolsRan(session.id, runs, untold, find_missing(lineage, "where"))


def _untold(
    lineage: Lineage, states: Mapping[tuple[RowId | None, int], CallState]
) -> Iterator[UntoldCall]:
    """Yield the calls of the session's own rows that have neither a result nor a run."""
    cut_off = {
        entry.call_id for entry in lineage.record if isinstance(entry, ToolRun) and not entry.rows
    }
    waiting: dict[str, UntoldCall] = {}
    for row in lineage.own.table:
        content = row.content
        if isinstance(content, ToolFeedback):
            waiting.pop(content.call_id, None)
        elif isinstance(content, AssistantTurn) and row.id is not None:
            yield from waiting.values()
            turn = lineage.births[row.id].turn
            waiting = {
                call.id: UntoldCall(turn, row.id, call, states.get((row.id, at), "begun"))
                for at, call in enumerate(content.calls)
                if call.id not in cut_off
            }
    yield from waiting.values()
