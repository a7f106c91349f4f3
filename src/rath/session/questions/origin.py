"""Where did the final state come from? Operations and parents, back to the leaves; row by row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from rath.session.chunk import ChunkRow, RowId
from rath.session.content import AssistantTurn, ToolFeedback
from rath.session.outcome import Outcome
from rath.session.questions.hooked import changes_by_row, changes_by_session
from rath.session.questions.lineage import Lineage, Node, lineage_of
from rath.session.questions.missing import Missing, find_missing
from rath.session.questions.turns import require_turn
from rath.session.record import Change, Decision, Interrupt, Operation, Summary, ToolRun
from rath.session.session import Session

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

    def ancestor(self, node: Node) -> Ancestor:
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
