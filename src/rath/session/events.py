"""The events of a session's log, in one tagged union; `rath.session.log.format` has their bytes.

    Header           one, first: who, when, from which parents, and what of theirs it begins with
    AgentRows        the agent's rows that an operation stands on, once for each digest
    ToolSchemas      the tool schemas that an operation offered, once for each digest
    CallSetup        what many model calls have in common, once for each digest
    Row              a row of the table
    RecordEntry      an entry of the record; also after the end, for what came late
    Intent           a tool call is about to be made
    PendingResult    what became of one call of a round, as soon as it is known; of a run that ends
                     because it waits, the round may be done only when that goes on
    RoundEnd         all calls of a round are done: the results are rows and entries, in this order
    PartialText      what a streamed answer said so far; the row that follows takes its place
    Failed           the run ended with an error, or was cancelled; the log stays a partial one
    Reopened         a run that was cut off goes on from here
    OutcomeChange    a decision changed how a run that ended stands; after the end
    PlacementChange  where the session works from now on, or that its workspace was opened; anywhere
    Finished         the run has ended; only entries, outcomes and placements follow

What must not be torn apart is one group of lines, which counts as a whole or not at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal
from uuid import UUID

from msgspec import Struct

from rath._core.dataclasses import dataclass
from rath.backend.abc import BackendSandboxSpec
from rath.backend.workspace import StoredWorkspace
from rath.llm.chat_request import RathLLMFunctionTool
from rath.llm.chat_response import RathLLMTokenUsage
from rath.session.chunk import ChunkRow
from rath.session.graph.kind import LineageKind
from rath.session.outcome import Outcome
from rath.session.record import Entry, Time, ToolRun, ToolStatus


@dataclass(frozen=True, slots=True)
class GivenUsage:
    """Usage that came with a session and not from a model call in its record."""

    session: UUID
    usage: RathLLMTokenUsage


class AncestorRange(Struct, frozen=True, array_like=True):
    """A range of another session's rows or entries with which a session begins."""

    session: UUID
    start: int
    stop: int
    digest: str
    """Of rows: `rows_digest` of the range. Of entries: sha256 over their ids, 16 bytes each."""


class _Event(Struct, frozen=True, tag_field="event", omit_defaults=True, gc=False):
    pass


class Header(_Event, frozen=True, kw_only=True, tag="header"):
    """Identity of a session, and the rows it begins with."""

    session: UUID
    created_at: Time
    operator: str
    kind: LineageKind
    parents: tuple[UUID, ...] = ()
    extras: tuple[tuple[str, Any], ...] = ()
    sandbox_backend: str | None = None
    sandbox_spec: BackendSandboxSpec | None = None
    sandbox_handle_id: str | None = None
    workspace: StoredWorkspace | None = None
    """Workspace of its files; None for a session without a place, or whose log is from before."""

    rows: tuple[AncestorRange, ...] = ()
    """The rows with which the table begins, one range after the other."""

    entries: tuple[AncestorRange, ...] = ()
    """The entries with which the record begins."""

    given: tuple[GivenUsage, ...] = ()
    lineage: tuple[UUID, UUID, str] | None = None
    """The documented DTO of a run: user and agent session, and the operator."""

    provider: Mapping[str, Any] | None = None
    """The provider that the session is bound to, without its key."""


class AgentRows(_Event, frozen=True, tag="agent_rows"):
    """An agent's rows."""

    digest: str
    rows: tuple[ChunkRow, ...]


class ToolSchemas(_Event, frozen=True, tag="tool_schemas"):
    """Tool schemas as they were offered."""

    digest: str
    tools: tuple[RathLLMFunctionTool, ...]


class CallSetup(_Event, frozen=True, tag="call_setup"):
    """Members of the evidence of model calls that name this setup, and of what the model saw."""

    digest: str
    evidence: dict[str, Any]
    seen: dict[str, Any] = {}


class Row(_Event, frozen=True, tag="row"):
    """A row of the table, at `index`."""

    index: int
    row: ChunkRow


class Intent(_Event, frozen=True, kw_only=True, tag="intent"):
    """A tool call is about to be made; without a result its outcome is unknown."""

    operation: UUID
    row: int
    """Index of the row in which the model asked for it."""

    call: int
    """Index of the call in that row."""

    call_id: str
    tool: str
    effects: str
    """`read_only`, `idempotent` or `non_idempotent`, as the tool declares."""

    at: Time


class PendingResult(_Event, frozen=True, kw_only=True, tag="result"):
    """The result of a call, before its round is done."""

    row: int
    call: int
    run: ToolRun
    shown: ChunkRow | None
    """The row that the round will add for it; None for a call that was cut off."""


class RoundEnd(_Event, frozen=True, tag="round"):
    """The results of the calls of a row become rows and entries, in call order."""

    row: int
    results: tuple[UUID, ...]
    """Ids of the entries of the results, which stand in events before."""


class PartialText(_Event, frozen=True, tag="partial"):
    """More text of an answer that is being streamed."""

    operation: UUID
    text: str


class Failed(_Event, frozen=True, tag="failed"):
    """Failure of a run, which ended without an outcome."""

    how: Literal["failed", "cancelled"]
    error: str
    at: Time


class Reopened(_Event, frozen=True, tag="reopened"):
    """A run goes on that was cut off, failed or waited; what failed before is past."""

    at: Time


class OutcomeChange(_Event, frozen=True, tag="outcome"):
    """Change of the outcome of a session that had ended."""

    outcome: Outcome


class PlacementChange(_Event, frozen=True, kw_only=True, tag="placement"):
    """Change of the place of a session."""

    sandbox_backend: str | None = None
    sandbox_spec: BackendSandboxSpec | None = None
    sandbox_handle_id: str | None = None
    workspace: StoredWorkspace | None = None


class Finished(
    _Event,
    frozen=True,
    kw_only=True,
    tag="finished",
    rename={
        "n_rows": "final_chunk_count",
        "n_entries": "final_entry_count",
        "usage": "cumulative_usage",
    },
):
    """The end of a run; `PersistedSession.trailer_raw` has it under the documented names."""

    closed_at: Time
    n_rows: int
    """Of the whole table, with what it begins with."""

    n_entries: int
    """Of the whole record, with what it begins with."""

    usage: RathLLMTokenUsage | None = None
    outcome: Outcome


Event = (
    Header
    | AgentRows
    | ToolSchemas
    | CallSetup
    | Row
    | Entry
    | Intent
    | PendingResult
    | RoundEnd
    | PartialText
    | Failed
    | Reopened
    | OutcomeChange
    | PlacementChange
    | Finished
)


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More text of an answer, as it comes; the row that follows has all of it."""

    text: str
    session: UUID
    """The session whose run has the answer."""


@dataclass(frozen=True, slots=True)
class ToolStart:
    """A tool call begins."""

    session: UUID
    """The session whose run makes the call; another one than is read for a run inside a call."""

    call_id: str
    tool: str
    arguments: Mapping[str, Any]
    """As the model gave them; empty where they could not be read."""


@dataclass(frozen=True, slots=True)
class ToolEnd:
    """A tool call has ended, or waits for somebody; each has a `ToolStart` before it."""

    session: UUID
    call_id: str
    tool: str
    status: ToolStatus
    text: str
    """Result for the model; "" where there is none, or where it was not kept."""

    duration_ms: float


StreamEvent = ChunkRow | Entry | TextDelta | ToolStart | ToolEnd
"""An event of `Session.stream`."""
