"""What a model saw, and where tools ran."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal
from uuid import UUID

from msgspec import structs

from rath._core.vector import Vector
from rath.backend.abc import SandboxIdentity
from rath.errors import PersistenceError
from rath.llm.base import ChatClient
from rath.llm.chat_request import RathLLMFunctionTool, RathLLMMessage
from rath.llm.provider import OutputMode, Provider
from rath.llm.recorded import RecordedClient, can_write_again
from rath.session.body import Body
from rath.session.calls.requests import (
    RENDERER,
    Candidate,
    Context,
    RequestBuilder,
    RequestFrame,
    side_request,
    turn_request,
)
from rath.session.chunk import ChunkRow, ChunkTable, RowId
from rath.session.content import AssistantTurn, ToolCall, ToolFeedback, rows_digest
from rath.session.open_calls import CallState
from rath.session.outcome import NeedsApproval, NeedsInput
from rath.session.questions.lineage import (
    Lineage,
    Missing,
    find_missing,
    lineage_of,
    require_turn,
    turns_of,
)
from rath.session.record import ModelCall, Operation, RecalledNote, Record, Seen, ToolRun
from rath.session.session import Session


def rerender_call(
    session: Session, call: ModelCall, *, client: ChatClient, provider: Provider
) -> bytes:
    """Return the body of a model call's request as the stored session gives it.

    Its sha256 equals `call.seen.request_digest` as long as `provider` has the parameters and
    `client` the way of encoding that the call had. The rows come from the session or from one of
    those that it came from, and are believed only when they have the digest that was recorded.

    Args:
        session: Holds the call in its record; waits for its run.
        call: One of its model calls: a turn, a compression or a selection.
        client: A client of the same kind; nothing is sent.
        provider: The parameters of the call: the fallback itself for a call of a fallback.

    Raises:
        ValueError: What the call saw is not there any more.
    """
    entries = list(session.record)
    seen, at = call.seen, next((i for i, entry in enumerate(entries) if entry.id == call.id), None)
    begun = next(
        (e for e in entries if isinstance(e, Operation) and e.operation == call.operation), None
    )
    if seen is None or at is None or begun is None:
        raise ValueError(f"the record does not hold what model call {call.id} saw")
    if not seen.renderer.startswith(f"{RENDERER} "):
        raise ValueError(f"{call.id} was rendered by {seen.renderer!r}; this version is {RENDERER}")
    of_turn = partial(turn_request, begun.tools, begun.output)
    frame = RequestFrame(
        head=begun.head,
        request=of_turn if begun.kind == "loop" else side_request,
        context=recalled_context(seen),
        question=seen.question,
        streaming=call.evidence.parameters.get("stream") is True,
    )
    body = Body(rows_seen(session, begun, seen), Vector(entries[:at]))
    rendition = RequestBuilder(Candidate(client, provider), frame, body)
    if rendition.head_digest != seen.head_digest:
        raise ValueError(f"the agent's rows in the record are not those that {call.id} saw")
    return rendition.draft.body()


def rows_seen(session: Session, begun: Operation, seen: Seen) -> ChunkTable:
    """Return the rows that a call saw, from wherever they still are.

    Raises:
        ValueError: They are nowhere.
    """
    for table in _tables(session):
        if len(table) >= seen.n_rows:
            rows = ChunkTable(table.vector.prefix(seen.n_rows))
            if _is_of(rows, begun):
                return rows
    raise ValueError(
        f"the {seen.n_rows} rows that a call of session {begun.session} saw are neither in session "
        f"{session.id} nor in those that it came from; render the call from its own session"
    )


def _is_of(rows: ChunkTable, begun: Operation) -> bool:
    """Tell whether `rows` are an operation's input followed by rows that it made itself."""
    # A side call sees its input and nothing else; rows that it serves may be the session's own.
    is_run = begun.kind == "loop"
    own = [row.id for row in rows if is_run and row.id and row.id.session == begun.session]
    n_input = len(rows) - len(own)
    named = [RowId(begun.session, index) for index in range(n_input, len(rows))]
    return own == named and rows_digest(rows.vector.prefix(n_input)) == begun.input_digest


def _tables(session: Session) -> Iterator[ChunkTable]:
    """Yield the rows of a session and of all those that it came from, nearest first."""
    yield session.chunk_table
    todo, known = deque(session.provenance.parents), set[UUID]()
    while todo:
        edge = todo.popleft()
        if edge.id in known:
            continue
        known.add(edge.id)
        body: object = None if edge.body is None else edge.body.latest
        if isinstance(body, Body):
            yield body.table
        if edge.provenance is not None:
            todo.extend(edge.provenance.parents)


def recalled_context(seen: Seen) -> Context | None:
    """Return the recalled notes that a call saw and where they stood, None without any."""
    if seen.context is None or seen.context_at is None:
        return None
    return Context(seen.context_at, RathLLMMessage("user", seen.context), seen.recalled)


Proof = Literal["same", "different", "none"]
"""Whether the request, rendered again, has the recorded sha256: it has, it has another, or it
cannot be rendered."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """A request as the session gives it."""

    proof: Proof
    problem: str
    """Why it is no proof, "" for one."""

    rows: ChunkTable | None
    """The rows of the session that it holds, None where they are nowhere any more."""

    tools: tuple[RathLLMFunctionTool, ...]
    body: bytes | None
    """The exact body; None where it cannot be rendered or was not asked for."""


class Renderings:
    """Renders the calls of one session again, in any order; in theirs it takes O(rows) for all."""

    def __init__(self, session: Session, operations: Mapping[UUID, Operation]) -> None:
        self._session = session
        self._operations = operations
        self._record: Record = session.record
        self._at = {entry.id: at for at, entry in enumerate(self._record)}
        self._tables: dict[tuple[UUID, str], ChunkTable] = {}
        self._made: dict[Hashable, RequestBuilder] = {}

    def of(self, call: ModelCall, *, with_body: bool) -> Rendered:
        """Return the request of `call`, and what it proves."""
        seen, begun = call.seen, self._operations.get(call.operation)
        if seen is None:
            return _unproved("the record does not tell what the call saw")
        if begun is None:
            return _unproved("the operation that the call belongs to is missing")
        tools = begun.tools if begun.kind == "loop" else ()
        try:
            rows = self._rows(begun, seen)
        except ValueError as exc:
            return _unproved(str(exc), tools=tools)
        renderer = call.evidence.renderer
        if seen.renderer != f"{RENDERER} {renderer}" or not can_write_again(renderer):
            return _unproved(f"it was written by {seen.renderer!r}", rows=rows, tools=tools)
        try:
            rendition, offered = self._rendition(call, begun, seen, rows)
        except (ValueError, PersistenceError) as exc:
            return _unproved(str(exc), rows=rows, tools=tools)
        draft = rendition.draft
        is_same = draft.digest == seen.request_digest
        return Rendered(
            proof="same" if is_same else "different",
            problem="" if is_same else "the request, rendered again, has another sha256",
            rows=rows,
            tools=offered,
            body=draft.body() if with_body else None,
        )

    def _rows(self, begun: Operation, seen: Seen) -> ChunkTable:
        """Return the rows that a call saw; those of the longest request serve for all of a run."""
        key = (begun.operation, begun.input_digest or "")
        known = self._tables.get(key)
        if known is None:
            counts = (
                entry.seen.n_rows
                for entry in self._record
                if isinstance(entry, ModelCall)
                and entry.operation == begun.operation
                and entry.seen is not None
            )
            try:
                longest = structs.replace(seen, n_rows=max(counts, default=seen.n_rows))
                known = self._tables[key] = rows_seen(self._session, begun, longest)
            except ValueError:
                return rows_seen(self._session, begun, seen)
        return known.prefix(seen.n_rows)

    def _rendition(
        self, call: ModelCall, begun: Operation, seen: Seen, rows: ChunkTable
    ) -> tuple[RequestBuilder, tuple[RathLLMFunctionTool, ...]]:
        """Return a rendition that holds exactly the rows of a call, and the tools in it.

        Raises:
            ValueError: The agent's rows in the record are not those that the call saw.
            PersistenceError: The bytes of an image are not there.
        """
        evidence = call.evidence
        parameters = json.dumps(dict(evidence.parameters), default=repr)
        key = (call.operation, evidence.provider_kind, evidence.endpoint, evidence.requested_model,
               evidence.renderer, parameters, seen.tools_digest, seen.question)  # fmt: skip
        body = Body(rows, self._record.prefix(self._at[call.id]))
        known = self._made.get(key)
        if known is not None and known.n_rows <= len(rows):
            known.follow(body)
        else:
            known = self._made[key] = _open(call, begun, seen, body)
        if known.head_digest != seen.head_digest:
            raise ValueError("the agent's rows in the record are not those that the call saw")
        offered = begun.tools if begun.kind == "loop" else ()
        if begun.output is not None and known.draft.facts.tools_digest is not None:
            is_tool = _tool_mode(call, begun, seen)
            offered = (*offered, begun.output.tool) if is_tool else offered
        return known, offered


def _open(call: ModelCall, begun: Operation, seen: Seen, body: Body) -> RequestBuilder:
    mode: OutputMode = "tool" if _tool_mode(call, begun, seen) else "schema"
    client = RecordedClient(call.evidence, output_mode=mode)
    of_turn = partial(turn_request, begun.tools, begun.output)
    frame = RequestFrame(
        head=begun.head,
        request=of_turn if begun.kind == "loop" else side_request,
        context=recalled_context(seen),
        question=seen.question,
    )
    return RequestBuilder(Candidate(client, client.provider), frame, body)


def _tool_mode(call: ModelCall, begun: Operation, seen: Seen) -> bool:
    """Tell whether a typed answer was asked for by a tool: then its schema was offered too."""
    if begun.output is None:
        return False
    client = RecordedClient(call.evidence, output_mode="tool")
    request = turn_request(begun.tools, begun.output, Candidate(client, client.provider))
    draft = client.open_draft(request, streaming=False, provider_origin="call")
    return draft.facts.tools_digest == seen.tools_digest


def _unproved(
    problem: str,
    *,
    rows: ChunkTable | None = None,
    tools: tuple[RathLLMFunctionTool, ...] = (),
) -> Rendered:
    return Rendered("none", problem, rows, tools, None)


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
    """Why the request is not proved, "" for one that is."""

    body: bytes | None
    """The exact body as JSON, where a single turn was asked for and it can be rendered."""


@dataclass(frozen=True, slots=True)
class WhatWasSeen:
    """The answer."""

    session: UUID
    calls: tuple[SeenCall, ...]
    missing: tuple[Missing, ...]


def what_was_seen(session: Session, *, turn: int | None = None) -> WhatWasSeen:
    """Return what each model call saw; O(rows and entries). Waits for the run.

    The request is rendered again, without a key and without a network, and compared with the
    sha256 of what was sent.

    Args:
        session: In memory or loaded.
        turn: Only the calls of this turn, and with the bodies of their requests.

    Raises:
        ValueError: There is no such turn.
    """
    lineage = lineage_of(session)
    require_turn(lineage, turn)
    turns, renderings = turns_of(lineage), Renderings(session, lineage.operations)
    calls: list[SeenCall] = []
    for entry in lineage.record:
        if not isinstance(entry, ModelCall):
            continue
        its_turn, seen = turns.get(entry.id), entry.seen
        if turn is not None and its_turn != turn:
            continue
        rendered = renderings.of(entry, with_body=turn is not None)
        begun = lineage.operations.get(entry.operation)
        calls.append(
            SeenCall(
                turn=its_turn,
                call=entry,
                session=None if begun is None else begun.session,
                head=() if begun is None else begun.head,
                rows=rendered.rows,
                context_at=None if seen is None else seen.context_at,
                recalled=() if seen is None else seen.recalled,
                question=None if seen is None else seen.question,
                tools=rendered.tools,
                proof=rendered.proof,
                problem=rendered.problem,
                body=rendered.body,
            )
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
        counts: dict[SandboxIdentity, int] = {}
        for each in self.runs:
            if each.run.sandbox is not None:
                counts[each.run.sandbox] = counts.get(each.run.sandbox, 0) + 1
        return tuple(counts.items())


def where_tools_ran(session: Session, *, turn: int | None = None) -> WhereToolsRan:
    """Return where each tool run happened; O(rows and entries). Waits for the run.

    Args:
        session: In memory or loaded.
        turn: Only the runs of this turn.

    Raises:
        ValueError: There is no such turn.
    """
    lineage = lineage_of(session)
    require_turn(lineage, turn)
    turns = turns_of(lineage)
    runs = tuple(
        PlacedRun(turns.get(entry.id), entry)
        for entry in lineage.record
        if isinstance(entry, ToolRun) and turn in (None, turns.get(entry.id))
    )
    # Elsewhere a record that says nothing of a call does not say that it was not made.
    waits = isinstance(session.outcome, NeedsApproval | NeedsInput)
    known = session.open_calls if waits else ()
    states: dict[tuple[RowId | None, int], CallState] = {
        (each.asked_in, each.index): each.state for each in known
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
