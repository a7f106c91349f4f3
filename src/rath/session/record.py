"""The record of a session: frozen entries in one closed union, append-only."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, Literal
from uuid import UUID, uuid4

from msgspec import Meta, Struct, field, structs

from rath._core.blobs import Blob
from rath._core.dataclasses import dataclass
from rath._core.options import ValueScope
from rath._core.vector import Vector
from rath.backend.abc import SandboxIdentity
from rath.backend.effects import FileEffect
from rath.backend.start import WorkspaceStart
from rath.llm.chat_request import RathLLMFunctionTool
from rath.llm.chat_response import RathLLMTokenUsage
from rath.llm.evidence import CallEvidence
from rath.session.chunk import ChunkRow, ChunkTable, RowId
from rath.session.content import CUT, AssistantTurn, TracebackInfo, UserText, address
from rath.session.operation import Place
from rath.session.output_schema import OutputSpec

if TYPE_CHECKING:
    from concurrent.futures import Future

OperationKind = Literal[
    "loop",
    "compress",
    "select",
    "fork",
    "detach",
    "merge",
    "delegate",
    "input",
    "memory",
    "check",
    "map",
]
Purpose = Literal["turn", "compress", "select", "repair", "extract", "embed", "score"]
Workspace = Literal["share", "copy", "undo", "ours", "theirs", "three-way"]
ChangedPart = Literal["input", "output", "answer", "arguments", "result"]
CHECK_ORIGIN = "Session.check"
"""The `origin` of the tool run that is the command of a check."""

ToolStatus = Literal["done", "failed", "abandoned", "interrupted", "denied", "suspended"]
"""`suspended`: the tool asked somebody, or waits for a run of its own; it is called again."""


Time = Annotated[datetime, Meta(tz=True)]
"""A time with its zone; UTC in all that is written."""


def _now() -> datetime:
    return datetime.now(UTC)


class RecordEntry(
    Struct, frozen=True, kw_only=True, tag_field="event", omit_defaults=True, gc=False
):
    """The fields of every entry of a record."""

    operation: UUID
    """The operation that the entry belongs to: its run id."""

    rows: tuple[RowId, ...] = ()
    """The rows that the entry made or concerns."""

    id: UUID = field(default_factory=uuid4)
    at: Time = field(default_factory=_now)
    """UTC; a time without a zone counts as UTC."""

    def __post_init__(self) -> None:
        at = self.at
        if at.tzinfo is not UTC:
            utc = at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
            structs.force_setattr(self, "at", utc)


class OperationFields(RecordEntry, frozen=True, kw_only=True):
    """The fields of an operation that stand in its line, without digests and numbers of others."""

    kind: OperationKind
    place: Place
    session: UUID
    """The session that the operation makes or serves."""

    input_digest: str | None = None
    """sha256 over the input's rows, None where the parents' edges name the input."""

    output: OutputSpec | None = None
    """The typed answer that the run asked for, as its requests said it."""

    workspace: Workspace | None = None
    """A derivation: the files with which the session begins. `share`: those of its (first) parent,
    in the same place. Else a workspace of its own with those of the parent (`copy`), with those
    before a call (`undo`), or with those of the first, the second or both parents of a merge."""

    undone: UUID | None = None
    """The entry of the tool run before which an undo goes back."""

    n_ours: int | None = None
    """How many entries at the beginning of the record are the first parent's; None for all."""

    origin: str | None = None
    """Handle of the sandbox whose files a workspace of its own begins with; "" for one that was not
    open yet, None where the last call of the record tells it."""


class Operation(OperationFields, frozen=True, kw_only=True, tag="operation"):
    """A run or a derivation began; `operation` is its own run id."""

    head: tuple[ChunkRow, ...] = ()
    """The agent's rows, which stand before the transcript in every request of the run."""

    tools: tuple[RathLLMFunctionTool, ...] = ()
    """The tool schemas that the run offered."""

    theirs: Record | None = None
    """A merge: what the record of the second parent was; counts in no comparison."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Operation):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in _COMPARED)

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"Operation({', '.join(f'{name}={getattr(self, name)!r}' for name in _COMPARED)})"


_COMPARED = tuple(name for name in Operation.__struct_fields__ if name != "theirs")
"""A record may hold merges of merges: it is neither compared nor shown inside of an entry."""


class RecalledNote(Struct, frozen=True, omit_defaults=True):
    """A note of a memory that a model call saw."""

    uri: str
    """URI of the note, "" where it is not known."""

    text: str
    """All that the model read of it."""

    score: float | int | None = None
    """Score by the memory; None where it gives no number."""

    n_left_out: int = 0
    """Characters at its end that the model did not read."""

    @property
    def shown(self) -> str:
        """The note as the request quotes it: its address, its text, and a mark where it was cut."""
        label = f"[memory:{address(self.uri)}] " if self.uri else ""
        return f"{label}{self.text}{CUT if self.n_left_out else ''}"


class Seen(Struct, frozen=True, kw_only=True, gc=False):
    """The input of one model call; with the rows of the session it gives back the request."""

    head_digest: str
    n_rows: int
    """The call saw rows 0 to n_rows of the session."""

    context_at: int | None
    """Index of the row before which the recalled notes stood, None when there were none."""

    context: str | None
    """The text of the context message, as sent."""

    recalled: tuple[RecalledNote, ...]
    tools_digest: str | None
    renderer: str
    request_digest: str
    """sha256 of the exact body that was sent."""

    question: str | None = None
    """The closing message of a side call, as sent; it is no row of any session."""


class ModelCall(RecordEntry, frozen=True, kw_only=True, tag="model_call"):
    """A call of a model, whatever came of it."""

    purpose: Purpose
    status: Literal["done", "failed", "cancelled"]
    seen: Seen | None
    evidence: CallEvidence
    answer: str | None = None
    """Answer of the model where no row holds it, as in a selection."""


class ToolRun(RecordEntry, frozen=True, kw_only=True, tag="tool_run"):
    """A tool call of the model or the command of a check, and what became of it."""

    call_id: str
    tool: str
    origin: str
    """`built-in`, or `module:qualname` of the class; `Session.check` for a check."""

    schema_digest: str | None = None
    effects_declared: str
    """`read_only`, `idempotent` or `non_idempotent`, as the tool declares."""

    arguments: Mapping[str, Any] | None = None
    """Parsed arguments, None when they could not be parsed."""

    sandbox: SandboxIdentity | None = None
    status: ToolStatus
    error_kind: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    duration_ms: float
    shown: Blob
    """Text for the model."""

    full: Blob | None = None
    """The whole result where `shown` is a part of it."""

    file_effects: tuple[FileEffect, ...] = ()
    effect_gaps: tuple[str, ...] = ()
    """Reasons for which effects may be missing."""

    start: WorkspaceStart | None = None
    """The files of its sandbox before the first operation there, where the run knows them; at the
    first call of the run that ran in it."""

    decision: UUID | None = None
    """The decision that allowed the call."""

    traceback: TracebackInfo | None = None
    """Traceback of the tool, if it raised."""


class Summary(RecordEntry, frozen=True, kw_only=True, tag="summary"):
    """A compression replaced rows by the one row that `rows` names."""

    replaced: tuple[RowId, ...]
    replaced_digest: str
    """sha256 over the rows that were replaced."""


class Verdict(RecordEntry, frozen=True, kw_only=True, tag="verdict"):
    """A check said whether the work is good."""

    name: str
    judge: str
    """The command or model that judged."""

    passed: bool
    score: float | int | None = None
    """Score in [0, 1]; None where it is only passed or not."""

    report: str
    """The output of the command, or the reasons of the scorer."""

    workspace_digest: str | None = None
    usd: Decimal | None = None
    """US dollars of the model that judged; None where none did, or where that is not known."""

    sessions: tuple[UUID, ...] = ()
    """The sessions in which models judged."""

    error: str | None = None
    """The error of the judge, which gave no score then; None where it judged."""


class Interrupt(RecordEntry, frozen=True, kw_only=True, tag="interrupt"):
    """The run waits for somebody; `rows` names the row in which the model asked for the calls."""

    reason: Literal["approval", "input", "decision"]
    calls: tuple[str, ...]
    question: str | None = None
    """Question of a tool; its call is the only one of `calls` then."""

    places: tuple[int, ...] = ()
    """Indices of these calls in that row, in the order of `calls`."""

    bound: tuple[str, ...] = ()
    """For each of the calls the digest of its tool: schema, description and origin."""

    schema: Mapping[str, Any] | None = None
    """JSON Schema of the answer to `question`, where one was given."""

    child: UUID | None = None
    """The session inside the call that really waits, where it is not this one."""


class Decision(RecordEntry, frozen=True, kw_only=True, tag="decision"):
    """Somebody decided what a run was waiting for."""

    interrupt: UUID
    choice: str
    """`approve`, `deny` or `edit` of a call that was to be allowed; `answer` to a question;
    `retry`, `skip` or `done` of a call of which it was not known whether it took effect."""

    by: str
    call_id: str | None = None
    arguments: Mapping[str, Any] | None = None
    """Arguments of the call; with its id, its tool and its place they identify it."""

    tool: str | None = None
    call: int | None = None
    """Index of the call in its row; `rows` names the row in which the model asked."""

    text: str | None = None
    """Text for the model, where it was given with the decision; an answer, as JSON."""

    edited: Mapping[str, Any] | None = None
    """The arguments with which the call is made instead."""


class Change(RecordEntry, frozen=True, kw_only=True, tag="change"):
    """A hook changed something before it was used; `before` and `after` hold both contents."""

    hook: str
    """`module:qualname` of the hook."""

    what: ChangedPart
    """`input` and `output` of a module: the ids of the two sessions. `answer` of a model: its row,
    as JSON. `arguments` of a tool call, as JSON. `result` of one: what the model would read."""

    before: Blob
    after: Blob
    call_id: str | None = None
    """The tool call; `rows` names the row in which the model asked for it."""

    call: int | None = None
    """Index of the call in that row."""


class JobStart(RecordEntry, frozen=True, kw_only=True, tag="job_start"):
    """A driver started a job, or went on with it."""

    name: str
    workflow: str
    """`module:qualname` of the workflow."""

    workflow_digest: str
    """sha256 over its printed form and its state: its class, parts, prompts and models."""

    items_digest: str
    """sha256 over the keys and the digests of the rows of the items, in order."""

    n_items: int
    """Items times epochs."""

    engine: str
    settings: Mapping[str, Any] = {}
    """Concurrency, retries, timeout, limits: what differs from the defaults."""


class ItemRun(RecordEntry, frozen=True, kw_only=True, tag="item_run"):
    """An attempt at an item of a job ended."""

    key: str
    epoch: int = 0
    run: UUID
    """The key of its run, a function of job, key and epoch."""

    attempt: int
    """From 1; each error of an earlier attempt stays in the record."""

    status: Literal["done", "failed", "waiting", "cancelled"]
    input_digest: str | None = None
    """SHA-256 over the rows that the run began with, in hex."""

    session: UUID | None = None
    """The output of the run, None where it has made none."""

    error: str | None = None
    worker: str = ""
    """Host and process that carried it out."""

    seconds: float | int = 0.0
    usage: RathLLMTokenUsage | None = None
    usd: Decimal | None = None
    """Tokens and US dollars of the run by then, over all attempts; None where not known."""


Entry = (
    Operation
    | ModelCall
    | ToolRun
    | Summary
    | Verdict
    | Interrupt
    | Decision
    | Change
    | JobStart
    | ItemRun
)
Record = Vector[Entry]


def evidence_of(record: Iterable[Entry], row: ChunkRow) -> Entry | None:
    """Return the entry that made `row`: the model's call or the tool's run; O(entries).

    None for a row that somebody wrote, and for one that was loaded without its record.
    """
    if row.id is None:
        return None
    for entry in record:
        if isinstance(entry, ModelCall | ToolRun) and row.id in entry.rows:
            return entry
    return None


def last_text(table: ChunkTable, record: Iterable[Entry]) -> str | None:
    """Return the last text of a model, or a summary that no model's text follows; else None.

    None also where the last turn is one that the model refused without a word: what it had said
    before is no answer to it.
    """
    summaries = {row for entry in record if isinstance(entry, Summary) for row in entry.rows}
    for row in reversed(table):
        content = row.content
        if isinstance(content, AssistantTurn):
            if (content.text or "").strip():
                return content.text
            if not content.calls and _is_refused(record, row):
                return None
        if isinstance(content, UserText) and row.id in summaries:
            return content.text
    return None


def _is_refused(record: Iterable[Entry], row: ChunkRow) -> bool:
    entry = evidence_of(record, row)
    return isinstance(entry, ModelCall) and entry.evidence.finish_reason == "refusal"


def unite(mine: Record, theirs: Record) -> Record:
    """Return `mine` followed by the entries of `theirs` that it does not hold yet."""
    shared = mine.common_prefix(theirs)
    added = theirs.since(shared)
    if not added:
        return mine
    own_ids = {entry.id for entry in mine.since(shared)}
    return mine.extend(entry for entry in added if entry.id not in own_ids)


@dataclass(slots=True, eq=False)
class InnerLog:
    """The log of a run inside another run, which has its entries before the log of the other."""

    flush: Callable[[], Future[None]]
    """Hands over to this log what its run has noted; returns the end of that write, or its failure.
    """

    on_write: Callable[[], None] | None = None
    """Called once, on the runtime thread, when the next lines have been handed over."""


Sink = Callable[[Entry, InnerLog | None], None]
"""Takes an entry, and the log that has to have it first; None where there is none."""

_above: contextvars.ContextVar[Sink | None] = contextvars.ContextVar("rath_uplink", default=None)


def parent_sink() -> Sink:
    """Return the sink of the run inside which the current code runs; one that drops, if none.

    A sink is called on the runtime thread.
    """
    return _above.get() or _drop


def is_inside_run() -> bool:
    """Tell whether the current code runs inside a run that wants to know of others in it."""
    return _above.get() is not None


def report_to(sink: Sink) -> ValueScope[Sink | None]:
    """Let `sink` have the entries of every run that is submitted inside."""
    return ValueScope(_above, sink)


def _drop(_: Entry, __: InnerLog | None) -> None:
    return
