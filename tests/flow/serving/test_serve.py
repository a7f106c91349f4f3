"""What is said before anything is served, and what a client reads of a run."""

from __future__ import annotations

import socket
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest

from rath._async.deferred import Deferred
from rath.flow import Agent
from rath.flow.serving import ServeOptions, serve_mcp
from rath.flow.serving.calls import run_answer
from rath.session import Session
from rath.session.outcome import (
    BudgetExceeded,
    Completed,
    DeadlineExceeded,
    NeedsApproval,
    NeedsDecision,
    NeedsInput,
    OutputMissing,
    OutputValue,
    RoundLimit,
)
from rath.testing import ScriptedClient, tool_call
from tests.support.api import Outcome
from tests.support.served_program import Team
from tests.support.sessions import FunctionTool, run


def http(**more: Any) -> None:
    given: dict[str, Any] = {"name": "team", "transport": "http", "port": 0, **more}
    serve_mcp(Team, **given)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "everybody": ({"host": "0.0.0.0"}, r"lets everybody on that network .*--token-env"),
    "a network": ({"host": "192.0.2.1"}, "lets everybody on that network"),
    "an empty token": ({"options": ServeOptions(token=" ")}, "the token is empty"),
    "a token of letters": ({"options": ServeOptions(token="ü")}, "not ASCII"),
    "a port": ({"port": 70_000}, "port 70000 is out of range"),
    "a path": ({"options": ServeOptions(path="mcp")}, "must begin with '/'"),
    "a transport": ({"transport": "sse"}, "unknown transport 'sse'"),
    "sessions": ({"options": ServeOptions(sessions="all")}, "unknown sessions"),  # type: ignore[arg-type]  # the point
    "a name": ({"name": "two words"}, "cannot be the name of a tool"),
}


@pytest.mark.parametrize(("given", "problem"), WRONG.values(), ids=WRONG.keys())
def test_what_must_not_be_served_is_refused(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        http(**given)


def test_an_agent_needs_a_name() -> None:
    agent = Agent("x", ScriptedClient([]).provider)
    with pytest.raises(ValueError, match="has no name of its own"):
        serve_mcp(agent, transport="http", port=0)


def test_what_is_no_workflow_is_refused() -> None:
    with pytest.raises(TypeError, match="takes a workflow or what makes one, not int"):
        serve_mcp(lambda: 7, transport="http", port=0)  # type: ignore[arg-type,return-value]  # the point


def test_a_port_that_is_taken_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="in use"):
        http(port=taken.getsockname()[1])


def test_a_token_is_not_displayed() -> None:
    assert "canary" not in repr(ServeOptions(token="canary"))


# ---- answers


def ended(outcome: Outcome) -> Session:
    done = run(["so far"]).synchronize()
    body = replace(done.core.body.result(), outcome=outcome)
    return Session.from_body(Deferred.of(body), done.provenance, id=done.id)


SESSION = uuid4()
OUTCOMES: dict[str, tuple[Outcome, str, str]] = {
    "rounds": (RoundLimit(3), "round_limit", "not done after 3 model calls"),
    "budget": (BudgetExceeded(10, 9), "budget_exceeded", "stopped by its budget"),
    "deadline": (DeadlineExceeded(1.5), "deadline_exceeded", "not done after 1.5 s"),
    "typed": (Completed(OutputMissing("no json")), "completed", "asked for: no json"),
}


@pytest.mark.parametrize(("outcome", "state", "note"), OUTCOMES.values(), ids=OUTCOMES.keys())
def test_a_run_that_was_stopped_says_so_next_to_its_text(
    outcome: Outcome, state: str, note: str
) -> None:
    answer = run_answer(ended(outcome))
    assert (answer.structured["text"], answer.structured["outcome"]) == ("so far", state)
    assert answer.text.startswith("so far\n\n(")
    assert note in answer.text
    assert not answer.is_error


WAITING: dict[str, tuple[Outcome, str, str]] = {
    "approval": (NeedsApproval(SESSION, ("a", "b")), "needs_approval", "to allow the calls a, b"),
    "input": (NeedsInput(SESSION, "which?"), "needs_input", "to the question: which?"),
    "decision": (NeedsDecision(SESSION, ("a",)), "needs_decision", "to decide about the calls a"),
}


@pytest.mark.parametrize(("outcome", "state", "what"), WAITING.values(), ids=WAITING.keys())
def test_a_run_that_waits_says_for_what_and_how_it_goes_on(
    outcome: Outcome, state: str, what: str
) -> None:
    session = ended(outcome)
    answer = run_answer(session)
    assert answer.structured["outcome"] == state
    assert what in answer.structured["waits_for"]
    assert f"Session {SESSION} waits" in answer.text
    assert f"session_id {session.id} and an empty message" in answer.text


def test_a_run_that_waits_does_not_say_an_earlier_answer_again() -> None:
    look = FunctionTool("look", lambda *_: "found")
    look.approval = "always"
    waits = run([tool_call("look")], look, user=run(["the answer"]).say("and now?")).synchronize()
    answer = run_answer(waits)
    assert (answer.structured["outcome"], answer.structured["text"]) == ("needs_approval", "")
    assert "the answer" not in answer.text


def test_a_typed_answer_is_an_object_too() -> None:
    answer = run_answer(ended(Completed(OutputValue({"n": 1}))))
    assert (answer.structured["output"], answer.structured["text"]) == ({"n": 1}, "so far")


def test_a_run_without_a_word_says_that() -> None:
    assert run_answer(run([""]).synchronize()).text == "(no answer)"
