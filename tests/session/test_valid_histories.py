"""Any history renders, through each adapter, to a request that its vendor accepts."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from rath._async.deferred import Deferred
from rath.llm import Provider, RathLLMFunctionTool, chat_client_for
from rath.llm.evidence import CallEvidence
from rath.session import ChunkRow, ChunkTable, RowId, Session, system_text_chunk
from rath.session.content import AssistantTurn, Opaque
from rath.session.record import ModelCall
from tests.support import anthropic_replies, anthropic_rules, openai_rules
from tests.support.api import (
    Body,
    Context,
    Entry,
    ProviderCandidate,
    RequestBuilder,
    RequestFrame,
    context_message,
    last_user_index,
    output_spec,
    side_request,
    turn_request,
)
from tests.support.evidence import EVIDENCE, call_of
from tests.support.sessions import assistant_rows, row_lists

MODELS = {"openai": "m", "anthropic": "claude-sonnet-4-5"}
PROVIDERS = {
    kind: Provider(provider_kind=kind, model=model, api_key="k", base_url=f"https://{kind}.example")
    for kind, model in MODELS.items()
}
THINKING = {
    "enabled": {"type": "enabled", "budget_tokens": 2000},
    "adaptive": {"type": "adaptive"},
    "disabled": {"type": "disabled"},
}
ASKED = PROVIDERS | {
    name: replace(PROVIDERS["anthropic"], extra_create_args={"thinking": thinking})
    for name, thinking in THINKING.items()
}
CANDIDATES = {
    name: ProviderCandidate(chat_client_for(provider), provider) for name, provider in ASKED.items()
}
CHECKS: dict[str, Callable[[bytes], dict[str, Any]]] = {
    name: openai_rules.check_body if name == "openai" else anthropic_rules.check_body
    for name in ASKED
}
numbers = itertools.count(100)
HEAD = (system_text_chunk("You are a test."),)
TOOLS = tuple(RathLLMFunctionTool(name, {"type": "object"}) for name in "fg")
LOOSE = {"type": "object", "additionalProperties": {"type": "integer"}}
TYPED = output_spec("Counts", LOOSE)


def _rendition(name: str, body: Body, **frame: Any) -> RequestBuilder:
    frame.setdefault("request", partial(turn_request, TOOLS, None))
    return RequestBuilder(CANDIDATES[name], RequestFrame(head=HEAD, **frame), body)


ENDPOINTS = {kind: _rendition(kind, Body(ChunkTable())).draft.facts.endpoint for kind in PROVIDERS}


@st.composite
def blocks_of(draw: st.DrawFn, turn: AssistantTurn, waiting: str | None) -> list[dict[str, Any]]:
    """What Anthropic may have answered where the row says `turn`.

    Args:
        draw: Draws.
        turn: What the row says.
        waiting: The vendor's own call with which the turn before it was paused.
    """
    blocks: list[dict[str, Any]] = []
    if waiting is not None and draw(st.booleans()):
        blocks.append(anthropic_replies.found(id=waiting))
    if draw(st.booleans()):
        blocks.append(anthropic_replies.thinking("hm"))
    if draw(st.booleans()):
        blocks += [anthropic_replies.search("x"), anthropic_replies.found()]
    if turn.text:
        blocks.append(anthropic_replies.text(turn.text))
    return blocks + [
        anthropic_replies.tool_use(call.name, {}, id=f"toolu_{number}")
        for number, call in enumerate(turn.calls)
    ]


@st.composite
def evidences(draw: st.DrawFn, turn: AssistantTurn, waiting: str | None) -> CallEvidence | None:
    """The call that may have written a turn; None for a turn that came from elsewhere."""
    kind = draw(st.sampled_from([None, "openai", "anthropic"]))
    if kind is None:
        return None
    finish = draw(st.sampled_from(["stop", "length", "refusal"]))
    blocks: list[dict[str, Any]] = []
    if kind == "anthropic":
        blocks = draw(blocks_of(turn, waiting))
        if draw(st.booleans()):
            finish = "pause_turn"
            blocks.append(anthropic_replies.search("y", id=f"srvtoolu_{next(numbers)}"))
    return structs.replace(
        EVIDENCE,
        provider_kind=kind,
        endpoint=ENDPOINTS[kind],
        requested_model=MODELS[kind],
        finish_reason=finish,
        reasoning_blocks=tuple(blocks),
    )


def waiting_call(rows: Sequence[ChunkRow], wrote: Mapping[RowId, CallEvidence]) -> str | None:
    """The vendor's own call that waits for its result behind `rows`, if one does."""
    for row in reversed(rows):
        content = row.content
        if isinstance(content, Opaque):
            continue
        evidence = None if row.id is None else wrote.get(row.id)
        if not isinstance(content, AssistantTurn) or evidence is None or content.calls:
            return None
        if evidence.finish_reason == "pause_turn":
            return str(evidence.reasoning_blocks[-1]["id"])
        if content.text:
            return None
    return None


@st.composite
def grown(
    draw: st.DrawFn, root: Body, rows: st.SearchStrategy[list[ChunkRow]] = row_lists
) -> Session:
    """A session that goes on from `root`, with a record of the calls that wrote its turns."""
    table = root.table.born_in(uuid4(), draw(rows))
    calls = (entry for entry in root.record if isinstance(entry, ModelCall))
    wrote = {call.rows[0]: call.evidence for call in calls}
    entries: list[Entry] = []
    for index, row in enumerate(table):
        if index >= len(root.table) and isinstance(row.content, AssistantTurn) and row.id:
            waiting = waiting_call(table[:index], wrote)
            evidence = draw(evidences(row.content, waiting))
            if evidence is not None:
                wrote[row.id] = evidence
                entries.append(call_of(row.id, evidence))
    return session_of(Body(table, root.record.extend(entries)))


def session_of(body: Body) -> Session:
    return Session.from_body(Deferred.of(body), Session(ChunkTable()).provenance)


@st.composite
def histories(draw: st.DrawFn) -> Body:
    """The content of a session, however it was derived."""
    root = draw(grown(Body(ChunkTable())))
    session = draw(grown(root.core.body.result()))
    match draw(st.sampled_from(["as it is", "prefix", "fork", "detach", "merge", "cancelled"])):
        case "prefix":
            body = session.core.body.result()
            n_rows = draw(st.integers(0, len(body.table)))
            return replace(body, table=ChunkTable(body.table.vector.prefix(n_rows)))
        case "fork":
            return session.fork().core.body.result()
        case "detach":
            return session.detach().core.body.result()
        case "merge":
            return session.merge(draw(grown(root.core.body.result()))).core.body.result()
        case "cancelled":
            return session.core.body.result().cancelled(session.id)
        case _:
            return session.core.body.result()


@pytest.mark.parametrize("name", ASKED)
@given(body=histories(), data=st.data())
def test_any_history_is_valid_for_its_vendor(name: str, body: Body, data: st.DataObject) -> None:
    at = last_user_index(body.table)
    frame: dict[str, Any] = data.draw(
        st.sampled_from([
            {},
            {"request": partial(turn_request, (), None)},
            {"request": partial(turn_request, TOOLS, TYPED)},
            {"request": side_request, "question": "In one word?"},
            {"context": Context(at or 0, context_message(["a note"]), ())},
        ])
    )  # fmt: skip
    written = _rendition(name, body, **frame).draft.body()
    CHECKS[name](written)
    if name == "openai":
        members = b'"id":"srvtoolu', b'"signature":', b'"blocks":'
        assert not any(member in written for member in members)


@pytest.mark.parametrize("name", ASKED)
@given(root=grown(Body(ChunkTable())), data=st.data())
def test_a_history_that_grows_stays_valid(name: str, root: Session, data: st.DataObject) -> None:
    before = root.core.body.result()
    rendition = _rendition(name, before)
    sent = rendition.draft.body()
    CHECKS[name](sent)
    # A run goes on with a turn, of whoever answered.
    after = data.draw(grown(before, st.lists(assistant_rows(), max_size=1))).core.body.result()
    rendition.follow(after)
    CHECKS[name](rendition.draft.body())
    assert rendition.draft.body() == _rendition(name, after).draft.body()


@given(body=histories())
def test_what_is_not_recorded_is_sent_to_nobody(body: Body) -> None:
    written = _rendition("anthropic", Body(body.table)).draft.body()
    kinds = {block["type"] for turn in json.loads(written)["messages"] for block in turn["content"]}
    assert kinds <= {"text", "image", "tool_use", "tool_result"}
