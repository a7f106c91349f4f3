"""The requests of recorded calls, rendered again: each row once for each model that read it."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal
from uuid import UUID

from rath.errors import PersistenceError
from rath.llm.chat_request import RathLLMFunctionTool
from rath.llm.provider import OutputMode
from rath.llm.recorded import RecordedClient, can_write_again
from rath.session.body import Body
from rath.session.chunk import ChunkTable
from rath.session.record import ModelCall, Operation, Record, Seen
from rath.session.request import RENDERER
from rath.session.rerender import recalled_context, rows_seen
from rath.session.running.candidates import Candidate, side_request, turn_request
from rath.session.running.conversation import Frame, Rendition
from rath.session.session import Session

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
        self._made: dict[Hashable, Rendition] = {}

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
                longest = replace(seen, n_rows=max(counts, default=seen.n_rows))
                known = self._tables[key] = rows_seen(self._session, begun, longest)
            except ValueError:
                return rows_seen(self._session, begun, seen)
        return known.prefix(seen.n_rows)

    def _rendition(
        self, call: ModelCall, begun: Operation, seen: Seen, rows: ChunkTable
    ) -> tuple[Rendition, tuple[RathLLMFunctionTool, ...]]:
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


def _open(call: ModelCall, begun: Operation, seen: Seen, body: Body) -> Rendition:
    mode: OutputMode = "tool" if _tool_mode(call, begun, seen) else "schema"
    client = RecordedClient(call.evidence, output_mode=mode)
    of_turn = partial(turn_request, begun.tools, begun.output)
    frame = Frame(
        head=begun.head,
        request=of_turn if begun.kind == "loop" else side_request,
        context=recalled_context(seen),
        question=seen.question,
    )
    return Rendition(Candidate(client, client.provider), frame, body)


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
