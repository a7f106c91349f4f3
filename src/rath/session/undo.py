"""What it takes to undo a tool call: which rows stay, and which changes are taken back."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from rath.backend.effects import FileEffect
from rath.session.body import Body
from rath.session.changes import net_changes
from rath.session.chunk import ChunkKind, ChunkTable
from rath.session.file_history import (
    Step,
    current_steps,
    find_call,
    own_steps,
    steps_of,
    undone_effects,
)
from rath.session.outcome import Completed
from rath.session.record import ToolRun


@dataclass(frozen=True, slots=True)
class Undo:
    """How a call is undone."""

    call: ToolRun
    body: Body
    """Rows before the call, and the whole record."""

    changes: tuple[FileEffect, ...]
    """What the call and all after it changed, one effect for each path."""


def plan_undo(
    body: Body, call: str | ToolRun, *, session: UUID, gaps: Literal["refuse", "ignore"]
) -> Undo:
    """Return how a call is undone.

    Raises:
        ValueError: It cannot be undone; says why.
    """
    steps = steps_of(body.record)
    wanted = find_call(body.record, call, own=own_steps(steps, session))
    line = current_steps(steps)
    at = next((at for at, step in enumerate(line) if step.entry.id == wanted.id), None)
    if at is None:
        raise ValueError(
            f"call {wanted.call_id!r} is not behind the files of this session: it was undone "
            "before, or it happened before a merge or in a session that was merged into this one; "
            "undo it in the session in which it ran"
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
    for at, row in enumerate(table):
        if row.id in call.rows:
            is_first = at > 0 and table[at - 1].kind == ChunkKind.ASSISTANT
            return at - 1 if is_first else at
    raise ValueError(
        f"call {call.call_id!r} has no row in this session: it ran inside another call, or its "
        "row was summed up; undo the call around it, or undo it in the session in which it ran"
    )


def _shared(undone: Iterable[FileEffect], before: Iterable[Step]) -> list[str]:
    """Return the paths that a call before, which is not undone, may have changed instead."""
    unsure = {effect for effect in undone if effect.attribution == "ambiguous"}
    return sorted({each.path for step in before for each in step.effects if each in unsure})


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
