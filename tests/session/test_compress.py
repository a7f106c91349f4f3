"""Compression: one row, the usage carried over, and no summary that is cut or missing."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import rath
from rath.llm import RathLLMAssistantMessage, RathLLMChatChoice, RathLLMChatResponse
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
from tests.support.sessions import cancelled_session, run
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


def test_the_result_is_one_user_row_that_names_the_rows_it_replaced() -> None:
    user = Session.from_user_message("a long story")
    out = compress("  short  ", user, lazy=False)
    assert not out.is_pending
    (row,) = out.chunk_table
    assert (row.kind, row.payload["content"]) == (ChunkKind.USER, "short")
    assert (out.text(), out.outcome) == ("short", Completed())
    operation, call, summary = out.record
    assert isinstance(operation, Operation)
    assert isinstance(call, ModelCall)
    assert isinstance(summary, Summary)
    assert summary.replaced == (user.chunk_table[0].id,)
    assert summary.rows == call.rows == (row.id,)
    assert out.lineage_operator == "run_session_compress"
    assert out.parent_session_ids == (user.id, AGENT.id)
    assert {("compression.lossy", True), ("compression.rows_out", 1)} <= {*out.lineage_extras}


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
def test_an_unusable_summary_is_refused_at_the_call_or_at_each_read(
    turn: Turn, problem: str
) -> None:
    with pytest.raises(RuntimeError, match=problem):
        compress(turn, lazy=False)
    out = compress(turn)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=problem):
            out.text()


def test_text_after_a_compression_is_the_models_later_text() -> None:
    assert run(["an answer"], user=compress("short")).text() == "an answer"


def test_a_file_of_its_own_has_the_one_row_and_names_the_placement(tmp_path: Path) -> None:
    path = tmp_path / "short.jsonl"
    user = Session.from_user_message("a long story").to("local", spec=str(tmp_path))
    out = compress("short", user, persist_path=path).synchronize()
    loaded = load_session(out.id, path=path)
    assert (loaded.closed, loaded.chunk_table) == (True, out.chunk_table)
    assert loaded.header.sandbox_backend == "local"
    assert loaded.header.sandbox_spec == user.sandbox_spec


@pytest.mark.parametrize("stopped", ["user", "agent"])
def test_a_session_that_was_stopped_passes_through(stopped: str) -> None:
    client, sessions = ScriptedClient([]), {"user": Session.from_user_message("x"), "agent": AGENT}
    sessions[stopped] = cancelled_session()
    user, agent = sessions.values()
    out = run_session_compress(user, agent, agent_provider=client.provider)
    assert out.outcome == sessions[stopped].outcome
    assert out.chunk_table == user.chunk_table
    assert not client.requests


def test_an_error_of_the_input_gets_no_note() -> None:
    failed = run([ValueError("boom")])
    error = failed_error(failed)
    notes = list(error.__notes__)
    for _ in range(2):
        assert failed_error(compress("short", failed)) is error
    assert error.__notes__ == notes


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"agent_provider": None}, ValueError, "no provider for run_session_compress"),
        ({"on_event": 5}, TypeError, "on_event must be a function"),
        ({"executor": 5}, TypeError, "lacks complete, dispatch_tool, tool_schemas"),
        ({"compress_instruction": 5}, TypeError, "compress_instruction must be a str"),
    ],
)
def test_a_wrong_argument_raises_at_the_call(
    options: dict[str, Any], error: type[Exception], message: str
) -> None:
    given: dict[str, Any] = {"agent_provider": ScriptedClient([]).provider, **options}
    with pytest.raises(error, match=message):
        run_session_compress(Session.from_user_message("x"), AGENT, **given)


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


@pytest.mark.parametrize("said", [None, "required"])
def test_the_request_ends_with_the_instruction_and_wants_no_tools_whatever_the_provider_says(
    said: Any,
) -> None:
    client = ScriptedClient(["short"])
    run_session_compress(
        Session.from_user_message("a long story"),
        AGENT,
        agent_provider=replace(client.provider, tool_choice=said),
        compress_instruction="  In five words.  ",
    ).synchronize()
    (request,) = client.requests
    assert (request.tools, request.tool_choice) == (None, "none")
    told = [message.content for message in request.messages]
    assert told == ["Summarise.", "a long story", "In five words."]
