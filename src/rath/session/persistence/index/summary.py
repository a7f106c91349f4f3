"""What an index says about one session."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from uuid import UUID

from rath.session.graph.kind import LineageKind


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSummary:
    """One line of a listing."""

    id: UUID
    created_at: datetime
    """UTC."""

    updated_at: datetime
    """UTC; the time of the last line that has one."""

    operator: str
    kind: LineageKind
    parents: tuple[UUID, ...]
    run: UUID | None
    """The workflow call that it was made in."""

    path: str
    """The place in that call, such as "Team.planner"; "" outside of any."""

    ordinal: int
    title: str
    """The first words that a user said in it, on one line."""

    n_rows: int
    """Of the whole table, with what the session begins with."""

    n_calls: int
    """Model calls of its own run."""

    n_tool_runs: int
    """Tool calls of its own run."""

    tokens: int
    """Of the model calls of its own run."""

    usd: Decimal
    """What these cost, as far as it is known."""

    is_priced: bool
    """Whether the cost of all of them is known."""

    models: tuple[str, ...]
    """That answered in its own run, each once."""

    backend: str | None
    state: str
    """`completed`, `round_limit`, `budget_exceeded`, `deadline_exceeded`, `cancelled`,
    `needs_approval`, `needs_input`, `needs_decision`, `failed`, `cut_off`, or `running` as long as
    its writer is at work; `damaged` for a log that cannot be believed."""

    problem: str
    """Why it failed or cannot be believed, "" for others."""

    size: int
    """Bytes of its log."""
