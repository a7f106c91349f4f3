"""Changes of files, the origin of a state, and the providers that answered."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Literal
from uuid import UUID

from rath._core.dataclasses import dataclass
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
    here_of,
    net_changes,
    scoped_steps,
)
from rath.session.files.diff import unified_diff
from rath.session.files.merge import FileConflict, merge_in
from rath.session.outcome import Outcome
from rath.session.questions.lineage import (
    Lineage,
    Missing,
    find_missing,
    lineage_of,
    sessions_of,
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
    """Net changes: one for each path, sorted by path."""

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


def what_changed(
    session: Session, *, turn: int | None = None, scope: Scope = "whole"
) -> WhatChanged:
    """Return the file changes, from the record alone; the workspace may be gone.

    Args:
        session: In memory or loaded; waits for its run.
        turn: Only what the calls of this turn did.
        scope: Which changes count, see `SessionFiles`; by default all behind the files of now.

    Raises:
        ValueError: There is no such turn, or no such scope.
    """
    lineage = lineage_of(session, turn)
    effects: list[CallEffect] = []
    gaps: list[EffectGap] = []
    conflicts: list[FileConflict] = []
    unknown: list[str] = []
    for step in scoped_steps(lineage.record, session.id, scope, here_of(session.core.placement)):
        entry = step.entry
        if turn not in (None, lineage.turns.get(entry.id)):
            continue
        gaps += step.gaps()
        if not isinstance(entry, Operation) or entry.workspace != "three-way":
            effects += step.call_effects()
            continue
        try:
            merge = merge_in(tuple(lineage.record), entry)
        except BackendError as exc:
            unknown.append(str(exc))
        else:
            effects += (CallEffect(entry, each) for each in merge.effects)
            conflicts += merge.conflicts
    files = net_changes(each.effect for each in effects)
    return WhatChanged(
        session=session.id,
        files=files,
        steps=tuple(ToldChange(lineage.turns.get(each.call.id), each) for each in effects),
        diff=unified_diff(files),
        gaps=tuple(gaps),
        conflicts=tuple(conflicts),
        unknown=tuple(unknown),
        verdicts=session.verdicts if turn is None else (),
        missing=find_missing(lineage, "changed"),
    )


By = Literal["written", "model", "tool", "summary"]
"""Author of a row: somebody's own hand, an answer of a model, a tool call, a compression."""


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
    """Interrupts and decisions of its run, in order."""

    changes: tuple[Change, ...] = ()
    """By which hooks its run began with another session, or it stands in the place of one."""


@dataclass(frozen=True, slots=True)
class BornRow:
    """One row of the final state."""

    index: int
    """Index of the row; for a single turn the first one that it had."""

    row: ChunkRow
    born: RowId | None
    """The session in which it was born, and its index there."""

    by: By
    turn: int | None
    changes: tuple[Change, ...] = ()
    """Changes by hooks before it became this row; of a result also to the arguments of its call."""


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
    """Return the origin of the final state; O(rows and entries). Waits for the run.

    Args:
        session: In memory or loaded.
        turn: Only the rows of this turn, also where they were replaced since, and what leads to
            the session in which they stood first.

    Raises:
        ValueError: There is no such turn.
    """
    lineage = lineage_of(session, turn)
    rows, wanted = list(enumerate(lineage.own.table)), set(lineage.nodes)
    if turn is not None:
        births = [birth for birth in lineage.births.values() if birth.turn == turn]
        rows = [(birth.index, birth.row) for birth in births]
        wanted = {birth.session for birth in births}
        for node in reversed(lineage.nodes.values()):  # children before what they came from
            wanted.update(node.parents if node.id in wanted else ())
    return WhereFrom(
        session=session.id,
        ancestors=tuple(each for each in _ancestors(lineage) if each.session in wanted),
        rows=tuple(_born(lineage, index, row) for index, row in rows),
        missing=find_missing(lineage, "origin"),
    )


def author_of(lineage: Lineage, row: ChunkRow) -> By:
    """Return who made a row, as far as rows and operations tell."""
    if isinstance(row.content, ToolFeedback):
        return "tool"
    if isinstance(row.content, AssistantTurn):
        return "model"
    birth = None if row.id is None else lineage.births.get(row.id)
    # Only a summary and what a model said count as turns.
    return "written" if birth is None or birth.turn is None else "summary"


def _born(lineage: Lineage, index: int, row: ChunkRow) -> BornRow:
    if row.id is None:
        return BornRow(index, row, None, author_of(lineage, row), None)
    turn, changes = lineage.births[row.id].turn, lineage.changes.get(row.id, ())
    return BornRow(index, row, row.id, author_of(lineage, row), turn, changes)


def _ancestors(lineage: Lineage) -> Iterator[Ancestor]:
    """Yield the ancestors, each with its operation and its changes."""
    n_born = Counter(birth.session for birth in lineage.births.values())
    summaries: dict[UUID, Summary] = {}
    runs: dict[UUID | None, ToolRun] = {}
    selections: dict[UUID, list[Operation]] = defaultdict(list)
    waits: dict[UUID, list[Interrupt | Decision]] = defaultdict(list)
    changes: dict[UUID, list[Change]] = defaultdict(list)
    for entry in lineage.record:
        operation = lineage.operations.get(entry.operation)
        # The operation itself stands for its session where it is missing.
        session = entry.operation if operation is None else operation.session
        if isinstance(entry, Summary):
            summaries |= {row.session: entry for row in entry.rows}
        elif isinstance(entry, ToolRun):
            runs[entry.id] = entry
        elif isinstance(entry, Operation) and entry.kind == "select":
            selections[entry.session].append(entry)
        elif isinstance(entry, Interrupt | Decision):
            waits[session].append(entry)
        elif isinstance(entry, Change) and entry.what in ("input", "output"):
            _, after = sessions_of(entry)
            if operation is not None or after:
                changes[session if operation is not None else UUID(after)].append(entry)
    for node in lineage.nodes.values():
        maker = lineage.makers.get(node.id)
        yield Ancestor(
            session=node.id,
            operator=node.operator,
            parents=node.parents,
            operation=maker,
            outcome=node.outcome,
            n_rows=len(node.table),
            n_born=n_born[node.id],
            summary=summaries.get(node.id),
            undone=None if maker is None else runs.get(maker.undone),
            selections=tuple(selections[node.id]),
            waits=tuple(waits[node.id]),
            changes=tuple(changes[node.id]),
        )


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
    lineage = lineage_of(session, turn)
    calls = tuple(AnsweredCall(*each) for each in lineage.in_turn(ModelCall, turn))
    usages = [each.call.evidence.usage for each in calls]
    return WhoAnswered(
        session=session.id,
        calls=calls,
        tokens=sum(usage.total_tokens for usage in usages if usage is not None),
        cost=sum_costs(each.call for each in calls),
        missing=find_missing(lineage, "provider"),
    )
