"""The OpenAI client over real HTTP: one owner of retries, and a clear end each time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from hashlib import sha256

import pytest

from rath._async.runtime import runtime
from rath.errors import (
    AuthenticationError,
    ProviderProtocolError,
    ProviderServerError,
    QuotaExceededError,
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
from tests.support.asking import HELLO, KEY, WEATHER, NoSleep, ask, exchange, openai_client, send
from tests.support.chat_server import ChatServer

N_TRIES = 4
PART = replies.event_stream(replies.text_chunk("par"), done=False)
HALF = b'data: {"choices": [{"index": 0, "del'


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with ChatServer() as running:
        yield running


def ignore(_: RathLLMStreamDelta) -> None:
    pass


def test_an_answer_and_its_evidence(server: ChatServer) -> None:
    server.queue(replies.completion("hi there", usage=replies.usage(3, 2)))
    draft = open_draft(openai_client(server), ask())
    answered = send(draft)
    evidence = answered.evidence
    assert answered.response.primary_choice.message.content == "hi there"
    assert (evidence.status, evidence.finish_reason, evidence.finish_reason_raw) == (
        "done",
        "stop",
        "stop",
    )
    assert (evidence.endpoint, evidence.sdk) == (f"{server.base_url}/chat/completions", "openai")
    assert (evidence.requested_model, evidence.served_model) == ("m", replies.MODEL)
    assert dict(evidence.origins) == {"model": "call", "base_url": "call", "api_key": "call"}
    assert [attempt.error for attempt in evidence.attempts] == [None]
    assert evidence.usage is not None
    assert evidence.usage.total_tokens == 5
    assert draft.last_evidence() is not None


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


def test_key_and_sdk_headers_are_sent(server: ChatServer) -> None:
    server.queue(replies.completion("x"))
    exchange(openai_client(server))
    headers = server.requests[0].headers
    assert headers["authorization"] == f"Bearer {KEY}"
    assert headers["content-type"] == "application/json"


def test_tool_calls_are_read(server: ChatServer) -> None:
    server.queue(replies.completion(tool_calls=(replies.tool_call("weather", {"city": "Ulm"}),)))
    choice = exchange(openai_client(server)).response.primary_choice
    assert choice.finish_reason == "tool_calls"
    assert choice.message.tool_calls is not None
    assert choice.message.tool_calls[0].function.arguments_parsed == {"city": "Ulm"}


def test_a_stream_gives_deltas_and_the_same_answer(server: ChatServer) -> None:
    server.queue(replies.text_stream("hel", "lo", counts=(3, 2)))
    deltas: list[RathLLMStreamDelta] = []
    answered = exchange(openai_client(server), on_delta=deltas.append)
    assert [delta.content_delta for delta in deltas if delta.content_delta] == ["hel", "lo"]
    assert answered.response.primary_choice.message.content == "hello"
    assert answered.response.model == replies.MODEL
    assert answered.response.usage is not None
    assert answered.evidence.first_token_ms is not None


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


def test_tool_deltas_without_an_index_make_whole_calls(server: ChatServer) -> None:
    chunks = [
        replies.tool_chunk('{"city":', index=None, id="a", name="weather"),
        replies.tool_chunk(' "Ulm"}', index=None),
        replies.tool_chunk("{}", index=None, id="b", name="weather"),
        replies.finish_chunk("tool_calls"),
    ]
    server.queue(replies.event_stream(*chunks))
    calls = exchange(
        openai_client(server), on_delta=ignore
    ).response.primary_choice.message.tool_calls
    assert [(call.id, call.function.arguments) for call in calls or ()] == [
        ("a", '{"city": "Ulm"}'),
        ("b", "{}"),
    ]


def test_a_stream_that_only_finishes_has_ended(server: ChatServer) -> None:
    server.queue(replies.event_stream(replies.text_chunk("x"), replies.finish_chunk(), done=False))
    assert exchange(openai_client(server), on_delta=ignore).evidence.status == "done"


def test_a_cut_after_the_finish_reason_loses_nothing(server: ChatServer) -> None:
    items = (replies.text_chunk("x"), replies.finish_chunk(), replies.Cut("reset"))
    server.queue(replies.event_stream(*items))
    answered = exchange(openai_client(server), on_delta=ignore)
    assert answered.response.primary_choice.message.content == "x"


def test_half_characters_arrive_whole(server: ChatServer) -> None:
    server.queue(replies.text_stream("a\ud83d", "\ude00b"))
    deltas: list[RathLLMStreamDelta] = []
    exchange(openai_client(server), on_delta=deltas.append)
    assert [delta.content_delta for delta in deltas if delta.content_delta] == [
        "a",
        "\U0001f600b",
    ]


def test_reasoning_is_kept(server: ChatServer) -> None:
    server.queue(replies.completion("x", message={"reasoning_content": "because"}))
    answered = exchange(openai_client(server))
    assert answered.response.primary_choice.message.reasoning_content == "because"
    assert answered.evidence.reasoning == "because"


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
    "broken",
    [
        replies.status_error(429),
        replies.html(status=502),
        replies.truncated(replies.completion("lost"), 5),
    ],
    ids=["429", "502-html", "truncated"],
)
def test_what_may_pass_is_tried_again(server: ChatServer, broken: replies.Reply) -> None:
    server.queue(broken, replies.completion("at last"))
    sleep = NoSleep()
    answered = exchange(openai_client(server, sleep=sleep))
    assert answered.response.primary_choice.message.content == "at last"
    assert len(server.requests) == 2
    assert [attempt.error is None for attempt in answered.evidence.attempts] == [False, True]
    assert sleep.waits == [answered.evidence.attempts[0].wait]


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


def test_an_empty_account_is_final(server: ChatServer) -> None:
    server.queue(replies.status_error(429, "no quota", code="insufficient_quota"))
    with pytest.raises(QuotaExceededError, match="nothing left to spend"):
        exchange(openai_client(server))
    assert len(server.requests) == 1


def test_a_stream_of_nothing_but_its_end_is_no_answer(server: ChatServer) -> None:
    server.queue(replies.event_stream())
    with pytest.raises(ProviderProtocolError, match="no answer"):
        exchange(openai_client(server), on_delta=ignore)


# ---------------------------------------------------------------- secrets, cancelling, the rest


def test_the_credential_is_a_source_and_a_digest(server: ChatServer) -> None:
    server.queue(replies.completion("x"))
    credential = exchange(openai_client(server)).evidence.credential
    assert credential is not None
    assert credential.startswith("call ")
    assert KEY not in credential


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


def test_complete_stream_yields_the_deltas(server: ChatServer) -> None:
    server.queue(replies.text_stream("a", "b"))
    deltas = list(openai_client(server).complete_stream(ask()))
    assert [delta.content_delta for delta in deltas] == ["a", "b", None]


def test_complete_stream_raises_what_ended_it(server: ChatServer) -> None:
    server.queue(replies.status_error(401))
    with pytest.raises(AuthenticationError):
        list(openai_client(server).complete_stream(ask()))


def test_leaving_complete_stream_ends_the_call(server: ChatServer) -> None:
    gate = replies.Gate()
    server.queue(replies.event_stream(replies.text_chunk("a"), gate))
    stream = openai_client(server).complete_stream(ask())
    assert next(stream).content_delta == "a"
    stream.close()  # type: ignore[attr-defined]  # it is a generator
    assert gate.abandoned.wait(50)


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
