"""A run that is asked for a type: both forms of asking, what is sent back, and how it ends."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from rath.errors import InvalidRequestError, OutputError
from rath.llm import Provider
from rath.session import Session, run_session_loop
from rath.session.outcome import Completed
from rath.session.record import ModelCall, ToolRun
from rath.testing import ScriptedClient, Turn, tool_call
from tests.support.anthropic_replies import message, tool_use
from tests.support.asking import KEY
from tests.support.chat_replies import Reply, completion, status_error
from tests.support.chat_replies import tool_call as call_on_wire
from tests.support.chat_server import ChatServer
from tests.support.sessions import FunctionTool, entries_of, run
from tests.support.waiting import PATIENCE

FORMS = pytest.mark.parametrize("form", ["schema", "tool"])


class Count(BaseModel):
    words: int = Field(ge=0)


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with ChatServer() as serving:
        yield serving


def answer(form: str, words: object) -> Reply:
    """An answer on OpenAI's wire, as the form of asking wants it."""
    given = json.dumps({"words": words})
    if form == "schema":
        return completion(given)
    return completion(tool_calls=(call_on_wire("final_answer", given),))


def asked(server: ChatServer, form: Any = None, *, tools: Any = (), **options: Any) -> Session:
    """A run on the server, whose model is asked in one of the forms."""
    provider = Provider(
        base_url=server.base_url, api_key=KEY, model="m", output_mode=form, retry_max_attempts=1
    )
    return run_session_loop(
        Session.from_user_message("How many words?"),
        Session.from_agent_prompt("You count."),
        agent_provider=options.pop("agent_provider", provider),
        tools=list(tools),
        system_tools=False,
        output=options.pop("output", Count),
        **options,
    )


def purposes(session: Session) -> list[str]:
    return [call.purpose for call in entries_of(session, ModelCall)]


def error_of(session: Session) -> str:
    with pytest.raises(OutputError) as caught:
        _ = session.output
    return str(caught.value)


def messages(server: ChatServer, at: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = server.requests[at].json()["messages"]
    return found


# What is asked.


def test_openai_is_asked_by_a_strict_schema(server: ChatServer) -> None:
    server.queue(answer("schema", 3))
    assert asked(server).output == Count(words=3)
    body = server.requests[0].json()
    assert body["response_format"] == {
        "type": "json_schema",
        "json_schema": {
            "name": "Count",
            "strict": True,
            "schema": {
                "type": "object",
                "title": "Count",
                "properties": {
                    "words": {"type": "integer", "title": "Words", "description": "minimum: 0"}
                },
                "required": ["words"],
                "additionalProperties": False,
            },
        },
    }
    assert "tools" not in body


def test_the_tool_is_offered_next_to_the_others(server: ChatServer) -> None:
    server.queue(answer("tool", 3))
    tool = FunctionTool("look", lambda *_: "seen")
    assert asked(server, "tool", tools=[tool]).output == Count(words=3)
    body = server.requests[0].json()
    assert [offered["function"]["name"] for offered in body["tools"]] == ["look", "final_answer"]
    assert body["tools"][1]["function"]["parameters"] == Count.model_json_schema()
    assert body["tool_choice"] == "required"
    assert "response_format" not in body


def test_a_tool_of_the_user_keeps_its_name() -> None:
    mine = FunctionTool("final_answer", lambda *_: "mine")
    turns = [tool_call("final_answer", {}), tool_call("final_answer_2", {"words": 3})]
    out = run(turns, mine, output=Count)
    assert out.output == Count(words=3)
    assert out.chunk_table[2].payload["content"] == '"mine"'


class Reported(ScriptedClient):
    """A client of somebody else that knows schemas."""

    takes_loose_schema = False

    def output_mode(self, *, with_tools: bool) -> str:
        return "tool" if with_tools else "schema"


class Table(BaseModel):
    cells: dict[str, int]


@pytest.mark.parametrize(
    ("output", "tools", "is_schema"),
    [(Count, [], True), (Count, [FunctionTool("f", lambda *_: 1)], False), (Table, [], False)],
    ids=["alone", "beside tools", "not strict"],
)
def test_a_client_says_how_it_is_asked(output: Any, tools: Any, is_schema: bool) -> None:
    client = Reported(["nothing"])
    run([], *tools, output=output, output_retries=0, agent_provider=client.provider).synchronize()
    assert (client.requests[0].response_format is not None) is is_schema


def asked_of_anthropic(server: ChatServer, **options: Any) -> Session:
    provider = Provider(provider_kind="anthropic", base_url=server.base_url, api_key=KEY, model="m")
    return asked(server, agent_provider=provider, **options)


def test_anthropic_takes_a_schema_that_is_not_strict_as_a_tool(server: ChatServer) -> None:
    wrong, right = {"cells": {"a": "x"}}, {"cells": {"a": 1}}
    server.queue(*(message(tool_use("final_answer", given)) for given in (wrong, right)))
    out = asked_of_anthropic(server, output=Table)
    assert out.output == Table(cells={"a": 1})
    first, second = (request.json() for request in server.requests)
    assert "output_config" not in first
    assert first["tool_choice"] == {"type": "any"}
    (result,) = [b for b in second["messages"][-1]["content"] if b["type"] == "tool_result"]
    assert result["tool_use_id"] == second["messages"][-2]["content"][-1]["id"]


# What comes back.


def test_a_fallback_is_asked_in_its_own_form(server: ChatServer) -> None:
    server.queue(completion('{"words": -1}'), status_error(503, "busy", kind="server_error"))
    other = ScriptedClient([tool_call("final_answer", {"words": 3})])
    first = Provider(base_url=server.base_url, api_key=KEY, model="m", retry_max_attempts=1)
    out = asked(server, agent_provider=replace(first, fallbacks=[other.provider]))
    assert out.output == Count(words=3)
    assert purposes(out) == ["turn", "repair", "repair"]
    assert "response_format" in server.requests[0].json()
    assert [tool.name for tool in other.requests[0].tools or ()] == ["final_answer"]


# What is sent back.


@FORMS
def test_what_was_wrong_is_sent_back(form: str, server: ChatServer) -> None:
    server.queue(answer(form, "many"), answer(form, -1), answer(form, 3))
    out = asked(server, form)
    assert out.output == Count(words=3)
    assert purposes(out) == ["turn", "repair", "repair"]
    first, second = messages(server, 1)[-1], messages(server, 2)[-1]
    role = "user" if form == "schema" else "tool"
    assert (first["role"], second["role"]) == (role, role)
    assert "words: Input should be a valid integer" in first["content"]
    assert "words: Input should be greater than or equal to 0" in second["content"]


def test_a_text_instead_of_the_call_is_sent_back_with_the_tool_name(server: ChatServer) -> None:
    server.queue(completion("There are three."), answer("tool", 3))
    out = asked(server, "tool")
    assert out.output == Count(words=3)
    assert "calling the tool final_answer" in messages(server, 1)[-1]["content"]


@given(
    st.integers(0, 3),
    st.integers(0, 5),
    st.lists(st.booleans(), min_size=6, max_size=6),
)
def test_no_more_than_the_given_tries_are_made(
    retries: int, n_bad: int, by_call: list[bool]
) -> None:
    turns = [tool_call("final_answer", {"words": -1}) if one else "no" for one in by_call[:n_bad]]
    client = ScriptedClient([*turns, '{"words": 3}'])
    out = run([], output=Count, output_retries=retries, agent_provider=client.provider)
    if n_bad <= retries:
        assert out.output == Count(words=3)
    else:
        assert f"in {retries + 1} tr" in error_of(out)
    n_calls = min(n_bad, retries) + 1
    assert purposes(out) == ["turn"] + ["repair"] * (n_calls - 1)
    assert out.outcome == Completed()


def test_a_turn_that_calls_tools_is_no_try() -> None:
    turns: list[Turn] = ["no", tool_call("look"), tool_call("look"), '{"words": 3}']
    out = run(turns, FunctionTool("look", lambda *_: 1), output=Count, output_retries=1)
    assert out.output == Count(words=3)
    assert purposes(out) == ["turn", "repair", "turn", "turn"]


# How it ends without an answer.


@FORMS
def test_the_error_names_model_tries_and_problem(form: str, server: ChatServer) -> None:
    server.queue(answer(form, "many"), answer(form, "a lot"))
    out = asked(server, form, output_retries=1)
    texts = error_of(out)
    expected = ("'scripted-model'", "/v1/chat/completions", "2 tries", "valid integer", "a lot")
    assert [part for part in expected if part not in texts] == []
    assert out.outcome == Completed()
    assert out.text() == ('{"words": "a lot"}' if form == "schema" else "")


@FORMS
def test_an_answer_that_was_cut_off_is_not_blamed_for_its_form(
    form: str, server: ChatServer
) -> None:
    cut = '{"wor'
    calls = () if form == "schema" else (call_on_wire("final_answer", cut),)
    content = cut if form == "schema" else None
    reply = completion(content, tool_calls=calls, finish_reason="length")
    server.queue(reply, answer(form, 3))
    out = asked(server, form)
    assert out.output == Count(words=3)
    assert "cut off at the limit of tokens" in messages(server, 1)[-1]["content"]


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (completion(message={"refusal": "I will not count."}), "refused"),
        (completion("no", finish_reason="content_filter"), "content filter"),
    ],
    ids=["refusal", "content filter"],
)
def test_a_refusal_is_final(server: ChatServer, reply: Reply, reason: str) -> None:
    server.queue(reply)
    out = asked(server)
    assert reason in error_of(out)
    assert len(server.requests) == 1


def budgeted(*turns: Any, tokens: int) -> ScriptedClient:
    return ScriptedClient(turns, provider=Provider(budget_total_tokens=tokens))


def test_calls_next_to_the_answer_are_not_made_over_the_budget() -> None:
    turn = tool_call("look", {}, tool_call("final_answer", {"words": 3}, id="c2"), id="c1")
    client = budgeted(turn, tokens=1)
    called: list[object] = []
    look = FunctionTool("look", lambda *_: called.append(1))
    out = run([], look, output=Count, agent_provider=client.provider)
    assert out.output == Count(words=3)
    assert out.outcome == Completed()
    assert called == []
    results = [row.payload for row in out.chunk_table if row.kind == "tool_result"]
    assert [result["tool_call_id"] for result in results] == ["c1", "c2"]
    assert "was not made" in results[0]["content"]
    runs = entries_of(out, ToolRun)
    assert [(one.call_id, one.status, len(one.rows)) for one in runs] == [
        ("c1", "interrupted", 1), ("c2", "done", 1),
    ]  # fmt: skip


def test_a_deadline_ends_a_validator_that_takes_too_long() -> None:
    gate = threading.Event()

    class Slow(BaseModel):
        words: int

        def model_post_init(self, _: Any) -> None:
            gate.wait(PATIENCE)

    out = run(['{"words": 3}'], output=Slow, timeout=0.05)
    assert "DeadlineExceeded" in error_of(out)
    gate.set()


class Textless(Exception):
    def __str__(self) -> str:
        raise self


@pytest.mark.parametrize("turn", ['{"words": 3}', tool_call("final_answer", {"words": 3})])
@pytest.mark.parametrize(
    ("error", "reports"),
    [
        (SystemExit(3), "SystemExit: 3"),
        (KeyboardInterrupt("3"), "KeyboardInterrupt: 3"),
        (asyncio.CancelledError("3"), "CancelledError: 3"),
        (GeneratorExit("3"), "GeneratorExit: 3"),
        (StopIteration(3), "StopIteration: 3"),
        (Textless(), "Textless"),
    ],
    ids=lambda one: type(one).__name__,
)
def test_a_validator_that_raises_an_exit_is_a_problem_that_the_model_reads(
    error: BaseException, reports: str, turn: Turn
) -> None:
    class Leaving(BaseModel):
        words: int

        def model_post_init(self, _: Any) -> None:
            raise error

    out = run([turn] * 2, output=Leaving, output_retries=1)
    assert reports in error_of(out)
    assert reports in str(out.chunk_table[2].payload["content"])


@FORMS
def test_an_endpoint_that_takes_no_schema_is_named_with_what_to_do(
    form: str, server: ChatServer
) -> None:
    server.queue(status_error(400, "response_format json_schema is not supported"))
    with pytest.raises(InvalidRequestError) as caught:
        asked(server, form).synchronize()
    reports = any("output_mode='tool'" in note for note in caught.value.__notes__)
    assert reports == (form == "schema")


# What is refused before the run.


@pytest.mark.parametrize(
    "provider",
    [
        Provider(response_format={"type": "json_object"}),
        Provider(extra_create_args={"response_format": {"type": "json_object"}}),
        Provider(fallbacks=[Provider(response_format={"type": "json_object"}, model="m")]),
    ],
    ids=["a field", "an extra argument", "a fallback"],
)
def test_a_response_format_of_the_provider_excludes_an_output(provider: Provider) -> None:
    complete = [replace(one, api_key=KEY) for one in provider.fallbacks]
    given_one = replace(provider, model="m", api_key=KEY, fallbacks=complete)
    with pytest.raises(ValueError, match="response_format of its own"):
        run([], output=Count, agent_provider=given_one)


@pytest.mark.parametrize("retries", [-1, 1.5, True, None])
def test_retries_are_a_complete_number(retries: Any) -> None:
    with pytest.raises(ValueError, match="output_retries must be a whole number"):
        run(["x"], output=Count, output_retries=retries)


# The record.
