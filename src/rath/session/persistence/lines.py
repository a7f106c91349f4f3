"""The lines of a session file of version 2, typed.

    header     one, first: who, when, from which parents, and what of theirs the session begins with
    head       the agent's rows that an operation stands on, once for each digest
    tools      the tool schemas that an operation offered, once for each digest
    chunk      a row
    entry      an entry of the record; also after the trailer, for what came late
    intent     a tool call is about to be made
    result     what became of one call of a round, as soon as it is known; of a run that ends
               because it waits, the round may be done only when that goes on
    round      all calls of a round are done: the results are rows and entries now, in this order
    partial    what a streamed answer said so far; the row that follows takes its place
    failure    the run ended with an error, or was cancelled; the file stays a partial one
    reopened   a run that was cut off goes on from here
    outcome    a decision changed how a run that ended stands; after the trailer
    placement  where the session works from now on, or that its workspace was opened; anywhere
    trailer    the run has ended; only entries, outcomes and placements follow

What must not be torn apart is written together: all lines of a group but the last have `"more": 1`,
and a file that ends inside a group is read up to where the group begins.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from rath.backend.abc import BackendSandboxSpec
from rath.backend.workspace import StoredWorkspace
from rath.llm.chat_request import RathLLMFunctionTool
from rath.llm.chat_response import RathLLMTokenUsage
from rath.session.body import GivenUsage
from rath.session.chunk import ChunkRow
from rath.session.graph.kind import LineageKind
from rath.session.outcome import Outcome
from rath.session.record import Entry, ToolRun

SCHEMA_VERSION = 2
"""What the header of such a file says."""


@dataclass(frozen=True, slots=True)
class Part:
    """A range of another session's rows or entries with which a session begins."""

    session: UUID
    start: int
    stop: int
    digest: str
    """Of rows: `rows_digest` of the range. Of entries: sha256 over their ids, 16 bytes each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderLine:
    """Who the session is and what it begins with."""

    session: UUID
    created_at: datetime
    operator: str
    kind: LineageKind
    parents: tuple[UUID, ...] = ()
    extras: tuple[tuple[str, Any], ...] = ()
    sandbox_backend: str | None = None
    sandbox_spec: BackendSandboxSpec | None = None
    sandbox_handle_id: str | None = None
    workspace: StoredWorkspace | None = None
    """Where its files are; None for a session without a place, or whose log is from before."""

    rows: tuple[Part, ...] = ()
    """The rows with which the table begins, one range after the other."""

    entries: tuple[Part, ...] = ()
    """The entries with which the record begins."""

    given: tuple[GivenUsage, ...] = ()
    lineage: tuple[UUID, UUID, str] | None = None
    """The documented DTO of a run: user and agent session, and the operator."""

    provider: Mapping[str, Any] | None = None
    """The provider that the session is bound to, without its key."""


@dataclass(frozen=True, slots=True)
class HeadLine:
    """An agent's rows."""

    digest: str
    rows: tuple[ChunkRow, ...]


@dataclass(frozen=True, slots=True)
class ToolsLine:
    """Tool schemas as they were offered."""

    digest: str
    tools: tuple[RathLLMFunctionTool, ...]


@dataclass(frozen=True, slots=True)
class RowLine:
    """A row of the table, at `index`."""

    index: int
    row: ChunkRow


@dataclass(frozen=True, slots=True)
class EntryLine:
    """An entry of the record."""

    entry: Entry


@dataclass(frozen=True, slots=True, kw_only=True)
class IntentLine:
    """A tool call is about to be made; without a result its outcome is unknown."""

    operation: UUID
    row: int
    """Index of the row in which the model asked for it."""

    call: int
    """Which of the calls of that row it is."""

    call_id: str
    tool: str
    effects: str
    """`read_only`, `idempotent` or `non_idempotent`, as the tool declares."""

    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultLine:
    """What became of a call, before its round is done."""

    row: int
    call: int
    run: ToolRun
    shown: ChunkRow | None
    """The row that the round will add for it; None for a call that was cut off."""


@dataclass(frozen=True, slots=True)
class RoundLine:
    """The results of the calls of a row become rows and entries, in call order."""

    row: int
    results: tuple[UUID, ...]
    """Ids of the entries of the results, which stand in lines before."""


@dataclass(frozen=True, slots=True)
class PartialLine:
    """More text of an answer that is being streamed."""

    operation: UUID
    text: str


@dataclass(frozen=True, slots=True)
class FailureLine:
    """Why a run ended without an outcome."""

    how: Literal["failed", "cancelled"]
    error: str
    at: datetime


@dataclass(frozen=True, slots=True)
class ReopenedLine:
    """A run goes on that was cut off, failed or waited; what failed before is past."""

    at: datetime


@dataclass(frozen=True, slots=True)
class OutcomeLine:
    """How a session that ended before stands now."""

    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementLine:
    """Where the session works from now on."""

    sandbox_backend: str | None = None
    sandbox_spec: BackendSandboxSpec | None = None
    sandbox_handle_id: str | None = None
    workspace: StoredWorkspace | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrailerLine:
    """The end of a run."""

    closed_at: datetime
    n_rows: int
    """Of the whole table, with what it begins with."""

    n_entries: int
    """Of the whole record, with what it begins with."""

    usage: RathLLMTokenUsage | None
    outcome: Outcome


Line = (
    HeaderLine
    | HeadLine
    | ToolsLine
    | RowLine
    | EntryLine
    | IntentLine
    | ResultLine
    | RoundLine
    | PartialLine
    | FailureLine
    | ReopenedLine
    | OutcomeLine
    | PlacementLine
    | TrailerLine
)
