"""Every field that the design names for a model call is there, whoever answered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import pytest
from msgspec import structs

from rath.llm import Provider, RathLLMStreamDelta
from rath.session import Session, run_session_compress, select_session
from rath.session.record import ModelCall, RecalledNote
from tests.support import anthropic_replies, chat_replies
from tests.support.chat_replies import Reply
from tests.support.chat_server import ChatServer
from tests.support.sessions import FunctionTool, entries_of, run

ECHO = FunctionTool("echo", lambda *_: "echoed")
NOTE = RecalledNote("mem://user/1", "the user likes tea", 0.5)
KEY = "sk-canary-0123456789"


EVIDENCE = [
    "provider_kind", "adapter", "adapter_version", "endpoint",
    "requested_model", "served_model", "response_id", "service_tier", "fingerprint", "parameters",
    "credential", "attempts", "fallback_from", "started", "first_token_ms", "duration_ms",
    "finish_reason_raw", "finish_reason", "usage", "cached_tokens", "cache_write_tokens",
    "reasoning_tokens", "reasoning", "reasoning_blocks",
]  # fmt: skip
SEEN = [
    "head_digest", "n_rows", "recalled", "context", "tools_digest", "renderer", "request_digest",
]  # fmt: skip


def fields(call: ModelCall, *, sold_at: str) -> dict[str, object]:
    """What design section 6 lists for `ModelCall`.

    A price is known only at the endpoint of a vendor: `sold_at` stands for the test server.
    """
    evidence, seen = call.evidence, call.seen
    assert seen is not None
    origins = dict(evidence.origins)
    found: dict[str, object] = {
        f"origin of {name}": origins.get(name) for name in ("model", "base_url", "api_key")
    }
    found |= {name: getattr(evidence, name) for name in EVIDENCE}
    found |= {f"seen: {name}": getattr(seen, name) for name in SEEN}
    cost = structs.replace(evidence, endpoint=sold_at).cost
    return found | {"purpose": call.purpose, "status": call.status, "cost": cost}


def recall(_: Session) -> list[RecalledNote]:
    return [NOTE]


def ignore(_: RathLLMStreamDelta) -> None:
    return


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """One way in which an answer comes, and what it can never tell."""

    kind: str
    reply: Reply
    unknown: frozenset[str]
    finish_raw: str
    sold_at: str
    on_event: Callable[[RathLLMStreamDelta], None] | None = None


_COUNTS = chat_replies.usage(
    20,
    9,
    prompt_tokens_details={"cached_tokens": 3, "cache_write_tokens": 4},
    completion_tokens_details={"reasoning_tokens": 5},
)
_ENVELOPE = {
    "id": "chatcmpl-7",
    "created": 1,
    "model": "gpt-5-mini-2025-08-07",
    "service_tier": "default",
    "system_fingerprint": "fp_1",
}
_SAID = {"role": "assistant", "content": "done", "reasoning_content": "let me think"}
OPENAI = Wire(
    kind="openai",
    finish_raw="stop",
    sold_at="https://api.openai.com/v1/chat/completions",
    reply=chat_replies.json_body(
        {
            **_ENVELOPE,
            "choices": [{"index": 0, "message": _SAID, "finish_reason": "stop"}],
            "usage": _COUNTS,
        }
    ),
    unknown=frozenset({"first_token_ms", "reasoning_blocks"}),
)
_CLAUDE_USAGE = anthropic_replies.usage(
    13,
    9,
    cache_read_input_tokens=3,
    cache_creation_input_tokens=4,
    output_tokens_details={"thinking_tokens": 5},
    service_tier="standard",
)
_CLAUDE = anthropic_replies.envelope(
    anthropic_replies.thinking("let me think"),
    anthropic_replies.text("done"),
    model="claude-sonnet-4-5-20250929",
    usage=_CLAUDE_USAGE,
)
ANTHROPIC = Wire(
    kind="anthropic",
    finish_raw="end_turn",
    sold_at="https://api.anthropic.com/v1/messages",
    reply=chat_replies.json_body(_CLAUDE),
    unknown=frozenset({"first_token_ms", "fingerprint"}),
)
WIRES = {
    "openai": OPENAI,
    "openai, streamed": replace(
        OPENAI,
        reply=chat_replies.event_stream(
            {**_ENVELOPE, "choices": [{"index": 0, "delta": _SAID}]},
            {**_ENVELOPE, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
            {**_ENVELOPE, "choices": [], "usage": _COUNTS},
        ),
        unknown=frozenset({"reasoning_blocks"}),
        on_event=ignore,
    ),
    "anthropic": ANTHROPIC,
    "anthropic, streamed": replace(
        ANTHROPIC,
        reply=anthropic_replies.stream(*anthropic_replies.events(_CLAUDE)),
        unknown=frozenset({"fingerprint"}),
        on_event=ignore,
    ),
}


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with ChatServer() as running:
        yield running


def model_calls(session: Session) -> list[ModelCall]:
    return [entry for entry in session.partial_record if isinstance(entry, ModelCall)]


def missing(found: dict[str, object]) -> set[str]:
    return {name for name, value in found.items() if value in (None, "", (), {})}


@pytest.mark.parametrize("wire", WIRES.values(), ids=WIRES)
def test_every_field_is_there(server: ChatServer, wire: Wire) -> None:
    server.queue(
        chat_replies.status_error(503, "busy"),  # the first endpoint
        chat_replies.status_error(503, "busy"),  # the first try of the fallback
        wire.reply,
    )
    made = Provider(model="m", api_key=KEY, base_url=server.base_url, retry_base_seconds=0.0)
    fallback = replace(made, provider_kind=wire.kind, max_tokens=100)
    provider = replace(made, retry_max_attempts=1, fallbacks=[fallback])
    before = datetime.now(UTC)
    out = run(
        [], ECHO, agent_provider=provider, recall=recall, on_event=wire.on_event
    ).synchronize()
    _, call = model_calls(out)
    found = fields(call, sold_at=wire.sold_at)
    assert missing(found) == wire.unknown
    evidence, seen = call.evidence, call.seen
    assert seen is not None
    assert (call.purpose, call.status, evidence.status) == ("turn", "done", "done")
    assert evidence.provider_kind == wire.kind
    assert (evidence.endpoint or "").startswith(server.base_url)
    assert evidence.requested_model == "m"
    assert evidence.parameters["max_tokens"] == 100
    assert dict(evidence.origins) == {"model": "call", "base_url": "call", "api_key": "call"}
    assert (evidence.credential or "").startswith("call ")
    assert KEY not in repr(call)
    tries = [(one.number, one.status, one.wait) for one in evidence.attempts]
    assert tries == [(1, 503, 0.0), (2, None, 0.0)]
    assert evidence.fallback_from == f"openai {server.base_url}/chat/completions m"
    assert before - timedelta(seconds=1) < evidence.started < datetime.now(UTC)
    assert 0 <= (evidence.first_token_ms or 0) <= evidence.duration_ms
    assert (evidence.finish_reason_raw, evidence.finish_reason) == (wire.finish_raw, "stop")
    assert evidence.usage is not None
    assert (evidence.usage.prompt_tokens, evidence.usage.completion_tokens) == (20, 9)
    assert (evidence.cached_tokens, evidence.cache_write_tokens) == (3, 4)
    assert evidence.reasoning_tokens == 5
    assert evidence.reasoning == "let me think"
    assert seen.recalled == (NOTE,)
    assert NOTE.text in (seen.context or "")
    assert (seen.n_rows, seen.context_at) == (1, 0)
    assert seen.renderer.startswith("rath-rows/")
    assert seen.request_digest == evidence.request_digest


@pytest.mark.parametrize("status", [400, 401, 404, 429, 500])
@pytest.mark.parametrize("kind", ["openai", "anthropic"])
def test_a_failed_call_has_all_that_is_known(server: ChatServer, kind: str, status: int) -> None:
    server.queue(chat_replies.status_error(status, f"no, {KEY}"))
    provider = Provider(
        provider_kind=kind, model="m", api_key=KEY, base_url=server.base_url, retry_max_attempts=1
    )
    out = run([], ECHO, agent_provider=provider, recall=recall)
    with pytest.raises(RuntimeError, match=f"status {status}"):
        out.synchronize()
    (call,) = model_calls(out)
    unknown = missing(fields(call, sold_at=WIRES[kind].sold_at))
    assert unknown == {
        "served_model", "response_id", "service_tier", "fingerprint", "fallback_from",
        "first_token_ms", "finish_reason_raw", "finish_reason", "usage",
        "cached_tokens", "cache_write_tokens", "reasoning_tokens", "cost", "reasoning",
        "reasoning_blocks",
    }  # fmt: skip
    assert (call.status, call.rows) == ("failed", ())
    assert f"status {status}" in (call.evidence.error or "")
    assert [one.status for one in call.evidence.attempts] == [status]
    assert KEY not in repr(call)


def test_side_calls_have_a_purpose_a_question_and_the_rest(server: ChatServer) -> None:
    server.queue(OPENAI.reply, OPENAI.reply)
    provider = Provider(model="m", api_key=KEY, base_url=server.base_url)
    agent, user = Session.from_agent_prompt("You are a test."), Session.from_user_message("x")
    short = run_session_compress(user, agent, agent_provider=provider)
    select_session(short, agent, "done", agent_provider=provider)
    calls = entries_of(short, ModelCall)
    assert [call.purpose for call in calls] == ["compress", "select"]
    for call in calls:
        unknown = missing(fields(call, sold_at=OPENAI.sold_at))
        assert unknown == {
            "first_token_ms", "reasoning_blocks", "fallback_from", "seen: recalled",
            "seen: context", "seen: tools_digest",
        }  # fmt: skip
        assert call.seen is not None
        assert call.seen.question
