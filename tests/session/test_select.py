"""Selection: one candidate of a menu, and an entry in the session that it served."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rath.llm import Provider, RathLLMAssistantMessage, RathLLMChatChoice, RathLLMChatResponse
from rath.session import Session, select_session
from rath.session.record import ModelCall
from rath.testing import ScriptedClient, Turn, tool_call
from tests.support.sessions import cancelled_session

AGENT = Session.from_agent_prompt("You route.")


def select(*turns: Turn, among: tuple[str, ...], user: Session | None = None) -> tuple[int, str]:
    """Let a scripted model choose; every turn must be asked for."""
    client = ScriptedClient(turns)
    user = user or Session.from_user_message("help")
    chosen = select_session(user, AGENT, *among, agent_provider=client.provider)
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
    assert select_session(user, AGENT, "a", "b", agent_provider=client.provider) == (1, "b")
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
    assert select_session(user, AGENT, "a", "b", agent_provider=provider) == (-1, "")
    assert client.n_left == 1


def test_a_second_answer_that_is_none_raises_as_the_first() -> None:
    with pytest.raises(RuntimeError, match="one number was asked for"):
        select("either", tool_call("f"), among=("a",))


def test_without_candidates_nobody_is_asked() -> None:
    assert select_session(Session.from_user_message("x"), AGENT) == (-1, "")


@pytest.mark.parametrize("turn", [tool_call("f"), "  "], ids=["tools", "blank"])
def test_no_number_is_an_error(turn: Turn) -> None:
    with pytest.raises(RuntimeError, match="one number was asked for"):
        select(turn, among=("a",))


def test_no_provider_raises_at_the_call() -> None:
    with pytest.raises(ValueError, match="no provider for select_session"):
        select_session(Session.from_user_message("x"), AGENT, "a")


def test_the_sessions_own_provider_serves() -> None:
    client = ScriptedClient(["0"])
    user = Session.from_user_message("x").to(client.provider)
    assert select_session(user, AGENT, "a") == (0, "a")
    assert isinstance(client.provider, Provider)


def test_a_call_that_failed_becomes_an_entry_too_and_says_where_it_was_started() -> None:
    user = Session.from_user_message("help")
    with pytest.raises(ValueError, match="boom") as caught:
        select(ValueError("boom"), among=("a",), user=user)
    assert any(f"a selection for session {user.id}" in note for note in caught.value.__notes__)
    assert [entry.status for entry in user.record if isinstance(entry, ModelCall)] == ["failed"]


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


def test_for_a_suspended_session_nobody_is_asked() -> None:
    client, stopped = ScriptedClient([]), cancelled_session()
    for user, agent in ((stopped, AGENT), (Session.from_user_message("help"), stopped)):
        assert select_session(user, agent, "a", agent_provider=client.provider) == (-1, "")
    assert not client.requests


def test_an_executor_that_is_none_raises_at_the_call() -> None:
    executor: Any = object()
    with pytest.raises(TypeError, match=r"select_session: executor .* lacks complete"):
        select_session(AGENT, AGENT, "a", agent_provider=Provider(), executor=executor)
