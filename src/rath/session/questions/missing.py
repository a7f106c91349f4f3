"""Which evidence a session should hold and does not, and which questions need it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from rath.session.chunk import RowId
from rath.session.content import AssistantTurn, ToolFeedback
from rath.session.outcome import Completed
from rath.session.questions.lineage import BRANCHES, RUNS, Lineage, Node
from rath.session.record import (
    CHECK_ORIGIN,
    Decision,
    Entry,
    ModelCall,
    Operation,
    Summary,
    ToolRun,
    Verdict,
)

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
"""What each question is answered from, beside the rows: which instructions and tools a model saw,
and in whose files a workspace began, stands in operations."""

NO_RECORD = "the session has rows of runs and no record of them, as one from a file of version 1"


@dataclass(frozen=True, slots=True)
class Missing:
    """Evidence of one kind that should be there."""

    kind: EvidenceKind
    n_places: int
    """How many entries are missed, at least."""

    reason: str
    """What shows that they are missing."""


def find_missing(lineage: Lineage, question: Question) -> tuple[Missing, ...]:
    """Return what is missing for a question; O(rows and entries)."""
    if _has_no_record(lineage):
        return tuple(Missing(kind, 1, NO_RECORD) for kind in NEEDS[question])
    told: dict[EvidenceKind, list[str]] = {
        kind: list(_SIGNS[kind](lineage)) for kind in NEEDS[question]
    }
    return tuple(
        Missing(kind, len(signs), signs[0] if len(signs) == 1 else _and_more(signs))
        for kind, signs in told.items()
        if signs
    )


def _and_more(signs: Collection[str]) -> str:
    first = next(iter(signs))
    return f"{first}, and {len(signs) - 1} more like it"


def _has_no_record(lineage: Lineage) -> bool:
    return not len(lineage.record) and any(map(_has_begun, lineage.nodes.values()))


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
    asked = {entry.operation for entry in _of(lineage, ModelCall)}
    for summary in _of(lineage, Summary):
        if not answered.issuperset(summary.rows):
            yield f"{_place(summary.rows[0])} is the summary of a model without its call"
    for operation in lineage.operations.values():
        if operation.kind == "select" and operation.operation not in asked:
            yield f"a selection for session {operation.session} has no model call"


def _without_runs(lineage: Lineage) -> Iterator[str]:
    """Yield results and checks without the run of the tool."""
    told = _rows_of(lineage, ToolRun)
    for row_id, birth in lineage.births.items():
        content = birth.row.content
        if isinstance(content, ToolFeedback) and row_id not in told and lineage.is_of_run(row_id):
            yield f"{_place(row_id)} is a result of {content.name!r} without its run"
    ran = {entry.operation for entry in _of(lineage, ToolRun)}
    for each in _of(lineage, Operation, Verdict):
        is_check = isinstance(each, Operation) and each.kind == "check"
        is_alone = isinstance(each, Verdict) and each.operation not in lineage.operations
        if (is_check or is_alone) and each.operation not in ran:
            yield f"check {each.operation} has no run of its command"


def _without_operations(lineage: Lineage) -> Iterator[str]:
    """Yield entries and sessions that an operation must have made."""
    known = lineage.operations
    lost = dict.fromkeys(e.operation for e in lineage.record if e.operation not in known)
    for operation in lost:
        yield f"entries name operation {operation}, which is not there"
    for node in lineage.nodes.values():
        if node.id not in lineage.made_by and _has_begun(node):
            yield f"session {node.id} was made by {node.operator} and has no operation"


def _has_begun(node: Node) -> bool:
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
        if row_id.index == 0 and row_id not in summed and _is_compressed(lineage, row_id.session):
            yield f"{_place(row_id)} stands for rows that nothing names"


def _is_compressed(lineage: Lineage, session: UUID) -> bool:
    made, node = lineage.made_by.get(session), lineage.nodes.get(session)
    if made is not None:
        return made.kind == "compress"
    return node is not None and node.operator == "run_session_compress"


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
