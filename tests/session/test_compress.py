"""Compression: one row, the usage carried over, and no summary that is cut or missing."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import rath
from rath.llm import (
    RathLLMAssistantMessage,
    RathLLMChatChoice,
    RathLLMChatResponse,
    RathLLMStreamDelta,
)
from rath.session import (
    ChunkKind,
    Session,
    load_session,
    run_session_compress,
    run_session_loop,
    session_registry,
)
from rath.session.outcome import Cancelled, Completed
from rath.session.record import ModelCall, Operation, Summary
from rath.testing import ScriptedClient, Turn, tool_call
from tests.support.sessions import FunctionTool, cancelled_session, run
from tests.support.waiting import PATIENCE

AGENT = Session.from_agent_prompt("Summarise.")


def compress(
    turn: Turn, user: Session | None = None, *, lazy: bool = True, **options: Any
) -> Session:
    client = ScriptedClient([turn])
    return run_session_compress(
        user or Session.from_user_message("a long story"),
        AGENT,
        agent_provider=client.provider,
        lazy=lazy,
        **options,
    )


def failed_error(session: Session) -> BaseException:
    with pytest.raises(ValueError, match="boom") as caught:
        session.synchronize()
    return caught.value


def reply(content: str | None, finish: Any) -> RathLLMChatResponse:
    message = RathLLMAssistantMessage(content=content)
    choice = RathLLMChatChoice(index=0, finish_reason=finish, message=message)
    return RathLLMChatResponse(id="", choices=(choice,), created=0, model="m")


def test_the_result_is_one_user_row() -> None:
    out = compress("  short  ")
    (row,) = out.chunk_table
    assert (row.kind, row.payload["content"]) == (ChunkKind.USER, "short")
    assert out.text() == "short"
    assert out.outcome == Completed()


def test_the_call_waits_for_the_summary() -> None:
    out = compress("short", lazy=False)
    assert not out.is_pending
    assert out.text() == "short"


@pytest.mark.parametrize(
    ("turn", "message"),
    [
        pytest.param(reply("cut", "length"), "length", id="length"),
        pytest.param(reply("", "stop"), "it is empty", id="empty"),
    ],
)
def test_the_call_raises_what_is_wrong_with_the_summary(turn: Turn, message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        compress(turn, lazy=False)


def test_the_call_is_refused_before_it_asks_where_it_would_stop_other_runs() -> None:
    client = ScriptedClient(["never asked"])

    @rath.tool
    async def shorten() -> str:
        """Compress on the event loop of tools."""
        story = Session.from_user_message("a long story")
        run_session_compress(story, AGENT, agent_provider=client.provider)
        return "not reached"

    boss = ScriptedClient([tool_call("shorten"), "done"])
    user = Session.from_user_message("go")
    out = run_session_loop(user, AGENT, agent_provider=boss.provider, tools=[shorten])
    assert "pass lazy=True" in str(out.chunk_table[2].payload["content"])
    assert client.requests == []


def test_the_record_names_the_rows_that_were_replaced() -> None:
    user = Session.from_user_message("a long story")
    out = compress("short", user)
    operation, call, summary = out.record
    assert isinstance(operation, Operation)
    assert isinstance(call, ModelCall)
    assert isinstance(summary, Summary)
    assert summary.replaced == (user.chunk_table[0].id,)
    assert summary.rows == call.rows == (out.chunk_table[0].id,)


def test_usage_is_carried_over() -> None:
    first = run(["one two three"])
    out = compress("short", first)
    before, after = first.cumulative_usage, out.cumulative_usage
    assert before is not None
    assert after is not None
    assert after.total_tokens > before.total_tokens


def test_lineage() -> None:
    user = Session.from_user_message("a long story")
    out = compress("short", user)
    assert out.lineage_operator == "run_session_compress"
    assert out.parent_session_ids == (user.id, AGENT.id)
    assert ("compression.lossy", True) in out.lineage_extras
    assert ("compression.rows_out", 1) in out.lineage_extras


@pytest.mark.parametrize(
    ("turn", "problem"),
    [
        (tool_call("f", {}), "it called tools"),
        (reply("half a", "length"), "cut at its length limit"),
        (reply("", "stop"), "it is empty"),
        (reply(None, "stop"), "it is empty"),
        (reply("x", "function_call"), "did not end by itself"),
    ],
    ids=["tools", "length", "empty", "none", "other finish"],
)
def test_an_unusable_summary_is_refused(turn: Turn, problem: str) -> None:
    out = compress(turn)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=problem):
            out.text()


def test_the_request_has_no_tools_and_ends_with_the_instruction() -> None:
    client = ScriptedClient(["short"])
    run_session_compress(
        Session.from_user_message("a long story"),
        AGENT,
        agent_provider=client.provider,
        compress_instruction="  In five words.  ",
    ).synchronize()
    (request,) = client.requests
    assert request.tools is None
    assert [message.content for message in request.messages] == [
        "Summarise.",
        "a long story",
        "In five words.",
    ]


def test_text_after_a_compression_is_the_models_later_text() -> None:
    assert run(["an answer"], user=compress("short")).text() == "an answer"


def test_a_compression_of_a_pending_session_does_not_wait() -> None:
    out = compress("short", run(["one"]))
    assert out.text() == "short"


def test_a_cancelled_session_passes_through() -> None:
    begun, go = threading.Event(), threading.Event()

    def hold(*_: object) -> None:
        begun.set()
        go.wait(PATIENCE)

    first = run([tool_call("hold"), "never"], FunctionTool("hold", hold))
    begun.wait()
    assert compress("never", first.cancel()).outcome == Cancelled(first.id)
    go.set()


def test_no_provider_raises_at_the_call() -> None:
    with pytest.raises(ValueError, match="no provider for run_session_compress"):
        run_session_compress(Session.from_user_message("x"), AGENT)


def test_persist_path_writes_the_one_row(tmp_path: Path) -> None:
    path = tmp_path / "short.jsonl"
    out = compress("short", persist_path=path).synchronize()
    loaded = load_session(out.id, path=path)
    assert loaded.closed
    assert loaded.chunk_table == out.chunk_table


def test_the_header_of_the_file_names_the_placement(tmp_path: Path) -> None:
    path = tmp_path / "short.jsonl"
    user = Session.from_user_message("a long story").to("local", spec=str(tmp_path))
    out = compress("short", user, persist_path=path).synchronize()
    header = load_session(out.id, path=path).header
    assert header.sandbox_backend == "local"
    assert header.sandbox_spec == user.sandbox_spec


def test_a_suspended_agent_session_passes_through() -> None:
    client, stopped = ScriptedClient([]), cancelled_session()
    user = Session.from_user_message("a long story")
    out = run_session_compress(user, stopped, agent_provider=client.provider)
    assert out.outcome == stopped.outcome
    assert out.chunk_table == user.chunk_table
    assert not client.requests


def test_an_error_of_the_input_gets_no_note() -> None:
    failed = run([ValueError("boom")])
    error = failed_error(failed)
    notes = list(error.__notes__)
    for _ in range(2):
        assert failed_error(compress("short", failed)) is error
    assert error.__notes__ == notes


def test_an_error_born_here_says_where() -> None:
    out = compress(ValueError("boom"))
    (note,) = failed_error(out).__notes__
    assert str(out.id) in note


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_event": 5}, "on_event must be a function"),
        ({"executor": 5}, "lacks complete, dispatch_tool, tool_schemas"),
        ({"compress_instruction": 5}, "compress_instruction must be a str"),
    ],
)
def test_a_wrong_argument_raises_at_the_call(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        compress("never", **options)


def test_a_cancelled_compression_keeps_the_rows_of_its_input() -> None:
    begun, go = threading.Event(), threading.Event()

    def answer(_: object) -> str:
        begun.set()
        go.wait(PATIENCE)
        return "too late"

    user = Session.from_user_message("a long story")
    out = compress(answer, user)
    begun.wait(PATIENCE)
    assert out.cancel().outcome == Cancelled(out.id)
    assert out.chunk_table == user.chunk_table
    go.set()


def test_a_compression_may_leave_the_registry_alone() -> None:
    user = Session.from_user_message("a long story")
    hidden = compress("short", user, register_sessions=False)
    assert session_registry().get(hidden.id) is None
    assert session_registry().get(user.id) is None
    shown = compress("short", user)
    assert session_registry().get(shown.id) is shown


def test_a_compression_that_fails_says_where_it_was_started() -> None:
    out = compress(ValueError("boom"))
    with pytest.raises(ValueError, match="boom") as caught:
        out.text()
    assert any(f"the compression that made session {out.id}" in n for n in caught.value.__notes__)


def test_on_event_gets_the_deltas_of_a_compression() -> None:
    heard: list[str | None] = []

    def on_event(delta: RathLLMStreamDelta) -> None:
        heard.append(delta.content_delta)

    out = compress("one two", on_event=on_event)
    assert out.text() == "one two"
    assert "".join(part for part in heard if part) == "one two"


@pytest.mark.parametrize("said", [None, "required"])
def test_no_tools_are_offered_and_none_wanted_whatever_the_provider_says(said: Any) -> None:
    client = ScriptedClient(["short"])
    provider = replace(client.provider, tool_choice=said)
    user = Session.from_user_message("a long story")
    run_session_compress(user, AGENT, agent_provider=provider).synchronize()
    (request,) = client.requests
    assert (request.tools, request.tool_choice) == (None, "none")
