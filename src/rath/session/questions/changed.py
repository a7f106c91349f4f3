"""What changed? Files with diffs, what made each change, what is unsure, and what checks said."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from rath.backend.effects import FileEffect
from rath.errors import BackendError
from rath.session.checking import VerdictStatus
from rath.session.file_changes.changes import net_changes
from rath.session.file_changes.diff import unified_diff
from rath.session.file_changes.history import (
    CallEffect,
    EffectGap,
    Scope,
    Step,
    here_of,
    scoped_steps,
)
from rath.session.file_changes.merges import merge_in
from rath.session.file_changes.merging import FileConflict
from rath.session.questions.lineage import Lineage, lineage_of
from rath.session.questions.missing import Missing, find_missing
from rath.session.questions.turns import require_turn, turns_of
from rath.session.record import Operation
from rath.session.session import Session


@dataclass(frozen=True, slots=True)
class ToldChange:
    """A change of a file, by whom, and in which turn."""

    turn: int | None
    change: CallEffect


@dataclass(frozen=True, slots=True)
class WhatChanged:
    """The answer."""

    session: UUID
    files: tuple[FileEffect, ...]
    """What all of it comes to: one change for each path, sorted by path."""

    steps: tuple[ToldChange, ...]
    """The changes in the order in which they were made."""

    diff: str
    """The files as a unified diff, as `git apply` reads it."""

    gaps: tuple[EffectGap, ...]
    """Calls that may have changed more than is told, and why."""

    conflicts: tuple[FileConflict, ...]
    """Of merges of files: what the two sides did not agree on; the first side's was kept."""

    unknown: tuple[str, ...]
    """Merges of which it cannot be told what they changed, and why."""

    verdicts: tuple[VerdictStatus, ...]
    """Of the whole session; none where a single turn was asked for."""

    missing: tuple[Missing, ...]

    @property
    def unsure(self) -> tuple[ToldChange, ...]:
        """The changes that happened while a call ran, and that it need not have made."""
        return tuple(each for each in self.steps if each.change.effect.attribution != "exact")


@dataclass(frozen=True, slots=True)
class _Told:
    """What one step did to files."""

    effects: tuple[CallEffect, ...]
    conflicts: tuple[FileConflict, ...] = ()
    unknown: str = ""


def what_changed(
    session: Session, *, turn: int | None = None, scope: Scope = "whole"
) -> WhatChanged:
    """Return what was done to files, from the record alone; the workspace may be gone.

    Args:
        session: In memory or loaded; waits for its run.
        turn: Only what the calls of this turn did.
        scope: Which changes count, see `SessionFiles`; by default all behind the files of now.

    Raises:
        ValueError: There is no such turn, or no such scope.
    """
    lineage = lineage_of(session)
    require_turn(lineage, turn)
    turns = turns_of(lineage)
    here = here_of(session.placement)
    steps = [
        step
        for step in scoped_steps(lineage.record, session.id, scope, here)
        if turn in (None, turns.get(step.entry.id))
    ]
    told = [_told(step, lineage) for step in steps]
    changes = tuple(
        ToldChange(turns.get(change.call.id), change) for each in told for change in each.effects
    )
    files = net_changes(each.change.effect for each in changes)
    return WhatChanged(
        session=session.id,
        files=files,
        steps=changes,
        diff=unified_diff(files),
        gaps=tuple(gap for step in steps for gap in step.gaps()),
        conflicts=tuple(conflict for each in told for conflict in each.conflicts),
        unknown=tuple(each.unknown for each in told if each.unknown),
        verdicts=session.verdicts if turn is None else (),
        missing=find_missing(lineage, "changed"),
    )


def _told(step: Step, lineage: Lineage) -> _Told:
    entry = step.entry
    if not isinstance(entry, Operation) or entry.workspace != "three-way":
        return _Told(tuple(step.call_effects()))
    try:
        merge = merge_in(tuple(lineage.record), entry)
    except BackendError as exc:
        return _Told((), unknown=str(exc))
    return _Told(tuple(CallEffect(entry, each) for each in merge.effects), merge.conflicts)
