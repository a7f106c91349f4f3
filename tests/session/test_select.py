"""Selection: one number out of a menu, and an entry in the session that it served."""

from __future__ import annotations

from typing import Any

import pytest

from rath.llm import (
    Provider,
    RathLLMAssistantMessage,
    RathLLMChatChoice,
    RathLLMChatResponse,
)
from rath.session import Session, select_session
from rath.session.record import ModelCall, Operation
from rath.testing import ScriptedClient, Turn, tool_call
from tests.support.sessions import cancelled_session

AGENT = Session.from_agent_prompt("You route.")


def select(turn: Turn, *descriptions: str, user: Session | None = None) -> tuple[int, str]:
    client = ScriptedClient([turn])
    user = user or Session.from_user_message("help")
    return select_session(user, AGENT, *descriptions, agent_provider=client.provider)


@pytest.mark.parametrize(
    ("said", "chosen"),
    [
        ("1", (1, "b")),
        ("I choose 0, not 1", (0, "a")),
        ("-1", (-1, "")),
        ("7", (-1, "")),
        ("none of them", (-1, "")),
    ],
)
def test_the_first_number_counts(said: str, chosen: tuple[int, str]) -> None:
    assert select(said, "a", "b") == chosen


def test_without_candidates_nobody_is_asked() -> None:
    assert select_session(Session.from_user_message("x"), AGENT) == (-1, "")


def test_the_call_becomes_an_entry_of_the_session_that_it_served() -> None:
    user = Session.from_user_message("help")
    before = user.chunk_table
    select("0", "a", user=user)
    operation, call = user.record
    assert isinstance(operation, Operation)
    assert isinstance(call, ModelCall)
    assert call.purpose == "select"
    assert user.chunk_table == before
    assert list(user.fork().record)[:2] == [operation, call]
    assert user.fork().cumulative_usage is not None


@pytest.mark.parametrize("turn", [tool_call("f"), "  "], ids=["tools", "blank"])
def test_no_number_is_an_error(turn: Turn) -> None:
    with pytest.raises(RuntimeError, match="one number was asked for"):
        select(turn, "a")


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
    with pytest.raises(RuntimeError, match="boom") as caught:
        select(ValueError("boom"), "a", user=user)
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
        assert select(turn, "a") == (0, "a")
    else:
        with pytest.raises(RuntimeError, match="stopped with 'function_call'"):
            select(turn, "a")


def test_the_menu_numbers_the_candidates_and_offers_none_of_them() -> None:
    client = ScriptedClient(["1"])
    user = Session.from_user_message("help")
    select_session(user, AGENT, "cook", "paint", agent_provider=client.provider)
    (request,) = client.requests
    question = request.messages[-1].content or ""
    assert "0: cook\n1: paint\n" in question
    assert "-1" in question
    assert request.tools is None


def test_for_a_suspended_session_nobody_is_asked() -> None:
    client, stopped = ScriptedClient([]), cancelled_session()
    for user, agent in ((stopped, AGENT), (Session.from_user_message("help"), stopped)):
        assert select_session(user, agent, "a", agent_provider=client.provider) == (-1, "")
    assert not client.requests


def test_an_executor_that_is_none_raises_at_the_call() -> None:
    executor: Any = object()
    with pytest.raises(TypeError, match=r"select_session: executor .* lacks complete"):
        select_session(AGENT, AGENT, "a", agent_provider=Provider(), executor=executor)
