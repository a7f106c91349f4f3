"""The sessions of a page: one session or several, and all that they came from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, assert_never
from uuid import UUID

from rath._async.lazy import Deferred
from rath._core.text import one_line_preview
from rath.session.body import Body
from rath.session.branching import with_late
from rath.session.chunk import ChunkTable
from rath.session.content import UserText
from rath.session.cost import CostSum, model_of, sum_costs
from rath.session.graph.kind import LineageKind
from rath.session.graph.provenance import Edge, Provenance
from rath.session.outcome import (
    BudgetExceeded,
    Cancelled,
    Completed,
    DeadlineExceeded,
    NeedsApproval,
    NeedsDecision,
    NeedsInput,
    Outcome,
    RoundLimit,
)
from rath.session.record import Entry, ModelCall, Operation, ToolRun

MAX_TITLE = 120
"""Characters of a session's title."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A session of the page."""

    id: UUID
    operator: str
    kind: LineageKind
    parents: tuple[UUID, ...]
    extras: tuple[tuple[str, Any], ...]
    body: Body | None
    """Its content, as far as it is there; None for a session that is known by its id alone."""

    state: str
    """As `SessionSummary.state`, or "absent"."""

    problem: str = ""
    """Why it failed, or what it waits for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """What a session did itself, without what it came from."""

    title: str
    """The first words that a user said in it."""

    path: str
    """Its place in the program, such as "Team.planner"."""

    n_calls: int
    n_tool_runs: int
    tokens: int
    cost: CostSum
    models: tuple[str, ...]
    backends: tuple[str, ...]
    """On which its tools ran."""

    started_ms: int | None
    """Milliseconds since 1970; None where nothing was recorded."""

    duration_ms: int | None
    """From its first entry to the end of its last one."""


def nodes_of(heads: Iterable[Edge]) -> tuple[Node, ...]:
    """Return the sessions behind `heads`, each once and after all that it came from."""
    found: dict[UUID, Edge] = {}
    for head in heads:
        _collect(head, found)
    return tuple(_node(edge) for edge in found.values())


def own_entries(node: Node) -> Sequence[Entry]:
    """Return what happened in the session itself: from its own operation on; O(entries)."""
    if node.body is None:
        return ()
    record = node.body.record
    for at, entry in enumerate(record):
        if isinstance(entry, Operation) and entry.session == node.id:
            return record.since(at)
    return () if node.parents else record.since(0)


def totals(node: Node) -> Totals:
    """Return what the session did itself; O(rows + entries)."""
    entries = own_entries(node)
    calls = [entry for entry in entries if isinstance(entry, ModelCall)]
    runs = [entry for entry in entries if isinstance(entry, ToolRun)]
    usages = [call.evidence.usage for call in calls if call.evidence.usage is not None]
    places = (entry.place.path for entry in entries if isinstance(entry, Operation))
    started = int(entries[0].at.timestamp() * 1000) if entries else None
    return Totals(
        title=_title(node),
        path=next(places, ""),
        n_calls=len(calls),
        n_tool_runs=len(runs),
        tokens=sum(usage.total_tokens for usage in usages),
        cost=sum_costs(calls) if calls else CostSum(Decimal(0), 0),
        models=tuple(dict.fromkeys(model_of(call.evidence) for call in calls)),
        backends=tuple(dict.fromkeys(run.sandbox.backend for run in runs if run.sandbox)),
        started_ms=started,
        duration_ms=None if started is None else max(map(_end_ms, entries)) - started,
    )


def _collect(head: Edge, found: dict[UUID, Edge]) -> None:
    """Add a session and what it came from, parents first; chains may be longer than the stack."""
    stack: list[tuple[Edge, bool]] = [(head, False)]
    while stack:
        edge, has_parents = stack.pop()
        known = found.get(edge.id)
        if has_parents or (known is not None and _n_known(known) < _n_known(edge)):
            found[edge.id] = edge
        elif known is None:
            stack.append((edge, True))
            parents = edge.provenance.parents if edge.provenance is not None else ()
            stack.extend((parent, False) for parent in reversed(parents))


def _n_known(edge: Edge) -> int:
    """Return how much an edge tells of its session: one of a later moment tells more."""
    body = None if edge.body is None else edge.body.latest
    if body is None:
        return 0
    return 1 + len(with_late(edge.late, body).record) + len(body.table)


def _node(edge: Edge) -> Node:
    provenance = edge.provenance or Provenance()
    cell: Deferred[Body] | None = edge.body
    if cell is None:
        body, state, problem = None, "absent", "it is known by its id alone"
    else:
        body = with_late(edge.late, cell.latest or Body(ChunkTable()))
        state, problem = _state(cell, body)
    return Node(
        id=edge.id,
        operator=provenance.operator,
        kind=provenance.kind,
        parents=provenance.parent_ids,
        extras=provenance.extras,
        body=body,
        state=state,
        problem=problem,
    )


def _state(cell: Deferred[Body], body: Body) -> tuple[str, str]:
    if not cell.done():
        return "running", ""
    error = cell.error()
    if error is not None:
        return "failed", f"{type(error).__name__}: {error}"
    left = body.unfinished
    if left is not None and left.failure is not None and left.failure.how == "failed":
        return "failed", left.failure.error
    return outcome_state(body.outcome)


def outcome_state(outcome: Outcome) -> tuple[str, str]:
    """Return an outcome as `SessionSummary.state` names it, and what there is to say about it."""
    match outcome:
        case Completed():
            return "completed", ""
        case RoundLimit(max_tool_rounds=n_rounds):
            return "round_limit", f"it used its {n_rounds} rounds and still wanted tools"
        case BudgetExceeded():
            return "budget_exceeded", str(outcome)
        case DeadlineExceeded(timeout=timeout):
            return "deadline_exceeded", f"it took longer than {timeout:g} s"
        case Cancelled(session=session):
            return "cancelled", f"the run of session {session} was ended from outside"
        case NeedsApproval(calls=calls):
            return "needs_approval", f"calls to approve: {', '.join(calls)}"
        case NeedsInput(question=question):
            return "needs_input", question
        case NeedsDecision(calls=()):
            return (
                "cut_off",
                "its run has no end: it still goes on, or was cut off and can be resumed",
            )
        case NeedsDecision(calls=calls):
            return "needs_decision", f"it is not known what came of {', '.join(calls)}"
        case _:
            assert_never(outcome)


def _title(node: Node) -> str:
    if node.body is None:
        return ""
    texts = (
        row.content.text
        for row in node.body.table
        if row.id is not None and row.id.session == node.id and isinstance(row.content, UserText)
    )
    return one_line_preview(next(texts, ""), MAX_TITLE)


def _end_ms(entry: Entry) -> int:
    at = int(entry.at.timestamp() * 1000)
    if isinstance(entry, ModelCall):
        started = int(entry.evidence.started.timestamp() * 1000)
        return max(at, started + int(entry.evidence.duration_ms))
    return at
