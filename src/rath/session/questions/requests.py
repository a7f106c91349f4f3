"""The requests of model calls, and the places of tool runs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from functools import partial
from typing import Literal
from uuid import UUID

from msgspec import structs

from rath._core.dataclasses import dataclass
from rath.backend.abc import SandboxIdentity
from rath.errors import PersistenceError
from rath.llm.base import ChatDraft
from rath.llm.chat_request import RathLLMFunctionTool, RathLLMMessage
from rath.llm.custom_client import RecordedClient, can_write_again
from rath.session.body import Body
from rath.session.calls.requests import (
    RENDERER,
    Context,
    ProviderCandidate,
    RequestBuilder,
    RequestFrame,
    side_request,
    turn_request,
)
from rath.session.chunk import ChunkRow, ChunkTable, RowId
from rath.session.content import AssistantTurn, ToolCall, ToolFeedback, rows_digest
from rath.session.graph.recording import content_of, nearest_first
from rath.session.open_calls import CallState
from rath.session.outcome import NeedsApproval, NeedsInput
from rath.session.questions.lineage import (
    Lineage,
    Missing,
    find_missing,
    lineage_of,
)
from rath.session.record import ModelCall, Operation, RecalledNote, Record, Seen, ToolRun
from rath.session.session import Session


def rows_seen(session: Session, operation: Operation, seen: Seen) -> ChunkTable:
    """Return the rows that a call saw, from wherever they still are.

    Raises:
        ValueError: They are nowhere.
    """
    for edge in nearest_first(session.core.as_parent()):
        content: Body | None = content_of(edge)
        if content is not None and len(content.table) >= seen.n_rows:
            rows = content.table.prefix(seen.n_rows)
            if _is_of(rows, operation):
                return rows
    raise ValueError(
        f"the {seen.n_rows} rows that a call of session {operation.session} saw are neither in "
        f"session {session.id} nor in those that it came from; render the call from its own session"
    )


def _is_of(rows: ChunkTable, operation: Operation) -> bool:
    """Tell whether `rows` are an operation's input followed by rows that it made itself."""
    # A side call sees its input and nothing else; rows that it serves may be the session's own.
    is_run = operation.kind == "loop"
    own = [row.id for row in rows if is_run and row.id and row.id.session == operation.session]
    n_input = len(rows) - len(own)
    named = [RowId(operation.session, index) for index in range(n_input, len(rows))]
    return own == named and rows_digest(rows.vector.prefix(n_input)) == operation.input_digest


Proof = Literal["same", "different", "none"]
"""Whether the request, rendered again, has the recorded sha256: it has, it has another, or it
cannot be rendered."""


@dataclass(frozen=True, slots=True)
class SeenCall:
    """One model call and all that the model read."""

    turn: int | None
    call: ModelCall
    session: UUID | None
    """The session that the call worked for, None where its operation is missing."""

    head: tuple[ChunkRow, ...]
    """The agent's rows, which stood first."""

    rows: ChunkTable | None
    """The rows of the session that stood after them; None where they are nowhere any more."""

    context_at: int | None
    """Index of the row before which the recalled notes stood."""

    recalled: tuple[RecalledNote, ...]
    question: str | None
    """The closing message of a side call."""

    tools: tuple[RathLLMFunctionTool, ...]
    proof: Proof
    problem: str
    """Reason for which the request is not proved, "" for one that is."""

    body: bytes | None
    """The exact body as JSON, where a single turn was asked for and it can be rendered."""


class Renderings:
    """Renders the calls of one session again, in any order; in theirs it takes O(rows) for all."""

    def __init__(self, session: Session, operations: Mapping[UUID, Operation]) -> None:
        self._session = session
        self._operations = operations
        self._record: Record = session.record
        self._at = {entry.id: at for at, entry in enumerate(self._record)}
        self._tables: dict[tuple[UUID, str], ChunkTable] = {}
        self._builders: dict[Hashable, RequestBuilder] = {}

    def of(self, call: ModelCall, turn: int | None, *, with_body: bool) -> SeenCall:
        """Return the request of `call`, and whether its digest proves it."""
        seen, operation = call.seen, self._operations.get(call.operation)
        rows: ChunkTable | None = None
        tools: tuple[RathLLMFunctionTool, ...] = ()
        body: bytes | None = None
        proof: Proof = "none"
        problem = ""
        try:
            if seen is None:
                raise ValueError("the record does not tell what the call saw")
            if operation is None:
                raise ValueError("the operation that the call belongs to is missing")
            tools = operation.tools if operation.kind == "loop" else ()
            rows = self._rows(operation, seen)
            renderer = call.evidence.renderer
            if seen.renderer != f"{RENDERER} {renderer}" or not can_write_again(renderer):
                raise ValueError(f"it was written by {seen.renderer!r}")
            draft, offered = self._request(call, operation, seen, rows)
        except (ValueError, PersistenceError) as exc:
            problem = str(exc)
        else:
            tools = (*tools, *offered)
            body = draft.body() if with_body else None
            proof = "same" if draft.digest == seen.request_digest else "different"
            if proof == "different":
                problem = "the request, rendered again, has another sha256"
        return SeenCall(
            turn=turn,
            call=call,
            session=None if operation is None else operation.session,
            head=() if operation is None else operation.head,
            rows=rows,
            context_at=None if seen is None else seen.context_at,
            recalled=() if seen is None else seen.recalled,
            question=None if seen is None else seen.question,
            tools=tools,
            proof=proof,
            problem=problem,
            body=body,
        )

    def _rows(self, operation: Operation, seen: Seen) -> ChunkTable:
        """Return the rows that a call saw; those of the longest request serve for all of a run."""
        key = (operation.operation, operation.input_digest or "")
        rows = self._tables.get(key)
        if rows is None:
            counts = (
                entry.seen.n_rows
                for entry in self._record
                if isinstance(entry, ModelCall)
                and entry.operation == operation.operation
                and entry.seen is not None
            )
            try:
                longest = structs.replace(seen, n_rows=max(counts, default=seen.n_rows))
                rows = self._tables[key] = rows_seen(self._session, operation, longest)
            except ValueError:
                return rows_seen(self._session, operation, seen)
        return rows.prefix(seen.n_rows)

    def _request(
        self, call: ModelCall, operation: Operation, seen: Seen, rows: ChunkTable
    ) -> tuple[ChatDraft, tuple[RathLLMFunctionTool, ...]]:
        """Return a request that holds exactly the rows of a call, and the tools beside the agent's.

        Raises:
            ValueError: The agent's rows in the record are not those that the call saw.
            PersistenceError: The bytes of an image are not there.
        """
        evidence = call.evidence
        parameters = json.dumps(dict(evidence.parameters), default=repr)
        key = (call.operation, evidence.provider_kind, evidence.endpoint, evidence.requested_model,
               evidence.renderer, parameters, seen.tools_digest, seen.question)  # fmt: skip
        body = Body(rows, self._record.prefix(self._at[call.id]))
        is_tool = _tool_mode(call, operation, seen)
        builder = self._builders.get(key)
        if builder is not None and builder.n_rows <= len(rows):
            builder.follow(body)
        else:
            client = RecordedClient(evidence, output_mode="tool" if is_tool else "schema")
            of_turn = partial(turn_request, operation.tools, operation.output)
            frame = RequestFrame(
                head=operation.head,
                request=of_turn if operation.kind == "loop" else side_request,
                context=_context(seen),
                question=seen.question,
            )
            builder = RequestBuilder(ProviderCandidate(client, client.provider), frame, body)
            self._builders[key] = builder
        if builder.head_digest != seen.head_digest:
            raise ValueError("the agent's rows in the record are not those that the call saw")
        has_schema = is_tool and builder.draft.facts.tools_digest is not None
        return builder.draft, (operation.output.tool,) if operation.output and has_schema else ()


def _context(seen: Seen) -> Context | None:
    """Return the recalled notes that a call saw and where they stood, None without any."""
    if seen.context is None or seen.context_at is None:
        return None
    return Context(seen.context_at, RathLLMMessage("user", seen.context), seen.recalled)


def _tool_mode(call: ModelCall, operation: Operation, seen: Seen) -> bool:
    """Tell whether a typed answer was asked for by a tool: then its schema was offered too."""
    if operation.output is None:
        return False
    client = RecordedClient(call.evidence, output_mode="tool")
    request = turn_request(
        operation.tools, operation.output, ProviderCandidate(client, client.provider)
    )
    draft = client.open_draft(request, streaming=False, provider_origin="call")
    return draft.facts.tools_digest == seen.tools_digest


@dataclass(frozen=True, slots=True)
class WhatWasSeen:
    """The answer."""

    session: UUID
    calls: tuple[SeenCall, ...]
    missing: tuple[Missing, ...]


def what_was_seen(session: Session, *, turn: int | None = None) -> WhatWasSeen:
    """Return the request of each model call; O(rows and entries). Waits for the run.

    The request is rendered again, without a key and without a network, and compared with the
    sha256 of what was sent.

    Args:
        session: In memory or loaded.
        turn: Only the calls of this turn, and with the bodies of their requests.

    Raises:
        ValueError: There is no such turn.
    """
    lineage = lineage_of(session, turn)
    renderings = Renderings(session, lineage.operations)
    calls = (
        renderings.of(call, its_turn, with_body=turn is not None)
        for its_turn, call in lineage.in_turn(ModelCall, turn)
    )
    return WhatWasSeen(session.id, tuple(calls), find_missing(lineage, "seen"))


@dataclass(frozen=True, slots=True)
class PlacedRun:
    """One tool run; it tells itself where it ran."""

    turn: int | None
    run: ToolRun


@dataclass(frozen=True, slots=True)
class UntoldCall:
    """A call that the model asked for and of which no result was ever recorded."""

    turn: int | None
    row: RowId
    """The row in which it was asked for."""

    call: ToolCall
    state: CallState = "begun"
    """`asked`: it was not made. `suspended`: it stopped at a question. `begun`: whether it took
    effect is not known."""


@dataclass(frozen=True, slots=True)
class WhereToolsRan:
    """The answer."""

    session: UUID
    runs: tuple[PlacedRun, ...]
    untold: tuple[UntoldCall, ...]
    """Calls without a result: the run ended before, or waits for somebody."""

    missing: tuple[Missing, ...]

    @property
    def sandboxes(self) -> tuple[tuple[SandboxIdentity, int], ...]:
        """The sandboxes in which something ran, in order, and how many runs that were."""
        places = (each.run.sandbox for each in self.runs if each.run.sandbox is not None)
        return tuple(Counter(places).items())


def where_tools_ran(session: Session, *, turn: int | None = None) -> WhereToolsRan:
    """Return where each tool run happened; O(rows and entries). Waits for the run.

    Args:
        session: In memory or loaded.
        turn: Only the runs of this turn.

    Raises:
        ValueError: There is no such turn.
    """
    lineage = lineage_of(session, turn)
    runs = tuple(PlacedRun(*each) for each in lineage.in_turn(ToolRun, turn))
    # Elsewhere a record that says nothing of a call does not say that it was not made.
    waits = isinstance(session.outcome, NeedsApproval | NeedsInput)
    open_calls = session.open_calls if waits else ()
    states: dict[tuple[RowId | None, int], CallState] = {
        (each.asked_in, each.index): each.state for each in open_calls
    }
    untold = tuple(each for each in _untold(lineage, states) if turn in (None, each.turn))
    return WhereToolsRan(session.id, runs, untold, find_missing(lineage, "where"))


def _untold(
    lineage: Lineage, states: Mapping[tuple[RowId | None, int], CallState]
) -> Iterator[UntoldCall]:
    """Yield the calls of the session's own rows that have neither a result nor a run."""
    cut_off = {
        entry.call_id for entry in lineage.record if isinstance(entry, ToolRun) and not entry.rows
    }
    waiting: dict[str, UntoldCall] = {}
    for row in lineage.own.table:
        content = row.content
        if isinstance(content, ToolFeedback):
            waiting.pop(content.call_id, None)
        elif isinstance(content, AssistantTurn) and row.id is not None:
            yield from waiting.values()
            turn = lineage.births[row.id].turn
            waiting = {
                call.id: UntoldCall(turn, row.id, call, states.get((row.id, at), "begun"))
                for at, call in enumerate(content.calls)
                if call.id not in cut_off
            }
    yield from waiting.values()
