"""Rows and entries of a session with the sessions they came from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Literal, TypeVar
from uuid import UUID

from rath._core.dataclasses import dataclass
from rath.session.body import Body
from rath.session.chunk import ChunkRow, ChunkTable, RowId
from rath.session.content import AssistantTurn, ToolFeedback
from rath.session.graph.recording import Provenance, ancestry, content_of
from rath.session.outcome import Completed, Outcome
from rath.session.record import (
    CHECK_ORIGIN,
    Change,
    Decision,
    Entry,
    ModelCall,
    Operation,
    Record,
    Summary,
    ToolRun,
    Verdict,
)
from rath.session.session import Session

RUNS = frozenset({"run_session_loop", "run_session_compress"})
"""Operators that make rows."""

DERIVATIONS = frozenset({"Session.fork", "Session.detach", "Session.merge", "Session.undo"})
"""Operators that only pass rows on."""

BRANCHES = DERIVATIONS | {"Session.delegate", "Session.replay", "input"}
"""Operators that note an operation of kind fork, detach, merge, delegate or input."""

E = TypeVar("E", bound=Entry)

_MAKERS = frozenset({"loop", "compress", "fork", "detach", "merge", "delegate", "input", "map"})
"""Kinds of operations that make a session."""


@dataclass(frozen=True, slots=True)
class LineageNode:
    """One session of a lineage."""

    id: UUID
    body: Body | None
    """Its content with late entries; None for a parent that is known by its id alone."""

    provenance: Provenance | None

    @property
    def table(self) -> ChunkTable:
        """Its rows; none where they are not known."""
        return ChunkTable() if self.body is None else self.body.table

    @property
    def outcome(self) -> Outcome | None:
        """Outcome of its run, where it is known."""
        return None if self.body is None else self.body.outcome

    @property
    def operator(self) -> str:
        """Name of the operation that made it, "" where it is not known."""
        return "" if self.provenance is None else self.provenance.operator

    @property
    def parents(self) -> tuple[UUID, ...]:
        """Ids of the sessions that it was made of."""
        return () if self.provenance is None else self.provenance.parent_ids


@dataclass(frozen=True, slots=True)
class Birth:
    """A row, and a session in which it stands; the one in which it was born, if that is known."""

    row: ChunkRow
    session: UUID
    index: int
    turn: int | None
    """Number of the model's answer that it is or follows, counted from 1 over the lineage."""


class Lineage:
    """The ancestry of a session, parents before children, itself last; waits for the run.

    It costs O(rows and entries of all of them).
    """

    def __init__(self, session: Session) -> None:
        self.session: UUID = session.id
        self.record: Record = session.record
        heads = [session.synchronize().core.as_parent()]
        self.nodes: dict[UUID, LineageNode] = {
            edge.id: LineageNode(edge.id, content_of(edge), edge.provenance)
            for edge in ancestry(heads)
        }
        operations = [entry for entry in self.record if isinstance(entry, Operation)]
        self.operations: dict[UUID, Operation] = {entry.operation: entry for entry in operations}
        """By run id."""

        self.makers: dict[UUID, Operation] = {
            entry.session: entry for entry in operations if entry.kind in _MAKERS
        }
        """The operation that made a session, by the session's id."""

        self.births: Mapping[RowId, Birth] = self._births()

    @property
    def own(self) -> LineageNode:
        """The session itself."""
        return self.nodes[self.session]

    @property
    def n_turns(self) -> int:
        """How many answers of models its rows hold."""
        return max((birth.turn or 0 for birth in self.births.values()), default=0)

    def is_of_run(self, row: RowId) -> bool:
        """Tell whether a row must have come from a run, and not from somebody's own hand.

        A row of a session that nothing is known of counts as one of a run: somebody made it.
        """
        operation = self.makers.get(row.session)
        if operation is not None:
            return operation.kind in ("loop", "compress")
        node = self.nodes.get(row.session)
        return node is None or node.operator in RUNS | DERIVATIONS

    def is_summary(self, row: RowId) -> bool:
        """Tell whether a row is the one that a compression made."""
        operation, node = self.makers.get(row.session), self.nodes.get(row.session)
        is_compressed = node is not None and node.operator == "run_session_compress"
        return row.index == 0 and (
            is_compressed if operation is None else operation.kind == "compress"
        )

    def in_turn(self, kind: type[E], turn: int | None) -> Iterator[tuple[int | None, E]]:
        """Yield the entries of a kind, each with its turn; where one is given, only those of it."""
        for entry in self.record:
            its_turn = self.turns.get(entry.id)
            if isinstance(entry, kind) and turn in (None, its_turn):
                yield its_turn, entry

    @cached_property
    def turns(self) -> Mapping[UUID, int]:
        """The turns of the model calls and tool runs that belong to one, by entry id.

        Turns are counted by rows, so that they stay the same whatever is missing of the record. A
        failed call belongs to the turn that came of it in the end, what ran inside a tool call to
        the turn of that call. A selection, a check, and a call after which no answer came, have no
        turn.
        """
        turns: dict[UUID, int] = {}
        turn_of_call = {
            call.id: birth.turn
            for birth in self.births.values()
            if isinstance(birth.row.content, AssistantTurn)
            for call in birth.row.content.calls
        }
        for entry in self.record:
            births = (self.births.get(row) for row in entry.rows)
            turn = next((birth.turn for birth in births if birth is not None), None)
            if turn is None and isinstance(entry, ToolRun) and not entry.rows:
                turn = turn_of_call.get(entry.call_id)
            if turn is not None and isinstance(entry, ModelCall | ToolRun):
                turns[entry.id] = turn
        # What made no row belongs to the turn that follows: a retry's answer, a call around it.
        answers: dict[UUID, int] = {}
        around: int | None = None
        for entry in reversed(tuple(self.record)):
            turn = turns.get(entry.id)
            later = around
            if isinstance(entry, ModelCall) and entry.purpose != "select":
                later = answers.get(entry.operation) or around
                if turn is not None:
                    answers[entry.operation], around = turn, None
            elif isinstance(entry, ToolRun) and entry.origin != CHECK_ORIGIN:
                around = turn or around
            else:
                continue
            if turn is None and later is not None:
                turns[entry.id] = later
        return turns

    @cached_property
    def changes(self) -> Mapping[RowId, tuple[Change, ...]]:
        """The changes of answers by their row, those of calls by the row of the result."""
        changes_of: dict[RowId, tuple[Change, ...]] = {}
        open_ones: dict[tuple[UUID, str | None], tuple[Change, ...]] = {}
        for entry in self.record:
            if isinstance(entry, Change) and entry.what == "answer":
                for row in entry.rows:
                    changes_of[row] = (*changes_of.get(row, ()), entry)
            elif isinstance(entry, Change):
                call = (entry.operation, entry.call_id)
                open_ones[call] = (*open_ones.get(call, ()), entry)
            elif isinstance(entry, ToolRun) and entry.rows:
                changes = open_ones.pop((entry.operation, entry.call_id), ())
                changes_of |= dict.fromkeys(entry.rows if changes else (), changes)
        return changes_of

    def _births(self) -> Mapping[RowId, Birth]:
        """Return where each row stands first; turns are counted as they come."""
        births: dict[RowId, Birth] = {}
        n_turns = 0
        for node in self.nodes.values():
            above = (self.nodes[parent].table for parent in node.parents if parent in self.nodes)
            shared = max((node.table.common_prefix(table) for table in above), default=0)
            last = node.table[shared - 1].id if shared else None
            turn = births[last].turn if last is not None and last in births else None
            for index, row in enumerate(node.table.since(shared), start=shared):
                if row.id is None:
                    continue
                birth = births.get(row.id)
                if birth is not None:
                    turn = birth.turn
                    continue
                if isinstance(row.content, AssistantTurn) or self.is_summary(row.id):
                    n_turns += 1
                    turn = n_turns
                elif not isinstance(row.content, ToolFeedback):
                    turn = None
                births[row.id] = Birth(row, node.id, index, turn)
        return births


def lineage_of(session: Session, turn: int | None = None) -> Lineage:
    """Return the lineage of a session.

    Raises:
        ValueError: The lineage has no such turn.
    """
    lineage = Lineage(session)
    if turn is not None and not 1 <= turn <= lineage.n_turns:
        turns = f"turns 1 to {lineage.n_turns}" if lineage.n_turns else "no turns"
        raise ValueError(f"there is no turn {turn}: session {session.id} has {turns}")
    return lineage


def sessions_of(change: Change) -> tuple[str, str]:
    """Return the ids of the sessions before and after a hook, "" where they are lost."""
    before, after = change.before.data, change.after.data
    return (before or b"").decode(), (after or b"").decode()


EvidenceKind = Literal[
    "model calls", "tool runs", "operations", "summaries", "verdicts", "decisions"
]
"""Entries of the record, as an answer names those that it lacks."""

Question = Literal["seen", "provider", "where", "changed", "origin"]
"""The five questions by the names of their flags."""

NEEDS: Mapping[Question, tuple[EvidenceKind, ...]] = {
    "seen": ("model calls", "operations"),
    "provider": ("model calls",),
    "where": ("tool runs",),
    "changed": ("tool runs", "verdicts", "operations"),
    "origin": ("operations", "summaries", "decisions"),
}
"""Entries that answer each question, beside the rows: which instructions and tools a model saw,
and in whose files a workspace began, stands in operations."""

NO_RECORD = "the session has rows of runs and no record of them, as one from a file of version 1"


@dataclass(frozen=True, slots=True)
class Missing:
    """Evidence of one kind that should be there."""

    kind: EvidenceKind
    n_places: int
    """How many entries are missed, at least."""

    reason: str
    """Evidence that they are missing."""


def find_missing(lineage: Lineage, question: Question) -> tuple[Missing, ...]:
    """Return the missing evidence for a question; O(rows and entries)."""
    if not len(lineage.record) and any(map(_needs_operation, lineage.nodes.values())):
        return tuple(Missing(kind, 1, NO_RECORD) for kind in NEEDS[question])
    signs_of: dict[EvidenceKind, list[str]] = {
        kind: list(_SIGNS[kind](lineage)) for kind in NEEDS[question]
    }
    more = {kind: f", and {len(signs) - 1} more like it" for kind, signs in signs_of.items()}
    return tuple(
        Missing(kind, len(signs), signs[0] + more[kind] * (len(signs) > 1))
        for kind, signs in signs_of.items()
        if signs
    )


def _of(lineage: Lineage, *kinds: type[Entry]) -> Iterator[Entry]:
    return (entry for entry in lineage.record if isinstance(entry, kinds))


def _rows_of(lineage: Lineage, *kinds: type[Entry]) -> set[RowId]:
    return {row for entry in _of(lineage, *kinds) for row in entry.rows}


def _without_calls(lineage: Lineage) -> Iterator[str]:
    """Yield rows and operations that a model call must have made or served."""
    answered = _rows_of(lineage, ModelCall)
    for row_id, birth in lineage.births.items():
        is_turn = isinstance(birth.row.content, AssistantTurn)
        if row_id not in answered and is_turn and lineage.is_of_run(row_id):
            yield f"{_place(row_id)} is an answer of a model without its call"
    with_calls = {entry.operation for entry in _of(lineage, ModelCall)}
    for summary in _of(lineage, Summary):
        if not answered.issuperset(summary.rows):
            yield f"{_place(summary.rows[0])} is the summary of a model without its call"
    for operation in lineage.operations.values():
        if operation.kind == "select" and operation.operation not in with_calls:
            yield f"a selection for session {operation.session} has no model call"


def _without_runs(lineage: Lineage) -> Iterator[str]:
    """Yield results and checks without the run of the tool."""
    recorded_rows = _rows_of(lineage, ToolRun)
    for row_id, birth in lineage.births.items():
        content = birth.row.content
        if (
            isinstance(content, ToolFeedback)
            and row_id not in recorded_rows
            and lineage.is_of_run(row_id)
        ):
            yield f"{_place(row_id)} is a result of {content.name!r} without its run"
    ran = {entry.operation for entry in _of(lineage, ToolRun)}
    for each in _of(lineage, Operation, Verdict):
        is_check = isinstance(each, Operation) and each.kind == "check"
        is_alone = isinstance(each, Verdict) and each.operation not in lineage.operations
        if (is_check or is_alone) and each.operation not in ran:
            yield f"check {each.operation} has no run of its command"


def _without_operations(lineage: Lineage) -> Iterator[str]:
    """Yield entries and sessions that an operation must have made."""
    operations = lineage.operations
    lost = dict.fromkeys(e.operation for e in lineage.record if e.operation not in operations)
    for operation in lost:
        yield f"entries name operation {operation}, which is not there"
    for node in lineage.nodes.values():
        if node.id not in lineage.makers and _needs_operation(node):
            yield f"session {node.id} was made by {node.operator} and has no operation"


def _needs_operation(node: LineageNode) -> bool:
    """Tell whether the operation that made a session must have been noted."""
    if node.provenance is not None and node.provenance.is_copy:
        return False
    if node.body is None or node.operator in BRANCHES:
        # Of a parent that is known by its id alone the record tells all the same.
        return node.operator in BRANCHES
    # What only passed a session on, or was stopped before it began, notes none.
    last = node.table[-1].id if len(node.table) else None
    is_own = last is not None and last.session == node.id
    return node.operator in RUNS and (is_own or isinstance(node.outcome, Completed))


def _without_summaries(lineage: Lineage) -> Iterator[str]:
    """Yield compressed sessions of which nothing says what was replaced."""
    summed = _rows_of(lineage, Summary)
    for row_id in lineage.births:
        if row_id not in summed and lineage.is_summary(row_id):
            yield f"{_place(row_id)} stands for rows that nothing names"


def _without_verdicts(lineage: Lineage) -> Iterator[str]:
    """Yield checks that judged and of which no verdict is left."""
    judged = {entry.operation for entry in _of(lineage, Verdict)}
    checks = {
        entry.operation
        for entry in lineage.record
        if (isinstance(entry, ToolRun) and entry.origin == CHECK_ORIGIN)
        or (isinstance(entry, Operation) and entry.kind == "check")
    }
    for operation in sorted(checks - judged):
        yield f"check {operation} has no verdict"


def _without_decisions(lineage: Lineage) -> Iterator[str]:
    """Yield tool runs that were allowed by a decision that is not there."""
    decided = {None, *(entry.id for entry in _of(lineage, Decision))}
    for entry in lineage.record:
        if isinstance(entry, ToolRun) and entry.decision not in decided:
            yield f"call {entry.call_id} was allowed by a decision that is not there"


def _place(row: RowId) -> str:
    return f"row {row.index} of session {row.session}"


_SIGNS: Mapping[EvidenceKind, Callable[[Lineage], Iterator[str]]] = {
    "model calls": _without_calls,
    "tool runs": _without_runs,
    "operations": _without_operations,
    "summaries": _without_summaries,
    "verdicts": _without_verdicts,
    "decisions": _without_decisions,
}
