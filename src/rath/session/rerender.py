"""A stored model call, rendered again: proof of what the model saw."""

from __future__ import annotations

from rath._core.vector import Vector
from rath.llm.base import ChatClient
from rath.llm.chat_request import RathLLMMessage
from rath.llm.provider import Provider
from rath.session.body import Body
from rath.session.calls import Context
from rath.session.chat_request_build import provider_into_chat_request
from rath.session.chunk import ChunkTable
from rath.session.conversation import Conversation
from rath.session.record import ModelCall, Operation, Seen


def rerender_turn(body: Body, call: ModelCall, *, client: ChatClient, provider: Provider) -> bytes:
    """Return the body of a turn's request as the stored session gives it.

    Its sha256 equals `call.seen.request_digest` as long as `provider` has the parameters and
    `client` the way of encoding that the call had.

    Args:
        body: Content of a session that holds the call.
        call: One of its model calls of purpose "turn".
        client: A client of the same kind; nothing is sent.
        provider: The parameters of the call.

    Raises:
        ValueError: The record does not hold what the call saw.
    """
    entries = list(body.record)
    seen, at = call.seen, next((i for i, entry in enumerate(entries) if entry.id == call.id), None)
    begun = next(
        (e for e in entries if isinstance(e, Operation) and e.operation == call.operation), None
    )
    if seen is None or at is None or begun is None:
        raise ValueError(f"the record does not hold what model call {call.id} saw")
    before = Body(ChunkTable(body.table.vector.prefix(seen.n_rows)), Vector(entries[:at]))
    request = provider_into_chat_request(
        (), begun.tools, provider, default_tool_choice="auto" if begun.tools else None
    )
    conversation = Conversation(
        client,
        request,
        head=begun.head,
        body=before,
        context=_context(seen),
        streaming=call.evidence.parameters.get("stream") is True,
    )
    return conversation.draft.body()


def _context(seen: Seen) -> Context | None:
    if seen.context is None or seen.context_at is None:
        return None
    return Context(seen.context_at, RathLLMMessage("user", seen.context), seen.recalled)
