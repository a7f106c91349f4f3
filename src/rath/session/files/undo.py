"""Undo: the session before a tool call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Literal
from uuid import UUID

from rath._core.text import did_you_mean
from rath.backend.effects import FileEffect
from rath.session.body import Body
from rath.session.chunk import ChunkKind, ChunkTable
from rath.session.content import AssistantTurn, ToolFeedback
from rath.session.files.changes import (
    Here,
    Step,
    line_of,
    net_changes,
    own_steps,
    require_gaps,
    undone_effects,
)
from rath.session.outcome import Completed
from rath.session.record import CHECK_ORIGIN, Entry, ToolRun


def find_call(record: Iterable[Entry], call: str | ToolRun, *, own: Sequence[Step] = ()) -> ToolRun:
    """Return the tool run that `call` names.

    Args:
        record: Where to look.
        call: A call id, or the run itself.
        own: Steps in which an id counts that stands several times in the record.

    Raises:
        ValueError: There is none, or several and not exactly one of them in `own`.
    """
    runs = [entry for entry in record if isinstance(entry, ToolRun)]
    if isinstance(call, ToolRun):
        wanted = [run for run in runs if run.id == call.id]
        name = call.call_id
    else:
        wanted = [run for run in runs if run.call_id == call]
        name = call
    if len(wanted) > 1:
        mine = {step.entry.id for step in own}
        wanted = [run for run in wanted if run.id in mine] or wanted
    if len(wanted) == 1:
        return wanted[0]
    if wanted:
        raise ValueError(
            f"{len(wanted)} calls have the id {name!r}; give the ToolRun of the record itself"
        )
    known = list(dict.fromkeys(run.call_id for run in runs))
    raise ValueError(
        f"the record holds no call {name!r}.{did_you_mean(name, known)} "
        f"Known: {', '.join(map(repr, known)) or 'none'}"
    )


@dataclass(frozen=True, slots=True)
class Undo:
    """How a call is undone."""

    call: ToolRun
    body: Body
    """Rows before the call, and the whole record."""

    changes: tuple[FileEffect, ...]
    """What the call and all after it changed, one effect for each path."""


def plan_undo(
    body: Body,
    call: str | ToolRun,
    *,
    session: UUID,
    gaps: Literal["refuse", "ignore"],
    here: Here,
) -> Undo:
    """Return how a call is undone.

    Raises:
        ValueError: It cannot be undone; says why.
    """
    require_gaps(gaps)
    wanted = find_call(body.record, call, own=own_steps(body.record, session))
    line = line_of(body.record, here).current
    at = next((at for at, step in enumerate(line) if step.entry.id == wanted.id), None)
    if at is None:
        raise ValueError(
            f"call {wanted.call_id!r} is not behind the files of this session: it was undone "
            "before, or it ran in another sandbox, before a three-way merge, or in a session that "
            "was merged into this one; undo it in the session in which it ran"
        )
    undone = undone_effects(line, wanted)
    if gaps == "refuse":
        _refuse_gaps(wanted, line[at:], _shared(undone, line[:at]))
    changes = net_changes(undone)
    _require_contents(wanted, changes)
    table = body.table.prefix(_rows_before(body.table, wanted))
    # Whatever ended the session came later, so it goes on from here as any other.
    return Undo(wanted, Body(table, body.record, Completed(), body.given), changes)


def _rows_before(table: ChunkTable, call: ToolRun) -> int:
    """Return how many rows stand before a call; before its turn, if it is the first one in it."""
    if call.origin == CHECK_ORIGIN:
        raise ValueError(
            f"{call.call_id!r} is the command of a check, which has no row to go back to; undo the "
            "call before it, or fork the session that was checked"
        )
    for at, row in enumerate(table):
        if row.id in call.rows:
            is_first = at > 0 and table[at - 1].kind == ChunkKind.ASSISTANT
            return at - 1 if is_first else at
    if call.status == "interrupted" and not call.rows:
        before = _turn_cut_off(table, call)
        if before is not None:
            return before
    raise ValueError(
        f"call {call.call_id!r} has no row in this session: it ran inside another call, or its "
        "row was summed up; undo the call around it, or undo it in the session in which it ran"
    )


def _turn_cut_off(table: ChunkTable, call: ToolRun) -> int | None:
    """Return how many rows stand before a call that was cut off and has no result."""
    for at, row in reversed(list(enumerate(table))):
        turn = row.content
        asked = [each.id for each in turn.calls] if isinstance(turn, AssistantTurn) else []
        if call.call_id not in asked:
            continue
        earlier = set(asked[: asked.index(call.call_id)])
        results = takewhile(lambda row: isinstance(row.content, ToolFeedback), table.since(at + 1))
        n_kept = sum(
            isinstance(row.content, ToolFeedback) and row.content.call_id in earlier
            for row in results
        )
        return at + 1 + n_kept if n_kept else at
    return None


def _shared(undone: Iterable[FileEffect], before: Iterable[Step]) -> list[str]:
    """Return the paths that a call may have changed that is not undone.

    Every call that ran then tells of the change: who is told of by one alone had one beside it of
    which the record tells nothing.
    """
    unsure = Counter(effect for effect in undone if effect.attribution == "ambiguous")
    earlier = {each for step in before for each in step.effects if each in unsure}
    return sorted({each.path for each, n in unsure.items() if n < 2 or each in earlier})


def _refuse_gaps(call: ToolRun, steps: list[Step], shared: list[str]) -> None:
    reasons = [
        f"{gap.call.tool} ({gap.call.call_id}): {gap.reason}"
        for step in steps
        for gap in step.gaps()
    ]
    reasons += [f"a call beside it may have changed {path!r} instead" for path in shared]
    if reasons:
        raise ValueError(
            f"call {call.call_id!r} cannot be undone for sure, since not all is known of what it "
            f"changed: {'; '.join(reasons)}. Give gaps='ignore' to undo what the record says"
        )


def _require_contents(call: ToolRun, changes: tuple[FileEffect, ...]) -> None:
    lost = [
        change.renamed_from or change.path
        for change in changes
        if change.before is not None
        and change.before.data is None
        and (change.after is None or change.after.digest != change.before.digest)
    ]
    if lost:
        raise ValueError(
            f"call {call.call_id!r} cannot be undone: the contents before were not kept of "
            f"{', '.join(map(repr, lost))}; they were too large, or the policy of effects says "
            "keep_contents=False"
        )
