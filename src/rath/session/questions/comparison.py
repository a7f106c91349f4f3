"""Two sessions side by side: rows from where they part, files, and what each of them took."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from uuid import UUID

from rath.backend.effects import FileEffect
from rath.session.chunk import ChunkRow
from rath.session.content import AssistantTurn
from rath.session.cost import sum_costs
from rath.session.questions.changed import what_changed
from rath.session.record import CHECK_ORIGIN, ModelCall, Operation, Record, ToolRun, Verdict
from rath.session.session import Session


@dataclass(frozen=True, slots=True)
class Counts:
    """What is behind a session, each thing counted once."""

    rows: int
    turns: int
    """Answers of models among its rows."""

    model_calls: int
    retries: int
    """Tries after the first one of a call, and calls that another model had to answer."""

    tool_runs: int
    failed_tool_runs: int
    branches: int
    """Forks, detached copies and merges."""

    checks: int
    failed_checks: int
    tokens: int
    usd: Decimal
    is_priced: bool
    """Whether `usd` is the cost of all calls."""


@dataclass(frozen=True, slots=True)
class RowPair:
    """Rows that stand beside each other; None where one session has no more."""

    index: int
    left: ChunkRow | None
    right: ChunkRow | None

    @property
    def is_same(self) -> bool:
        """Whether both say the same."""
        return self.left == self.right


@dataclass(frozen=True, slots=True)
class FilePair:
    """What became of a file in each session; None where it was not touched."""

    path: str
    left: FileEffect | None
    right: FileEffect | None

    @property
    def is_same(self) -> bool:
        """Whether both left the same content."""
        after = [None if side is None else side.after for side in (self.left, self.right)]
        return self.left is not None and self.right is not None and after[0] == after[1]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two sessions, and where they differ."""

    left: UUID
    right: UUID
    n_common: int
    """Rows at the beginning that are the very same."""

    rows: tuple[RowPair, ...]
    """From there on."""

    files: tuple[FilePair, ...]
    """All that either touched, by path."""

    left_counts: Counts
    right_counts: Counts


def compare(left: Session, right: Session) -> Comparison:
    """Return two sessions side by side; O(rows and entries). Waits for both runs."""
    n_common = left.chunk_table.common_prefix(right.chunk_table)
    mine, theirs = left.chunk_table.since(n_common), right.chunk_table.since(n_common)
    pairs = (
        RowPair(
            n_common + at,
            mine[at] if at < len(mine) else None,
            theirs[at] if at < len(theirs) else None,
        )
        for at in range(max(len(mine), len(theirs)))
    )
    ours = {each.path: each for each in what_changed(left).files}
    others = {each.path: each for each in what_changed(right).files}
    return Comparison(
        left=left.id,
        right=right.id,
        n_common=n_common,
        rows=tuple(pairs),
        files=tuple(
            FilePair(path, ours.get(path), others.get(path))
            for path in sorted(ours.keys() | others.keys())
        ),
        left_counts=_count(left),
        right_counts=_count(right),
    )


def _count(session: Session) -> Counts:
    table, record = session.chunk_table, session.record
    calls = [entry for entry in record if isinstance(entry, ModelCall)]
    runs = [e for e in record if isinstance(e, ToolRun) and e.origin != CHECK_ORIGIN]
    verdicts = [entry for entry in record if isinstance(entry, Verdict)]
    usage, cost = session.cumulative_usage, sum_costs(calls)
    return Counts(
        rows=len(table),
        turns=sum(isinstance(row.content, AssistantTurn) for row in table),
        model_calls=len(calls),
        retries=sum(_n_retries(call) for call in calls),
        tool_runs=len(runs),
        failed_tool_runs=sum(run.status != "done" for run in runs),
        branches=_n_branches(record),
        checks=len(verdicts),
        failed_checks=sum(not verdict.passed for verdict in verdicts),
        tokens=0 if usage is None else usage.total_tokens,
        usd=cost.usd,
        is_priced=cost.is_complete,
    )


def _n_retries(call: ModelCall) -> int:
    tries = max(0, len(call.evidence.attempts) - 1)
    return tries + (call.status == "failed")


def _n_branches(record: Record) -> int:
    return sum(isinstance(e, Operation) and e.kind in ("fork", "detach", "merge") for e in record)
