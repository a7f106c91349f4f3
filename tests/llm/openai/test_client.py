"""The OpenAI client over real HTTP: one owner of retries, and a clear end each time."""

from __future__ import annotations

import asyncio
from hashlib import sha256

import pytest

from rath._async.runtime import runtime
from rath.errors import (
    AuthenticationError,
    ProviderProtocolError,
    ProviderServerError,
    SelfWaitError,
)
from rath.llm import (
    Provider,
    RathLLMChatRequest,
    RathLLMMessage,
    RathLLMStreamDelta,
    open_draft,
)
from rath.llm.client import require_model
from rath.llm.openai import RathOpenAIChatClient
from tests.support import chat_replies as replies
from tests.support.asking import HELLO, KEY, WEATHER, ask, exchange, openai_client, send
from tests.support.chat_server import ChatServer

N_TRIES = 4
PART = replies.event_stream(replies.text_chunk("par"), done=False)
HALF = b'data: {"choices": [{"index": 0, "del'


def ignore(_: RathLLMStreamDelta) -> None:
    pass


def test_the_body_on_the_wire_is_the_body_of_the_draft(server: ChatServer) -> None:
    server.queue(replies.completion("a"), replies.completion("b"))
    request = RathLLMChatRequest(messages=HELLO, model="m", tools=(WEATHER,), temperature=0.5)
    draft = open_draft(openai_client(server), request)
    first, digest = draft.body(), draft.digest
    evidence = send(draft).evidence
    draft.append([RathLLMMessage("assistant", "a"), RathLLMMessage("user", "mehr \U0001f600")])
    send(draft)
    assert [request.body for request in server.requests] == [first, draft.body()]
    assert sha256(first).hexdigest() == digest == evidence.request_digest
    assert first.startswith(b'{"messages":[{"role":"user"')
    assert evidence.parameters == {"model": "m", "temperature": 0.5}
    assert evidence.tools_digest is not None


def test_an_awaitable_of_on_delta_is_awaited(server: ChatServer) -> None:
    server.queue(replies.text_stream("a", "b"))
    order: list[str] = []

    async def slowly(delta: RathLLMStreamDelta) -> None:
        order.append(f"begin {delta.content_delta}")
        await asyncio.sleep(0)
        order.append(f"end {delta.content_delta}")

    draft = open_draft(openai_client(server), ask())
    runtime().run(lambda: draft.asend(on_delta=slowly), label="a test call")
    assert order[:4] == ["begin a", "end a", "begin b", "end b"]


def test_a_cut_after_the_finish_reason_loses_nothing(server: ChatServer) -> None:
    items = (replies.text_chunk("x"), replies.finish_chunk(), replies.Cut("reset"))
    server.queue(replies.event_stream(*items))
    answered = exchange(openai_client(server), on_delta=ignore)
    assert answered.response.primary_choice.message.content == "x"


def test_half_characters_arrive_complete(server: ChatServer) -> None:
    server.queue(replies.text_stream("a\ud83d", "\ude00b"))
    deltas: list[RathLLMStreamDelta] = []
    exchange(openai_client(server), on_delta=deltas.append)
    assert [delta.content_delta for delta in deltas if delta.content_delta] == [
        "a",
        "\U0001f600b",
    ]


def test_counts_of_the_cache_and_of_reasoning_are_evidence(server: ChatServer) -> None:
    counts = replies.usage(
        9,
        5,
        prompt_tokens_details={"cached_tokens": 8},
        completion_tokens_details={"reasoning_tokens": 4},
    )
    server.queue(replies.completion("x", usage=counts))
    evidence = exchange(openai_client(server)).evidence
    assert (evidence.cached_tokens, evidence.reasoning_tokens) == (8, 4)


# ---------------------------------------------------------------- retries


@pytest.mark.parametrize(
    "cut",
    [
        replies.event_stream(replies.text_chunk("par"), done=False),
        replies.event_stream(
            replies.tool_chunk('{"ci', id="a", name="weather"), replies.Cut("close")
        ),
        replies.Reply((*PART.steps[:-1], b"%x\r\n%s\r\n" % (len(HALF), HALF), replies.Cut())),
        replies.Reply((*PART.steps[:-1], b"%x\r\n%s\r\n" % (len(HALF), HALF), b"0\r\n\r\n")),
        replies.event_stream(done=False),
    ],
    ids=["no-end-marker", "in-a-call", "in-an-event", "end-in-an-event", "empty"],
)
def test_a_cut_stream_is_tried_again(server: ChatServer, cut: replies.Reply) -> None:
    server.queue(cut, replies.text_stream("whole"))
    answered = exchange(openai_client(server), on_delta=ignore)
    assert answered.response.primary_choice.message.content == "whole"
    assert answered.response.primary_choice.message.tool_calls is None
    assert len(answered.evidence.attempts) == len(server.requests) == 2


def test_the_provider_says_how_often(server: ChatServer) -> None:
    server.queue(*[replies.status_error(500)] * 10)
    with pytest.raises(ProviderServerError):
        exchange(openai_client(server, provider=Provider(retry_max_attempts=2)))
    assert len(server.requests) == 2


# ---------------------------------------------------------------- what no retry mends


def test_a_stream_of_nothing_but_its_end_is_no_answer(server: ChatServer) -> None:
    server.queue(replies.event_stream())
    with pytest.raises(ProviderProtocolError, match="no answer"):
        exchange(openai_client(server), on_delta=ignore)


# ---------------------------------------------------------------- secrets, cancelling, the rest


def test_a_cancelled_stream_leaves_its_evidence(server: ChatServer) -> None:
    gate = replies.Gate()
    server.queue(replies.event_stream(replies.text_chunk("par"), gate))
    draft = open_draft(openai_client(server), ask())

    async def cancelled() -> None:
        arrived = asyncio.Event()
        call = asyncio.ensure_future(draft.asend(on_delta=lambda _: arrived.set()))
        await arrived.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    runtime().run(cancelled, label="a test call")
    evidence = draft.last_evidence()
    assert evidence is not None
    assert (evidence.status, evidence.partial_text) == ("cancelled", "par")
    assert gate.abandoned.wait(50)


def test_complete_stream_raises_what_ended_it(server: ChatServer) -> None:
    server.queue(replies.status_error(401))
    with pytest.raises(AuthenticationError):
        list(openai_client(server).complete_stream(ask()))


def test_the_runtime_thread_is_never_blocked(server: ChatServer) -> None:
    client = openai_client(server)

    async def block() -> None:
        client.complete(ask())

    async def block_on_a_stream() -> None:
        next(client.complete_stream(ask()))

    with pytest.raises(SelfWaitError):
        runtime().run(block, label="a test call")
    with pytest.raises(SelfWaitError):
        runtime().run(block_on_a_stream, label="a test call")


def test_a_model_is_required_before_anything_is_sent() -> None:
    client = RathOpenAIChatClient(Provider(api_key=KEY, base_url="http://127.0.0.1:9/v1"))
    with pytest.raises(ValueError, match="model is required"):
        open_draft(client, ask(model=None))
    with pytest.raises(ValueError, match="model is required"):
        require_model(client, None)
    require_model(client, "m")


@pytest.mark.parametrize(
    ("base_url", "endpoint"),
    [
        (
            "https://x.openai.azure.com",
            "https://x.openai.azure.com/openai/deployments/m%2F1/chat/completions",
        ),
        (
            "https://x.openai.azure.com/openai/v1/",
            "https://x.openai.azure.com/openai/v1/chat/completions",
        ),
        (
            "https://x.openai.azure.com/openai/",
            "https://x.openai.azure.com/openai/deployments/m%2F1/chat/completions",
        ),
        (
            "https://x.openai.azure.us/openai/deployments/other/chat/completions",
            "https://x.openai.azure.us/openai/deployments/m%2F1/chat/completions",
        ),
        (
            "http://vm.eastus.cloudapp.azure.com:8000/v1",
            "http://vm.eastus.cloudapp.azure.com:8000/v1/chat/completions",
        ),
        ("https://h.example/.azure.com", "https://h.example/.azure.com/chat/completions"),
    ],
)
def test_azure_has_a_path_for_each_model(base_url: str, endpoint: str) -> None:
    client = RathOpenAIChatClient(Provider(api_key=KEY, base_url=base_url))
    assert client.target("m/1").endpoint == endpoint
