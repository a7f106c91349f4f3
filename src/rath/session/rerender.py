"""A stored model call, rendered again: proof of what the model saw."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import partial
from uuid import UUID

from rath._core.vector import Vector
from rath.llm.base import ChatClient
from rath.llm.chat_request import RathLLMMessage
from rath.llm.provider import Provider
from rath.session.body import Body
from rath.session.chunk import ChunkTable, RowId
from rath.session.encode import rows_digest
from rath.session.record import ModelCall, Operation, Seen
from rath.session.request import RENDERER
from rath.session.running.calls import Context
from rath.session.running.candidates import Candidate, side_request, turn_request
from rath.session.running.conversation import Frame, Rendition
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
    frame = Frame(
        head=begun.head,
        request=of_turn if begun.kind == "loop" else side_request,
        context=recalled_context(seen),
        question=seen.question,
        streaming=call.evidence.parameters.get("stream") is True,
    )
    body = Body(rows_seen(session, begun, seen), Vector(entries[:at]))
    rendition = Rendition(Candidate(client, provider), frame, body)
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
