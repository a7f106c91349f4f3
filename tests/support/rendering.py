"""The request of a recorded call, rendered again with a client of the same kind."""

from __future__ import annotations

from functools import partial

from rath.llm import ChatClient, Provider
from rath.llm.chat_request import RathLLMMessage
from rath.session import Session
from rath.session.record import ModelCall, Operation
from tests.support.api import (
    Body,
    Context,
    ProviderCandidate,
    RequestBuilder,
    RequestFrame,
    rows_seen,
    side_request,
    turn_request,
)


def rerender_call(
    session: Session, call: ModelCall, *, client: ChatClient, provider: Provider
) -> bytes:
    """Return the body of a model call's request as the stored session gives it.

    Its sha256 equals `call.seen.request_digest` as long as `provider` has the parameters and
    `client` the way of encoding that the call had.

    Args:
        session: Holds the call in its record; waits for its run.
        call: One of its model calls: a turn, a compression or a selection.
        client: A client of the same kind; nothing is sent.
        provider: The parameters of the call: the fallback itself for a call of a fallback.

    Raises:
        ValueError: What the call saw is not there any more.
    """
    record, seen = session.record, call.seen
    at = {entry.id: at for at, entry in enumerate(record)}.get(call.id)
    operations = [entry for entry in record if isinstance(entry, Operation)]
    started = next((each for each in operations if each.operation == call.operation), None)
    if seen is None or at is None or started is None:
        raise ValueError(f"the record does not hold what model call {call.id} saw")
    context = None
    if seen.context is not None and seen.context_at is not None:
        notes = RathLLMMessage("user", seen.context)
        context = Context(seen.context_at, notes, seen.recalled)
    of_turn = partial(turn_request, started.tools, started.output)
    frame = RequestFrame(
        head=started.head,
        request=of_turn if started.kind == "loop" else side_request,
        context=context,
        question=seen.question,
        streaming=call.evidence.parameters.get("stream") is True,
    )
    body = Body(rows_seen(session, started, seen), record.prefix(at))
    builder = RequestBuilder(ProviderCandidate(client, provider), frame, body)
    assert builder.head_digest == seen.head_digest
    return builder.draft.body()
