"""Compression and selection: one row or one choice, and an entry in the session that it served."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest

import rath
from rath.llm import RathLLMAssistantMessage, RathLLMChatChoice, RathLLMChatResponse
from rath.session import (
    ChunkKind,
    Session,
    run_session_compress,
    run_session_loop,
    select_session,
)
from rath.session.outcome import Cancelled, Completed
from rath.session.record import ModelCall, Operation, Summary
from rath.testing import ScriptedClient, Turn, tool_call
from tests.support.sessions import cancelled_session
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


@pytest.mark.parametrize("stopped", ["user", "agent"])
def test_a_session_that_was_stopped_passes_through(stopped: str) -> None:
    client, sessions = ScriptedClient([]), {"user": Session.from_user_message("x"), "agent": AGENT}
    sessions[stopped] = cancelled_session()
    user, agent = sessions.values()
    out = run_session_compress(user, agent, agent_provider=client.provider)
    assert out.outcome == sessions[stopped].outcome
    assert out.chunk_table == user.chunk_table
    assert not client.requests


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
    started, go = threading.Event(), threading.Event()

    def answer(_: object) -> str:
        started.set()
        go.wait(PATIENCE)
        return "too late"

    user = Session.from_user_message("a long story")
    out = compress(answer, user)
    started.wait(PATIENCE)
    assert out.cancel().outcome == Cancelled(out.id)
    assert out.chunk_table == user.chunk_table
    go.set()


@pytest.mark.parametrize("texts", [None, "required"])
def test_the_request_ends_with_the_instruction_and_wants_no_tools_whatever_the_provider_says(
    texts: Any,
) -> None:
    client = ScriptedClient(["short"])
    run_session_compress(
        Session.from_user_message("a long story"),
        AGENT,
        agent_provider=replace(client.provider, tool_choice=texts),
        compress_instruction="  In five words.  ",
    ).synchronize()
    (request,) = client.requests
    assert (request.tools, request.tool_choice) == (None, "none")
    reports = [message.content for message in request.messages]
    assert reports == ["Summarise.", "a long story", "In five words."]


SELECT_AGENT = Session.from_agent_prompt("You route.")


def select(*turns: Turn, among: tuple[str, ...], user: Session | None = None) -> tuple[int, str]:
    """Let a scripted model choose; every turn must be asked for."""
    client = ScriptedClient(turns)
    user = user or Session.from_user_message("help")
    chosen = select_session(user, SELECT_AGENT, *among, agent_provider=client.provider)
    assert client.n_left == 0
    return chosen


@pytest.mark.parametrize(
    ("answer", "chosen"),
    [
        ("1", 1),
        (" **1.** ", 1),
        ("Number 1.", 1),
        ("Of the 2 candidates, choose 1", 1),
        ("My choice is: 2", 2),
        ("research", 2),
        ("`Research`", 2),
        ("I choose the workflow research.", 2),
        ("2: research", 2),
        ("2. Research", 2),
        ("There are 3 of them. Number 0 is too narrow.\n\n1\n", 1),
        ("plan\nthe rest", 3),
        ('"write"', 1),
        ('{"index": 2}', 2),
        ('{"choice": "write", "confidence": 0}', 1),
        ('```json\n{"name": "write"}\n```', 1),
        ("-1", -1),
        ("None of them.", -1),
        ('{"index": -1}', -1),
        ("null", -1),
    ],
)
def test_an_answer_that_is_a_choice_is_read(answer: str, chosen: int) -> None:
    among = ("code", "write", "research", "plan\nthe rest")
    assert select(answer, among=among) == (chosen, among[chosen] if chosen >= 0 else "")


@pytest.mark.parametrize(
    "answer",
    [
        "I choose 0, not 1",
        "Do not choose 1",
        "If it is broken, choose 1",
        "0 or 1",
        "0\n1",
        "There are 2 of them",
        "Rejected:\n0",
        "My first thought:\n0\nSo it is 1, and not 0",
        "It was a mistake to say so, pick 1",
        "The user said, choose 1",
        "Option 1 was tried 0 times",
        "7",
        "9" * 5000,
        "[" * 100_000,
        "true",
        "[0, 1]",
        '{"index": 1, "name": "code"}',
        '{"confidence": 1, "reason": "it fits"}',
        "twin",
    ],
)
def test_what_cannot_be_read_is_asked_again_once(answer: str) -> None:
    among = ("code", "write", "twin", "twin")
    assert select(answer, "1", among=among) == (1, "write")
    assert select(answer, answer, among=among) == (-1, "")


def test_the_second_question_quotes_the_answer_and_counts_like_the_first() -> None:
    client = ScriptedClient(["either is fine", "1"])
    user = Session.from_user_message("help")
    assert select_session(user, SELECT_AGENT, "a", "b", agent_provider=client.provider) == (1, "b")
    first, second = (request.messages[-1].content or "" for request in client.requests)
    assert second.startswith(first)
    assert "'either is fine'" in second
    operation, *calls = user.record
    assert [(type(call), call.operation) for call in calls] == [
        (ModelCall, operation.operation)
    ] * 2
    assert [call.answer for call in calls if isinstance(call, ModelCall)] == [
        "either is fine",
        "1",
    ]
    usages = [call.evidence.usage for call in calls if isinstance(call, ModelCall)]
    total = user.cumulative_usage
    assert total is not None
    assert total.total_tokens == sum(usage.total_tokens for usage in usages if usage is not None)


def test_at_its_budget_nothing_is_asked_again() -> None:
    client = ScriptedClient(["either", "never"])
    provider = replace(client.provider, budget_total_tokens=1)
    user = Session.from_user_message("help")
    assert select_session(user, SELECT_AGENT, "a", "b", agent_provider=provider) == (-1, "")
    assert client.n_left == 1


@pytest.mark.parametrize("turn", [tool_call("f"), "  "], ids=["tools", "blank"])
def test_no_number_is_an_error(turn: Turn) -> None:
    with pytest.raises(RuntimeError, match="one number was asked for"):
        select(turn, among=("a",))


@pytest.mark.parametrize(
    ("finish", "is_fine"),
    [("stop", True), ("length", True), ("content_filter", True), ("function_call", False)],
)
def test_only_an_answer_that_ended_in_a_usable_way_counts(finish: Any, is_fine: bool) -> None:
    message = RathLLMAssistantMessage(content="0")
    choice = RathLLMChatChoice(index=0, finish_reason=finish, message=message)
    turn = RathLLMChatResponse(id="", choices=(choice,), created=0, model="m")
    if is_fine:
        assert select(turn, among=("a",)) == (0, "a")
    else:
        with pytest.raises(RuntimeError, match="stopped with 'function_call'"):
            select(turn, among=("a",))


def test_for_a_suspended_session_or_without_candidates_nobody_is_asked() -> None:
    client, stopped = ScriptedClient([]), cancelled_session()
    assert select_session(Session.from_user_message("x"), SELECT_AGENT) == (-1, "")
    for user, agent in ((stopped, SELECT_AGENT), (Session.from_user_message("help"), stopped)):
        assert select_session(user, agent, "a", agent_provider=client.provider) == (-1, "")
    assert not client.requests
