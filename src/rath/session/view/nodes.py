"""Nodes of the page: sessions, limits, and the catalogue of their contents."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Generic, TypeAlias, TypeVar, assert_never
from uuid import UUID

from rath._async.lazy import Deferred
from rath._core.text import one_line_preview
from rath.session.body import Body, CostSum, model_of, sum_costs
from rath.session.chunk import ChunkRow, ChunkTable
from rath.session.content import UserText
from rath.session.derive import with_late
from rath.session.graph.kind import LineageKind
from rath.session.graph.recording import Edge, Provenance
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PageLimits:
    """Sizes above which the page shows a part; all are guesses that keep a page below 20 MB."""

    max_chars: int = 20_000
    """Of one text: a message, arguments, a result. Both ends of a longer one are shown."""

    max_diff_chars: int = 40_000
    """Of the diff of one file."""

    max_image_bytes: int = 300_000
    """Of one image; of a larger one the page says type, size and digest."""

    max_all_images_bytes: int = 8_000_000
    """Of all images of a page together."""

    def __post_init__(self) -> None:
        for name in ("max_chars", "max_diff_chars"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("max_image_bytes", "max_all_images_bytes"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")


Shown: TypeAlias = "str | list[str | int]"
"""A text; or head, number of characters left out, and tail of one that was too long."""

_HARMLESS = str.maketrans(
    {char: f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}
)  # In JSON these stand inside of strings only.


def cut_text(text: str, max_chars: int) -> Shown:
    """Return a text of at most `max_chars` characters, with what is left out said."""
    if len(text) <= max_chars:
        return text
    head = max_chars - max_chars // 3
    tail = len(text) - max_chars // 3
    return [text[:head], tail - head, text[tail:]]


def harmless(json_text: str) -> str:
    """Return the same JSON so that no HTML parser finds the end of a script in it."""
    return json_text.translate(_HARMLESS)


MAX_TITLE = 120
"""Characters of a session's title."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageNode:
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


def nodes_of(heads: Iterable[Edge]) -> tuple[PageNode, ...]:
    """Return the sessions behind `heads`, each once and after all that it came from."""
    found: dict[UUID, Edge] = {}
    for head in heads:
        _collect(head, found)
    return tuple(_node(edge) for edge in found.values())


def own_entries(node: PageNode) -> Sequence[Entry]:
    """Return what happened in the session itself: from its own operation on; O(entries)."""
    if node.body is None:
        return ()
    record = node.body.record
    for at, entry in enumerate(record):
        if isinstance(entry, Operation) and entry.session == node.id:
            return record.since(at)
    return () if node.parents else record.since(0)


def totals(node: PageNode) -> Totals:
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


def _node(edge: Edge) -> PageNode:
    provenance = edge.provenance or Provenance()
    cell: Deferred[Body] | None = edge.body
    if cell is None:
        body, state, problem = None, "absent", "it is known by its id alone"
    else:
        body = with_late(edge.late, cell.latest or Body(ChunkTable()))
        state, problem = _state(cell, body)
    return PageNode(
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


def _title(node: PageNode) -> str:
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


T = TypeVar("T")
Range = tuple[int, int]
"""First index, and how many."""


class Numbered(Generic[T]):
    """Things by number, in the order in which they came; `fresh` gives those since it was asked."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._fresh: list[T] = []

    def number(self, key: Hashable, thing: T) -> int:
        """Return the number of `key`; under a new key `thing` gets the next one."""
        known = self._numbers.get(key)
        if known is not None:
            return known
        self._fresh.append(thing)
        self._numbers[key] = number = len(self._numbers)
        return number

    def find(self, key: Hashable) -> int | None:
        """Return the number of `key`, None where there is none."""
        return self._numbers.get(key)

    def fresh(self) -> list[T]:
        """Return what came since this was last asked, in order."""
        fresh, self._fresh = self._fresh, []
        return fresh


class Catalogue:
    """Numbers the rows and entries of sessions; a session is then a few ranges of numbers."""

    def __init__(self) -> None:
        self.rows: Numbered[ChunkRow] = Numbered()
        self.entries: Numbered[Entry] = Numbered()
        self._contents: dict[Hashable, ChunkRow] = {}

    def row_ranges(self, node: PageNode) -> list[Range]:
        """Number the rows of a session; O(rows)."""
        if node.body is None:
            return []
        return _ranges(self._row_number(row) for row in node.body.table)

    def entry_ranges(self, node: PageNode) -> list[Range]:
        """Number the entries of a session's record; O(entries)."""
        if node.body is None:
            return []
        return _ranges(self.entries.number(entry.id, entry) for entry in node.body.record)

    def entry(self, entry: UUID | None) -> int | None:
        """Return the number of an entry by its id."""
        return None if entry is None else self.entries.find(entry)

    def _row_number(self, row: ChunkRow) -> int:
        key: Hashable = row.id
        known = self._contents.setdefault(key, row)
        # A run that was made again from a copy of its past may use a name twice.
        if known is not row and known != row:
            key = (row.id, row.digest)
        return self.rows.number(key, row)


def _ranges(numbers: Iterable[int]) -> list[Range]:
    """Return consecutive numbers as ranges, in the same order."""
    ranges: list[Range] = []
    for number in numbers:
        if ranges and sum(ranges[-1]) == number:
            ranges[-1] = (ranges[-1][0], ranges[-1][1] + 1)
        else:
            ranges.append((number, 1))
    return ranges
