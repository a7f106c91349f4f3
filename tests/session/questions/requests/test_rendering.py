"""A recorded request is rendered again from the record alone, for every adapter."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from hashlib import sha256
from typing import Any

import pytest
from msgspec import structs
from pydantic import BaseModel

from rath._core.vector import Vector
from rath.llm import Provider, RathLLMStreamDelta
from rath.llm.chat_request import RathLLMChatRequest
from rath.llm.exchange import CallEvidence
from rath.llm.recorded import RecordedClient, can_write_again
from rath.session import ChunkTable, Session
from rath.session.questions import WhatWasSeen, what_was_seen
from rath.session.record import ModelCall, Operation, Seen
from rath.testing import ScriptedClient, tool_call
from tests.support import anthropic_replies, chat_replies
from tests.support.api import Entry
from tests.support.asking import KEY, WEATHER
from tests.support.chat_server import ChatServer
from tests.support.images import picture
from tests.support.offline_vendor import OfflineVendor, Says
from tests.support.sessions import FunctionTool, run

TOOL = FunctionTool("weather", lambda *_: {"celsius": 20}, schema=WEATHER.parameters)
ASKED = (chat_replies.tool_call("weather", {"city": "Ulm"}),)
EXTRA: Mapping[str, Any] = {"top_k": 3, "seed": 7, "stream_options": {"include_usage": False}}


class Weather(BaseModel):
    celsius: int


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with ChatServer() as running:
        yield running


def ignore(_: RathLLMStreamDelta) -> None:
    pass


def proofs(session: Session) -> list[str]:
    return [each.proof for each in what_was_seen(session).calls]


def require_proof(session: Session, server: ChatServer) -> WhatWasSeen:
    """Every call is proved, and the body of each turn is the very one that arrived."""
    answer = what_was_seen(session)
    assert {each.proof for each in answer.calls} == {"same"}
    turns = range(1, len(session.chunk_table) + 1)
    told = [
        each.body
        for turn in turns
        if turn <= max(one.turn or 0 for one in answer.calls)
        for each in what_was_seen(session, turn=turn).calls
    ]
    assert told == [request.body for request in server.calls]
    return answer


@pytest.mark.parametrize("extra", [{}, EXTRA], ids=["plain", "extra"])
@pytest.mark.parametrize("on_event", [None, ignore], ids=["whole", "streamed"])
def test_a_call_of_openai_is_proved(
    server: ChatServer,
    on_event: Callable[[RathLLMStreamDelta], None] | None,
    extra: Mapping[str, Any],
) -> None:
    server.queue(chat_replies.completion("", tool_calls=ASKED), chat_replies.completion("20"))
    provider = Provider(
        base_url=server.base_url,
        api_key=KEY,
        model="m",
        temperature=0.5,
        parallel_tool_calls=False,
        extra_create_args=extra,
    )
    out = run([], TOOL, agent_provider=provider, on_event=on_event)
    answer = require_proof(out, server)
    assert [tool.name for tool in answer.calls[0].tools] == ["weather"]


@pytest.mark.parametrize("mode", ["schema", "tool"])
def test_a_call_for_a_typed_answer_is_proved(server: ChatServer, mode: Any) -> None:
    final = chat_replies.tool_call("final_answer", {"celsius": 20})
    server.queue(
        chat_replies.completion("", tool_calls=ASKED),
        chat_replies.completion("", tool_calls=(final,))
        if mode == "tool"
        else chat_replies.completion('{"celsius": 20}'),
    )
    provider = Provider(base_url=server.base_url, api_key=KEY, model="m", output_mode=mode)
    out = run([], TOOL, agent_provider=provider, output=Weather)
    answer = require_proof(out, server)
    names = [tool.name for tool in answer.calls[0].tools]
    assert names == ["weather", "final_answer"][: 2 if mode == "tool" else 1]


@pytest.mark.parametrize("tools", [(TOOL,), ()], ids=["tools", "none"])
@pytest.mark.parametrize("on_event", [None, ignore], ids=["whole", "streamed"])
def test_a_call_of_anthropic_is_proved(
    server: ChatServer,
    on_event: Callable[[RathLLMStreamDelta], None] | None,
    tools: tuple[FunctionTool, ...],
) -> None:
    reply = anthropic_replies.message if on_event is None else anthropic_replies.streamed
    called = anthropic_replies.tool_use("weather", {"city": "Ulm"})
    server.queue(
        reply(anthropic_replies.thinking("hm"), called),
        reply(anthropic_replies.text("20")),
    )
    provider = Provider(
        provider_kind="anthropic",
        base_url=server.base_url,
        api_key=KEY,
        model="m",
        temperature=0.5,
        stop="END",
        extra_create_args={"top_k": 3, "output_config": {"effort": "low"}},
    )
    out = run([], *tools, agent_provider=provider, on_event=on_event)
    require_proof(out, server)


def test_a_call_with_marks_of_its_own_for_the_cache_is_proved(server: ChatServer) -> None:
    server.queue(anthropic_replies.message(anthropic_replies.text("yes")))
    provider = Provider(
        provider_kind="anthropic",
        base_url=server.base_url,
        api_key=KEY,
        model="m",
        extra_create_args={"cache_control": None},
    )
    require_proof(run([], TOOL, agent_provider=provider), server)


def test_tools_that_were_given_as_parameters_are_proved(server: ChatServer) -> None:
    server.queue(chat_replies.completion("yes"))
    provider = Provider(
        base_url=server.base_url,
        api_key=KEY,
        model="m",
        extra_create_args={"tools": [{"type": "web_search"}]},
    )
    require_proof(run([], TOOL, agent_provider=provider), server)


def test_a_call_of_a_fallback_is_proved(server: ChatServer) -> None:
    server.queue(
        chat_replies.status_error(500, "down"), chat_replies.completion("", tool_calls=ASKED),
        chat_replies.status_error(500, "down"), chat_replies.completion("20"),
    )  # fmt: skip
    other = Provider(base_url=server.base_url, api_key=KEY, model="n", temperature=0.1)
    first = replace(other, model="m", retry_max_attempts=1, fallbacks=[other])
    out = run([], TOOL, agent_provider=first)
    assert set(proofs(out)) == {"same"}


def test_a_request_with_an_image_is_proved() -> None:
    client = ScriptedClient(["a cat"])
    user = Session.from_user_message("what is it?", images=[picture(b"1")])
    assert proofs(run([], user=user, agent_provider=client.provider)) == ["same"]


def test_an_image_whose_bytes_are_gone_proves_nothing(server: ChatServer) -> None:
    server.queue(chat_replies.completion("a cat"))
    provider = Provider(base_url=server.base_url, api_key=KEY, model="m")
    user = Session.from_user_message("what is it?", images=[picture(b"1")])
    out = run([], user=user, agent_provider=provider)
    bare = Session(ChunkTable(replace(row) for row in out.chunk_table), id=out.id)
    for entry in out.record:
        bare.add_entry(entry)
    (call,) = what_was_seen(bare).calls
    assert call.proof == "none"
    assert call.rows is not None


def test_what_an_unknown_adapter_wrote_cannot_be_proved() -> None:
    vendor = OfflineVendor(lambda _: Says("done"))
    out = run([], agent_provider=vendor.provider)
    (call,) = what_was_seen(out).calls
    assert (call.proof, call.problem) == ("none", "it was written by 'rath-rows/2 offline/1'")
    assert call.rows is not None
    assert [row.kind_name for row in call.rows] == ["user"]


def test_the_turn_of_a_request_has_its_messages_as_they_were_sent() -> None:
    client = ScriptedClient([tool_call("f", id="c"), "done"])
    out = run([], FunctionTool("f", lambda *_: 1), agent_provider=client.provider)
    (call,) = what_was_seen(out, turn=2).calls
    assert call.body is not None
    assert sha256(call.body).hexdigest() == call.call.evidence.request_digest
    roles = [message["role"] for message in json.loads(call.body)["messages"]]
    assert roles == ["system", "user", "assistant", "tool"]


def with_entries(session: Session, change: Callable[[Entry], Entry]) -> Session:
    """Return a session whose entries are others."""
    made = Session(session.chunk_table, id=session.id)
    made.add_entries(*Vector(change(entry) for entry in session.record))
    return made


def call_with(seen: Callable[[Seen], Seen | None]) -> WhatWasSeen:
    def change(entry: Entry) -> Entry:
        if isinstance(entry, ModelCall):
            assert entry.seen is not None
            return structs.replace(entry, seen=seen(entry.seen))
        return entry

    return what_was_seen(with_entries(run(["done"]), change))


@pytest.mark.parametrize(
    ("changes", "proof", "problem"),
    [
        ({"head_digest": "0"}, "none", "the agent's rows"),
        ({"request_digest": "0"}, "different", "another sha256"),
        ({"n_rows": 9}, "none", "neither in session"),
        ({"renderer": "old/1 x"}, "none", "written by 'old/1 x'"),
    ],
    ids=["head", "digest", "rows", "renderer"],
)
def test_what_does_not_fit_is_not_proved(changes: dict[str, Any], proof: str, problem: str) -> None:
    (call,) = call_with(lambda seen: structs.replace(seen, **changes)).calls
    assert call.proof == proof
    assert problem in call.problem


def test_a_call_that_tells_nothing_of_what_it_saw_is_not_proved() -> None:
    (call,) = call_with(lambda _: None).calls
    assert (call.proof, call.rows, call.recalled) == ("none", None, ())


def test_a_changed_row_proves_nothing() -> None:
    out = run(["done"])
    other = Session.from_user_message("something else")
    other.add_entries(*out.record)
    (call,) = what_was_seen(other).calls
    assert (call.proof, call.rows) == ("none", None)


def test_without_its_operation_a_call_is_not_proved() -> None:
    out = run(["done"])
    bare = Session(out.chunk_table)
    bare.add_entries(*(entry for entry in out.record if not isinstance(entry, Operation)))
    (call,) = what_was_seen(bare).calls
    assert (call.proof, call.head, call.session) == ("none", (), None)


def test_a_recorded_call_is_never_sent(evidence: CallEvidence) -> None:
    client = RecordedClient(evidence)
    request = RathLLMChatRequest(messages=())
    with pytest.raises(RuntimeError, match="never sent"):
        client.complete(request)
    draft = client.open_draft(request, streaming=True, provider_origin="call")
    assert draft.last_evidence() is None
    with pytest.raises(RuntimeError, match="never sent"):
        draft.asend().send(None)
    assert client.provider.api_key is None


@pytest.fixture
def evidence() -> CallEvidence:
    (call,) = [entry for entry in run(["done"]).record if isinstance(entry, ModelCall)]
    return call.evidence


@pytest.mark.parametrize("renderer", ["openai-chat/1", "anthropic-messages/1", "litellm-chat/1"])
def test_our_own_adapters_can_be_written_again(renderer: str) -> None:
    assert can_write_again(renderer)
