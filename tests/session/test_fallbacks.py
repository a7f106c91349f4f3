"""Fallbacks over HTTP: two endpoints, of which one fails, and the same session on both."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rath.errors import (
    AuthenticationError,
    ProviderServerError,
    ProviderTimeout,
    QuotaExceededError,
    RateLimitError,
)
from rath.llm import Provider, RathLLMStreamDelta, chat_client_for
from rath.session import Session, load_session, run_session_compress, select_session
from rath.session.record import ModelCall
from tests.support import anthropic_replies, chat_replies
from tests.support.anthropic_rules import check_body
from tests.support.chat_replies import Cut, Gate, Reply
from tests.support.chat_server import ChatServer
from tests.support.offline_vendor import OfflineVendor, Says
from tests.support.rendering import rerender_call
from tests.support.sessions import FunctionTool, run

AGENT = Session.from_agent_prompt("You are a test.")
ECHO = FunctionTool("echo", lambda *_: "echoed")
DOWN = chat_replies.status_error(500, "it is down")
SPENT = chat_replies.status_error(429, "no money", code="insufficient_quota")
CALL = chat_replies.completion(tool_calls=(chat_replies.tool_call("echo"),))


def ignore(_: RathLLMStreamDelta) -> None:
    return


@pytest.fixture
def one() -> Iterator[ChatServer]:
    with ChatServer() as server:
        yield server


@pytest.fixture
def two() -> Iterator[ChatServer]:
    with ChatServer() as server:
        yield server


def provider_of(server: ChatServer, kind: str = "openai", **more: Any) -> Provider:
    """A provider that does not try twice."""
    made = Provider(provider_kind=kind, model="m", api_key="key-of-it", base_url=server.base_url)
    return replace(made, retry_max_attempts=1, **more)


def chain(one: ChatServer, two: ChatServer, **more: Any) -> Provider:
    return provider_of(one, fallbacks=[provider_of(two)], **more)


def model_calls(session: Session) -> list[ModelCall]:
    return [entry for entry in session.partial_record if isinstance(entry, ModelCall)]


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (DOWN, "ProviderServerError"),
        (chat_replies.status_error(503, "busy"), "ProviderServerError"),
        (chat_replies.status_error(529, "overloaded"), "ProviderServerError"),
        (chat_replies.status_error(429, "slow down"), "RateLimitError"),
        (SPENT, "QuotaExceededError"),
        (chat_replies.status_error(402, "pay first"), "QuotaExceededError"),
        (chat_replies.status_error(408, "too slow"), "ProviderStatusError"),
        (chat_replies.dropped(), "ProviderConnectionError"),
    ],
    ids=["500", "503", "529", "429", "429 quota", "402", "408", "dropped"],
)
def test_another_endpoint_answers_where_one_fails(
    one: ChatServer, two: ChatServer, reply: Reply, error: str
) -> None:
    one.queue(reply)
    two.queue(chat_replies.completion("from two"))
    out = run([], agent_provider=chain(one, two))
    assert out.text() == "from two"
    failed, answered = model_calls(out)
    assert (failed.status, failed.rows, failed.evidence.fallback_from) == ("failed", (), None)
    assert (failed.evidence.error or "").startswith(f"{error}: ")
    assert len(failed.evidence.attempts) == 1
    assert answered.evidence.fallback_from == f"openai {one.base_url}/chat/completions m"
    assert answered.evidence.endpoint == f"{two.base_url}/chat/completions"


@pytest.mark.parametrize(
    "reply",
    [
        chat_replies.status_error(400, "bad request"),
        chat_replies.status_error(401, "bad key"),
        chat_replies.status_error(413, "too long"),
    ],
    ids=["400", "401", "413"],
)
def test_a_mistake_is_not_hidden_by_a_fallback(
    one: ChatServer, two: ChatServer, reply: Reply
) -> None:
    one.queue(reply)
    with pytest.raises(RuntimeError, match="answered with status 4"):
        run([], agent_provider=chain(one, two)).text()
    assert two.requests == []


def test_an_endpoint_that_says_nothing_in_time_is_left(one: ChatServer, two: ChatServer) -> None:
    one.queue(chat_replies.held(chat_replies.completion("late"), Gate()))
    two.queue(chat_replies.completion("from two"))
    out = run([], agent_provider=chain(one, two, timeout=0.05))
    assert out.text() == "from two"
    assert "ProviderTimeout" in (model_calls(out)[0].evidence.error or "")


def test_tries_and_their_waits_are_each_ones_own(one: ChatServer, two: ChatServer) -> None:
    one.queue(DOWN, DOWN, DOWN)
    two.queue(DOWN, chat_replies.completion("from two"))
    patient = provider_of(two)
    provider = replace(
        provider_of(one),
        retry_max_attempts=3,
        retry_base_seconds=0.0,
        fallbacks=[replace(patient, retry_max_attempts=2, retry_base_seconds=0.0)],
    )
    failed, answered = model_calls(run([], agent_provider=provider).synchronize())
    assert [attempt.status for attempt in failed.evidence.attempts] == [500] * 3
    assert [attempt.status for attempt in answered.evidence.attempts] == [500, None]


def test_tool_rounds_go_on_with_who_answered(one: ChatServer, two: ChatServer) -> None:
    one.queue(CALL, DOWN)
    two.queue(CALL, CALL, chat_replies.completion("done"))
    out = run([], ECHO, agent_provider=chain(one, two))
    assert out.text() == "done"
    assert (len(one.requests), len(two.requests)) == (2, 3)
    assert two.requests[0].json()["messages"] == one.requests[1].json()["messages"]
    displaced = f"openai {one.base_url}/chat/completions m"
    befores = [call.evidence.fallback_from for call in model_calls(out)]
    assert befores == [None, None, displaced, displaced, displaced]


def test_it_goes_back_to_the_first_when_the_second_fails(one: ChatServer, two: ChatServer) -> None:
    one.queue(DOWN, CALL, chat_replies.completion("one again"))
    two.queue(CALL, SPENT)
    out = run([], ECHO, agent_provider=chain(one, two))
    assert out.text() == "one again"
    assert one.requests[1].json()["messages"] == two.requests[1].json()["messages"]
    first, second = (f"openai {server.base_url}/chat/completions m" for server in (one, two))
    befores = [call.evidence.fallback_from for call in model_calls(out)]
    assert befores == [None, first, first, second, None]


def test_the_next_run_asks_the_first_again(one: ChatServer, two: ChatServer) -> None:
    provider = chain(one, two)
    one.queue(DOWN, chat_replies.completion("recovered"))
    two.queue(chat_replies.completion("from two"))
    first = run([], agent_provider=provider).synchronize()
    assert run([], user=first, agent_provider=provider).text() == "recovered"
    assert len(two.requests) == 1


def test_the_error_of_the_last_names_the_first(one: ChatServer, two: ChatServer) -> None:
    one.queue(SPENT)
    two.queue(DOWN)
    out = run([], agent_provider=chain(one, two))
    with pytest.raises(ProviderServerError, match="it is down") as caught:
        out.text()
    before = caught.value.__notes__[0]
    assert f"before it, openai {one.base_url}/chat/completions m failed with" in before
    assert QuotaExceededError.__name__ in before
    assert "key-of-it" not in "".join(caught.value.__notes__)
    assert [call.status for call in model_calls(out)] == ["failed", "failed"]


def test_a_fallback_whose_key_is_refused_ends_the_run(one: ChatServer, two: ChatServer) -> None:
    one.queue(DOWN)
    two.queue(chat_replies.status_error(401, "wrong key"))
    with pytest.raises(AuthenticationError) as caught:
        run([], agent_provider=chain(one, two)).text()
    assert "ProviderServerError" in caught.value.__notes__[0]


# ---- streamed


def test_what_a_failed_stream_had_said_was_told_and_is_no_part_of_the_answer(
    one: ChatServer, two: ChatServer
) -> None:
    heard: list[RathLLMStreamDelta] = []
    one.queue(chat_replies.event_stream(chat_replies.text_chunk("half a "), Cut()))
    two.queue(chat_replies.text_stream("from ", "two", counts=(1, 2)))
    out = run([], agent_provider=chain(one, two), on_event=heard.append)
    assert out.text() == "from two"
    assert [delta.content_delta for delta in heard if delta.content_delta] == [
        "half a ", "from ", "two",
    ]  # fmt: skip
    failed, answered = model_calls(out)
    assert failed.evidence.partial_text == "half a "
    assert answered.evidence.parameters["stream"] is True


def test_a_silent_stream_is_left(one: ChatServer, two: ChatServer) -> None:
    one.queue(chat_replies.event_stream(chat_replies.text_chunk("x"), Gate()))
    two.queue(chat_replies.text_stream("from two"))
    out = run([], agent_provider=chain(one, two, timeout=0.05), on_event=ignore)
    assert out.text() == "from two"


def test_when_both_streams_fail_the_run_fails(one: ChatServer, two: ChatServer) -> None:
    one.queue(DOWN)
    two.queue(chat_replies.status_error(429, "slow down"))
    with pytest.raises(RateLimitError):
        run([], agent_provider=chain(one, two), on_event=ignore).text()


# ---- compress, select, persist


def test_compress_and_select_fall_back(one: ChatServer, two: ChatServer) -> None:
    provider, user = chain(one, two), Session.from_user_message("a story")
    one.queue(DOWN, SPENT)
    two.queue(chat_replies.completion("short"), chat_replies.completion("0"))
    short = run_session_compress(user, AGENT, agent_provider=provider)
    assert short.text() == "short"
    assert select_session(short, AGENT, "a", "b", agent_provider=provider) == (0, "a")
    record = [entry for entry in short.record if isinstance(entry, ModelCall)]
    assert [(call.purpose, call.status) for call in record] == [
        ("compress", "failed"), ("compress", "done"), ("select", "failed"), ("select", "done"),
    ]  # fmt: skip


def test_usage_counts_only_what_was_answered(one: ChatServer, two: ChatServer) -> None:
    one.queue(DOWN)
    two.queue(chat_replies.completion("x", usage=chat_replies.usage(3, 4)))
    usage = run([], agent_provider=chain(one, two)).cumulative_usage
    assert usage is not None
    assert usage.total_tokens == 7


def test_a_run_that_fell_back_is_written_like_any_other(
    one: ChatServer, two: ChatServer, tmp_path: Path
) -> None:
    one.queue(DOWN)
    two.queue(CALL, chat_replies.completion("done"))
    path = tmp_path / "run.jsonl"
    out = run([], ECHO, agent_provider=chain(one, two), persist_path=path).synchronize()
    assert load_session(out.id, path=path).chunk_table == out.chunk_table


# ---- across vendors


SIGNED = (
    anthropic_replies.thinking("I should echo.", "signed"),
    anthropic_replies.tool_use("echo", {}, id="toolu_1"),
)


def test_a_run_that_moves_between_vendors_stays_valid_for_each(
    one: ChatServer, two: ChatServer
) -> None:
    claude, other = provider_of(one, "anthropic"), provider_of(two)
    one.queue(
        anthropic_replies.message(*SIGNED),
        anthropic_replies.error(529, "overloaded_error"),
        anthropic_replies.message(*SIGNED),
        anthropic_replies.message(anthropic_replies.text("done")),
    )
    two.queue(CALL, SPENT)
    out = run([], ECHO, agent_provider=replace(claude, fallbacks=[other]))
    assert out.text() == "done"
    for request in one.requests:
        check_body(request.body)
    for request in two.requests:
        assert b"signed" not in request.body
    own = [
        block
        for turn in one.requests[-1].json()["messages"]
        for block in turn["content"]
        if block["type"] == "thinking"
    ]
    assert own == [SIGNED[0]] * 2
    for call in model_calls(out):
        used = claude if call.evidence.provider_kind == "anthropic" else other
        body = rerender_call(out, call, client=chat_client_for(used), provider=used)
        assert hashlib.sha256(body).hexdigest() == call.evidence.request_digest


def test_a_paused_turn_is_sent_back_and_what_another_makes_of_it_is_valid_too(
    one: ChatServer, two: ChatServer
) -> None:
    claude, other = provider_of(one, "anthropic"), provider_of(two)
    paused = anthropic_replies.message(
        anthropic_replies.text("Let me search."),
        anthropic_replies.search("rath"),
        stop_reason="pause_turn",
    )
    one.queue(
        paused,
        anthropic_replies.error(500, "api_error"),
        anthropic_replies.message(anthropic_replies.text("done")),
    )
    two.queue(CALL, DOWN)
    out = run([], ECHO, agent_provider=replace(claude, fallbacks=[other]))
    assert out.text() == "done"
    asked_again = check_body(one.requests[1].body)["messages"][-1]
    assert [block["type"] for block in asked_again["content"]] == ["text", "server_tool_use"]
    assert [turn["role"] for turn in two.requests[0].json()["messages"]][-2:] == [
        "assistant", "user",
    ]  # fmt: skip
    last = check_body(one.requests[2].body)
    assert "server_tool_use" not in str(last)


def test_timeouts_of_the_last_are_raised_as_they_are(one: ChatServer, two: ChatServer) -> None:
    one.queue(DOWN)
    two.queue(chat_replies.held(chat_replies.completion("late"), Gate()))
    provider = provider_of(one, fallbacks=[provider_of(two, timeout=0.05)])
    with pytest.raises(ProviderTimeout):
        run([], agent_provider=provider).text()


def test_usage_and_cost_of_a_chain_add_up_to_the_numbers_of_its_calls() -> None:
    openai = "https://api.openai.com/v1/chat/completions"

    def down(_: object) -> Says:
        raise ProviderServerError("down", status=503)

    def vendor(text: str, model: str = "gpt-5-mini") -> OfflineVendor:
        return OfflineVendor(lambda _: Says(text), endpoint=openai, model=model)

    dead, stand_in = OfflineVendor(down), vendor("two", "gpt-5")
    falling = replace(
        dead.provider, retry_max_attempts=1, fallbacks=[replace(stand_in.provider, max_tokens=9)]
    )
    first = run([], agent_provider=vendor("one").provider)
    second = run([], user=first, agent_provider=falling)
    short = run_session_compress(second, AGENT, agent_provider=vendor("short").provider)
    third = run([], user=short, agent_provider=vendor("three").provider).synchronize()
    calls = model_calls(third)
    assert [(call.purpose, call.status) for call in calls] == [
        ("turn", "done"), ("turn", "failed"), ("turn", "done"), ("compress", "done"),
        ("turn", "done"),
    ]  # fmt: skip
    used = [call.evidence.usage.total_tokens for call in calls if call.evidence.usage]
    costs = [call.evidence.cost.usd for call in calls if call.evidence.cost]
    assert (len(used), len(costs)) == (4, 4)
    assert third.cumulative_usage is not None
    assert third.cumulative_usage.total_tokens == sum(used)
    assert third.cumulative_cost.usd == sum(costs) > 0
