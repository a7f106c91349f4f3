"""What the log of one session says, as far as an index keeps it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Literal
from uuid import UUID

from rath.session.graph.kind import LineageKind

__all__ = ["UNKNOWN_TIME", "CallFacts", "CallPrice", "LogFacts", "SaidRow"]

UNKNOWN_TIME = datetime(1970, 1, 1, tzinfo=UTC)
"""Stands for the times of a log whose first line cannot be believed."""

CallPrice = Literal["known", "unpriced", "uncounted", "nothing"]
"""What is known of the cost of a call; `nothing` for one that was refused or never sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFacts:
    """One model call."""

    id: UUID
    """Of its entry in the record; one call may stand in the logs of several sessions."""

    at: datetime
    model: str
    """The one that answered, else the one that was asked for."""

    purpose: str
    status: str
    prompt_tokens: int
    cached_tokens: int
    """Of the prompt."""

    completion_tokens: int
    total_tokens: int
    usd: Decimal | None
    price: CallPrice


@dataclass(frozen=True, slots=True)
class SaidRow:
    """What a row says, as text."""

    index: int
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class RowRange:
    """Rows of another session with which a table begins."""

    session: UUID
    start: int
    stop: int


@dataclass(slots=True, kw_only=True)
class LogFacts:
    """All that an index keeps of one log."""

    session: UUID
    size: int
    where: str = ""
    """Where the log stood when it was read, as `StoredLog` says."""

    created_at: datetime = UNKNOWN_TIME
    updated_at: datetime = UNKNOWN_TIME
    operator: str = ""
    kind: LineageKind = LineageKind.UNKNOWN
    parents: tuple[UUID, ...] = ()
    run: UUID | None = None
    path: str = ""
    ordinal: int = 0
    begins_with: tuple[RowRange, ...] = ()
    n_rows: int = 0
    n_lines: int = 0
    """Lines that count; a log that was cut has fewer than it had."""

    n_tool_runs: int = 0
    calls: dict[UUID, CallFacts] = field(default_factory=dict[UUID, CallFacts])
    given: dict[UUID, int] = field(default_factory=dict[UUID, int])
    """Tokens that came without a call, by the session that they came with."""

    said: list[SaidRow] = field(default_factory=list[SaidRow])
    """Of its own rows, those that say anything."""

    backend: str | None = None
    state: str = "cut_off"
    is_open: bool = True
    """Whether its run has not ended, as far as the log says."""

    problem: str = ""

    @property
    def title(self) -> SaidRow | None:
        """Its own first row in which a user speaks."""
        return next((row for row in self.said if row.kind == "user"), None)
