"""Runs that asked real clients over HTTP replay when their server has gone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import rath
from rath.errors import (
    PersistenceError,
    ProviderError,
    ProviderProtocolError,
    ReplayDifference,
    StreamInterrupted,
)
from rath.llm import (
    ChatClient,
    Provider,
    RathLLMChatRequest,
    RathLLMStreamDelta,
    register_chat_client,
)
from rath.session import Session, run_session_compress, run_session_loop, select_session
from rath.session.provider_builtin import DefaultSessionLoopExecutor
from rath.testing import ScriptedClient, tool_call
from tests.support import anthropic_replies as claude
from tests.support import chat_replies as replies
from tests.support.asking import KEY
from tests.support.chat_replies import Reply
from tests.support.chat_server import ChatServer
from tests.support.images import picture
from tests.support.offline_vendor import OfflineVendor, Says
from tests.support.replayed import AGENT
from tests.support.sessions import FunctionTool, run

TOOL = FunctionTool("f", lambda *_: {"x": 1})
THOUGHT = claude.thinking("let me see")

OPENAI = [
    replies.completion(tool_calls=(replies.tool_call("f", "{}", id="c1"),)),
    replies.completion("done"),
]
OPENAI_STREAM = [
    replies.event_stream(replies.tool_chunk(id="c1", name="f", arguments="{}"),
                         replies.finish_chunk("tool_calls"), replies.usage_chunk(5, 6), "[DONE]"),
    replies.text_stream("so", " it", " is", counts=(7, 8)),
]  # fmt: skip
CLAUDE = [
    claude.message(THOUGHT, claude.text("hm"), claude.tool_use("f", {}), stop_reason="tool_use"),
    claude.message(claude.thinking("hm"), claude.text("done")),
]
CLAUDE_STREAM = [
    claude.streamed(THOUGHT, claude.tool_use("f", {}), stop_reason="tool_use"),
    claude.streamed(claude.text("so it is")),
]

Case = tuple[str, dict[str, Any], list[Reply], bool]
CASES: dict[str, Case] = {
    "openai": ("openai", {}, OPENAI, False),
    "openai, many parameters": (
        "openai",
        {"temperature": 0.5, "seed": 7, "stop": ["x"], "extra_create_args": {"top_k": 3}},
        OPENAI,
        False,
    ),
    "openai, streamed": ("openai", {}, OPENAI_STREAM, True),
    "anthropic": ("anthropic", {"max_tokens": 100}, CLAUDE, False),
    "anthropic, thinking": (
        "anthropic",
        {"extra_create_args": {"thinking": {"type": "enabled", "budget_tokens": 1024}}},
        CLAUDE,
        False,
    ),
    "anthropic, streamed": (
        "anthropic",
        {"extra_create_args": {"cache_control": None}},
        CLAUDE_STREAM,
        True,
    ),
}


def asked(
    kind: str, fields: dict[str, Any], answers: Sequence[Reply], streams: bool
) -> tuple[Session, Provider]:
    """A run over HTTP, whose server has gone when this returns."""
    with ChatServer() as server:
        server.queue(*answers)
        root = server.base_url.removesuffix("/v1") if kind == "anthropic" else server.base_url
        provider = Provider(
            model="m",
            provider_kind=kind,
            base_url=root,
            api_key=KEY,
            retry_max_attempts=1,
            **fields,
        )
        return program(provider, streams).synchronize(), provider


def program(provider: Provider, streams: bool) -> Session:
    return run_session_loop(
        Session.from_user_message("what is this?", images=[picture(b"x")]),
        AGENT,
        agent_provider=provider,
        tools=[TOOL],
        system_tools=False,
        on_event=_ignore if streams else None,
    )


def _ignore(_: RathLLMStreamDelta) -> None:
    return


@pytest.mark.parametrize("case", CASES)
def test_a_run_replays_from_its_record(case: str, tmp_path: Path) -> None:
    out, _ = asked(*CASES[case])
    assert out.replay().chunk_table == out.chunk_table
    out.save(store=str(tmp_path))
    assert Session.load(out.id, store=str(tmp_path)).replay().chunk_table == out.chunk_table


@pytest.mark.parametrize("case", CASES)
def test_its_program_replays_without_key_and_server(case: str) -> None:
    kind, fields, answers, streams = CASES[case]
    out, _ = asked(kind, fields, answers, streams)
    with rath.replay(out):
        again = program(Provider(model="m", provider_kind=kind, **fields), streams)
        assert again.chunk_table == out.chunk_table
        assert again.cumulative_usage == out.cumulative_usage


def test_streamed_and_whole_are_not_the_same() -> None:
    out, provider = asked(*CASES["openai"])
    with pytest.raises(ReplayDifference, match="'stream'"), rath.replay(out):
        program(provider, streams=True).synchronize()


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
def test_side_calls_replay(kind: str) -> None:
    say = replies.completion if kind == "openai" else _says
    with ChatServer() as server:
        server.queue(say("short"), say("0"))
        root = server.base_url.removesuffix("/v1") if kind == "anthropic" else server.base_url
        provider = Provider(model="m", provider_kind=kind, base_url=root, api_key=KEY)
        user = run([tool_call("f"), "long"], TOOL)
        out = run_session_compress(user, AGENT, agent_provider=provider)
        assert select_session(out, AGENT, "this", agent_provider=provider) == (0, "this")
    assert out.replay().text() == "short"


def _says(text: str) -> Reply:
    return claude.message(claude.text(text))


def test_a_broken_stream_breaks_again_with_what_had_come() -> None:
    cut = replies.event_stream(replies.text_chunk("half of"), replies.Cut("close"))
    with ChatServer() as server:
        server.queue(cut)
        provider = Provider(model="m", base_url=server.base_url, api_key=KEY, retry_max_attempts=1)
        out = program(provider, streams=True)
        with pytest.raises(StreamInterrupted):
            out.synchronize()
    told: list[str | None] = []

    def note(delta: RathLLMStreamDelta) -> None:
        told.append(delta.content_delta)

    with rath.replay(out):
        again = run_session_loop(
            Session.from_user_message("what is this?", images=[picture(b"x")]),
            AGENT,
            agent_provider=provider,
            tools=[TOOL],
            system_tools=False,
            on_event=note,
        )
        with pytest.raises(StreamInterrupted) as error:
            again.synchronize()
    assert (error.value.partial_text, told) == ("half of", ["half of"])


def test_an_executor_of_ones_own_is_not_asked() -> None:
    class Executor(DefaultSessionLoopExecutor):
        """Says so when it is asked."""

        n_asked = 0

        def complete(self, req: RathLLMChatRequest) -> Any:
            Executor.n_asked += 1
            return super().complete(req)

    def ask() -> Session:
        executor = Executor(client)
        provider = Provider(model="m")
        return run([], TOOL, agent_provider=provider, executor=executor).synchronize()

    client = ScriptedClient([tool_call("f"), "done"])
    out = ask()
    assert out.replay().text() == "done"
    with rath.replay(out):
        assert ask().text() == "done"
    assert Executor.n_asked == 2


def test_a_client_whose_code_is_not_here_cannot_be_replayed_and_says_so() -> None:
    vendor = OfflineVendor(lambda _: Says("hello"))
    out = run([], agent_provider=vendor.provider).synchronize()

    def refuse(_: Provider) -> ChatClient:
        raise ValueError("no such thing")

    register_chat_client(str(vendor.provider.provider_kind), refuse)
    with pytest.raises(PersistenceError, match=r"cannot be written again: no such thing.*import"):
        out.replay()


def test_an_answer_without_choices_fails_again() -> None:
    with ChatServer() as server:
        server.queue(replies.json_body({"id": "1", "object": "chat.completion", "choices": []}))
        provider = Provider(model="m", base_url=server.base_url, api_key=KEY, retry_max_attempts=1)
        out = program(provider, streams=False)
        with pytest.raises(ProviderProtocolError):
            out.synchronize()
    with rath.replay(out), pytest.raises(ProviderError):
        program(provider, streams=False).synchronize()


def test_a_refusal_is_one_again() -> None:
    answer = OfflineVendor(lambda _: Says("I will not.", finish="refusal"))
    out = run([], agent_provider=answer.provider, output=int).synchronize()
    assert out.replay().outcome == out.outcome
    with rath.replay(out):
        again = run([], agent_provider=answer.provider, output=int)
        assert again.text() == "I will not."
