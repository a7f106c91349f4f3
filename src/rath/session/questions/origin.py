"""What changed, where a state came from, and which provider answered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from rath.backend.effects import FileEffect
from rath.errors import BackendError
from rath.session.body import CostSum, model_of, sum_costs
from rath.session.checking import VerdictStatus
from rath.session.chunk import ChunkRow, RowId
from rath.session.content import AssistantTurn, ToolFeedback
from rath.session.files.changes import (
    CallEffect,
    EffectGap,
    Scope,
    Step,
    here_of,
    net_changes,
    scoped_steps,
)
from rath.session.files.diff import unified_diff
from rath.session.files.merge import FileConflict, merge_in
from rath.session.outcome import Outcome
from rath.session.questions.lineage import (
    Lineage,
    LineageNode,
    Missing,
    changes_by_row,
    changes_by_session,
    find_missing,
    lineage_of,
    require_turn,
    turns_of,
)
from rath.session.record import Change, Decision, Interrupt, ModelCall, Operation, Summary, ToolRun
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


By = Literal["written", "model", "tool", "summary"]
"""Who made a row: somebody's own hand, an answer of a model, a tool call, a compression."""


@dataclass(frozen=True, slots=True)
class Ancestor:
    """One session on the way to the final state, and how it was made."""

    session: UUID
    operator: str
    parents: tuple[UUID, ...]
    operation: Operation | None
    """None for a session that somebody made by hand, and where it is missing."""

    outcome: Outcome | None
    """None for a parent that is known by its id alone."""

    n_rows: int
    n_born: int
    """Rows that first stood in it."""

    summary: Summary | None
    """A compression: which rows its one row replaced."""

    undone: ToolRun | None
    """An undo: the call before which it goes back."""

    selections: tuple[Operation, ...]
    """Choices that a model made for it."""

    waits: tuple[Interrupt | Decision, ...]
    """What its run waited for and what was decided, in order."""

    changes: tuple[Change, ...] = ()
    """By which hooks its run began with another session, or it stands in the place of one."""


@dataclass(frozen=True, slots=True)
class BornRow:
    """One row of the final state."""

    index: int
    """Where it stands; for a single turn where it stood first."""

    row: ChunkRow
    born: RowId | None
    """The session in which it was born, and its index there."""

    by: By
    turn: int | None
    changes: tuple[Change, ...] = ()
    """What hooks changed before it became this row; of a result also the arguments of its call."""


@dataclass(frozen=True, slots=True)
class WhereFrom:
    """The answer."""

    session: UUID
    ancestors: tuple[Ancestor, ...]
    """Parents before children; the session itself is the last one."""

    rows: tuple[BornRow, ...]
    missing: tuple[Missing, ...]

    @property
    def leaves(self) -> tuple[Ancestor, ...]:
        """The sessions that came from no other one."""
        return tuple(each for each in self.ancestors if not each.parents)


def where_from(session: Session, *, turn: int | None = None) -> WhereFrom:
    """Return what the final state was made of; O(rows and entries). Waits for the run.

    Args:
        session: In memory or loaded.
        turn: Only the rows of this turn, also where they were replaced since, and what leads to
            the session in which they stood first.

    Raises:
        ValueError: There is no such turn.
    """
    lineage = lineage_of(session)
    require_turn(lineage, turn)
    changes = changes_by_row(lineage)
    kept, rows = set(lineage.nodes), tuple(_rows(lineage, changes))
    if turn is not None:
        births = [birth for birth in lineage.births.values() if birth.turn == turn]
        rows = tuple(_born(lineage, birth.index, birth.row, changes) for birth in births)
        kept = _leading_to(lineage, {birth.session for birth in births})
    about = _About(lineage)
    return WhereFrom(
        session=session.id,
        ancestors=tuple(about.ancestor(node) for node in lineage.nodes.values() if node.id in kept),
        rows=rows,
        missing=find_missing(lineage, "origin"),
    )


def made_by(lineage: Lineage, row: ChunkRow) -> By:
    """Return who made a row, as far as rows and operations tell."""
    if isinstance(row.content, ToolFeedback):
        return "tool"
    if isinstance(row.content, AssistantTurn):
        return "model"
    birth = None if row.id is None else lineage.births.get(row.id)
    # Only a summary and what a model said count as turns.
    return "written" if birth is None or birth.turn is None else "summary"


_Changes = Mapping[RowId, tuple[Change, ...]]


def _rows(lineage: Lineage, changes: _Changes) -> Iterator[BornRow]:
    for index, row in enumerate(lineage.own.table):
        yield _born(lineage, index, row, changes)


def _born(lineage: Lineage, index: int, row: ChunkRow, changes: _Changes) -> BornRow:
    birth = None if row.id is None else lineage.births[row.id]
    turn = None if birth is None else birth.turn
    changed = () if row.id is None else changes.get(row.id, ())
    return BornRow(index, row, row.id, made_by(lineage, row), turn, changed)


def _leading_to(lineage: Lineage, sessions: set[UUID]) -> set[UUID]:
    kept: set[UUID] = set()
    todo = list(sessions)
    while todo:
        node = lineage.nodes[todo.pop()]
        if node.id not in kept:
            kept.add(node.id)
            todo += node.parents
    return kept


class _About:
    """What the record tells of each session."""

    def __init__(self, lineage: Lineage) -> None:
        self._made_by = lineage.made_by
        self._n_born = Counter(birth.session for birth in lineage.births.values())
        self._summaries: dict[UUID, Summary] = {}
        self._runs: dict[UUID, ToolRun] = {}
        self._selections: dict[UUID, list[Operation]] = {}
        self._waits: dict[UUID, list[Interrupt | Decision]] = {}
        self._changes = changes_by_session(lineage)
        for entry in lineage.record:
            if isinstance(entry, Summary):
                self._summaries |= {row.session: entry for row in entry.rows}
            elif isinstance(entry, ToolRun):
                self._runs[entry.id] = entry
            elif isinstance(entry, Operation) and entry.kind == "select":
                self._selections.setdefault(entry.session, []).append(entry)
            elif isinstance(entry, Interrupt | Decision):
                session = _session_of(lineage.operations, entry)
                self._waits.setdefault(session, []).append(entry)

    def ancestor(self, node: LineageNode) -> Ancestor:
        made = self._made_by.get(node.id)
        undone = None if made is None or made.undone is None else self._runs.get(made.undone)
        return Ancestor(
            session=node.id,
            operator=node.operator,
            parents=node.parents,
            operation=made,
            outcome=node.outcome,
            n_rows=len(node.table),
            n_born=self._n_born[node.id],
            summary=self._summaries.get(node.id),
            undone=undone,
            selections=tuple(self._selections.get(node.id, ())),
            waits=tuple(self._waits.get(node.id, ())),
            changes=self._changes.get(node.id, ()),
        )


def _session_of(operations: Mapping[UUID, Operation], entry: Interrupt | Decision) -> UUID:
    """Return the session whose run waited; the operation itself where it is missing."""
    begun = operations.get(entry.operation)
    return entry.operation if begun is None else begun.session


@dataclass(frozen=True, slots=True)
class AnsweredCall:
    """One model call; its evidence tells all that is known of it."""

    turn: int | None
    call: ModelCall

    @property
    def model(self) -> str:
        """The model that answered, else the one that was asked."""
        return model_of(self.call.evidence)

    @property
    def n_retries(self) -> int:
        """Tries after the first one."""
        return max(0, len(self.call.evidence.attempts) - 1)


@dataclass(frozen=True, slots=True)
class WhoAnswered:
    """The answer."""

    session: UUID
    calls: tuple[AnsweredCall, ...]
    tokens: int
    """Of these calls."""

    cost: CostSum
    """Of these calls."""

    missing: tuple[Missing, ...]

    @property
    def models(self) -> tuple[tuple[str, int], ...]:
        """The models that answered, in the order in which they first did, and how often."""
        done = (each.model for each in self.calls if each.call.status == "done")
        return tuple(Counter(done).items())


def who_answered(session: Session, *, turn: int | None = None) -> WhoAnswered:
    """Return who answered each model call; O(rows and entries). Waits for the run.

    Args:
        session: In memory or loaded.
        turn: Only the calls of this turn.

    Raises:
        ValueError: There is no such turn.
    """
    lineage = lineage_of(session)
    require_turn(lineage, turn)
    turns = turns_of(lineage)
    calls = tuple(
        AnsweredCall(turns.get(entry.id), entry)
        for entry in lineage.record
        if isinstance(entry, ModelCall) and turn in (None, turns.get(entry.id))
    )
    usages = [each.call.evidence.usage for each in calls]
    return WhoAnswered(
        session=session.id,
        calls=calls,
        tokens=sum(usage.total_tokens for usage in usages if usage is not None),
        cost=sum_costs(each.call for each in calls),
        missing=find_missing(lineage, "provider"),
    )
