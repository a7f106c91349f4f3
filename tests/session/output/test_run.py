"""A run that is asked for a type: both forms of asking, what is sent back, and how it ends."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from rath.errors import InvalidRequestError, OutputError
from rath.llm import Provider
from rath.llm.chat_request import RathLLMChatRequest
from rath.llm.chat_response import RathLLMAssistantMessage, RathLLMChatChoice, RathLLMChatResponse
from rath.session import Session, run_session_loop
from rath.session.outcome import BudgetExceeded, Completed, RoundLimit
from rath.session.output import plan_output
from rath.session.record import ModelCall, Operation, ToolRun
from rath.testing import ScriptedClient, Turn, tool_call
from tests.support.anthropic_replies import message, text, tool_use
from tests.support.asking import KEY
from tests.support.chat_replies import Reply, completion, status_error
from tests.support.chat_replies import tool_call as call_on_wire
from tests.support.chat_server import ChatServer
from tests.support.sessions import FunctionTool, run
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


def calls_of(session: Session) -> list[ModelCall]:
    return [entry for entry in session.record if isinstance(entry, ModelCall)]


def purposes(session: Session) -> list[str]:
    return [call.purpose for call in calls_of(session)]


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


def test_the_tool_is_offered_beside_the_others(server: ChatServer) -> None:
    server.queue(answer("tool", 3))
    tool = FunctionTool("look", lambda *_: "seen")
    assert asked(server, "tool", tools=[tool]).output == Count(words=3)
    body = server.requests[0].json()
    assert [offered["function"]["name"] for offered in body["tools"]] == ["look", "final_answer"]
    assert body["tools"][1]["function"]["parameters"] == Count.model_json_schema()
    assert body["tool_choice"] == "required"
    assert "response_format" not in body


def test_the_tool_choice_of_the_provider_stays() -> None:
    client = ScriptedClient(['{"words": 3}'], provider=Provider(tool_choice="auto"))
    assert run([], output=Count, agent_provider=client.provider).output == Count(words=3)
    assert client.requests[0].tool_choice == "auto"


def test_the_tool_is_one_like_any_other() -> None:
    plan = plan_output(Count, 0, candidates=(), taken=())
    assert plan is not None
    tool = plan.offer.tool
    assert (tool.name, tool.resource_key({})) == ("final_answer", ("final_answer",))
    assert tool.description == plan.spec.tool.description


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


def test_anthropic_is_asked_by_a_schema_beside_tools(server: ChatServer) -> None:
    server.queue(message(text('{"words": 3}')))
    tool = FunctionTool("look", lambda *_: 1)
    assert asked_of_anthropic(server, tools=[tool]).output == Count(words=3)
    body = server.requests[0].json()
    assert body["output_config"]["format"]["schema"]["additionalProperties"] is False
    assert [offered["name"] for offered in body["tools"]] == ["look"]


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


@FORMS
def test_the_text_stays_what_it_is(form: str) -> None:
    turn = '{"words": 3}' if form == "schema" else tool_call("final_answer", {"words": 3})
    out = run([turn], output=Count)
    assert out.output == Count(words=3)
    assert out.text() == ('{"words": 3}' if form == "schema" else None)


def test_the_call_that_gives_the_answer_has_a_result() -> None:
    out = run([tool_call("final_answer", {"words": 3}, id="c1")], output=Count).synchronize()
    assert dict(out.chunk_table[2].payload) == {
        "tool_call_id": "c1",
        "name": "final_answer",
        "content": '{"ok": true}',
    }
    (entry,) = [entry for entry in out.record if isinstance(entry, ToolRun)]
    assert (entry.tool, entry.origin, entry.status) == ("final_answer", "built-in", "done")
    assert entry.schema_digest


def test_an_executor_of_the_user_does_not_see_the_call_that_answers() -> None:
    dispatched: list[str] = []

    class Executor:
        def __init__(self) -> None:
            self.client = ScriptedClient(
                [tool_call("look", {}, tool_call("final_answer", {"words": 3}))]
            )

        def complete(self, req: RathLLMChatRequest) -> RathLLMChatResponse:
            return self.client.complete(req)

        def dispatch_tool(self, session: Session, tool: Any, arguments: Any) -> Any:
            dispatched.append(tool.name)
            return "done"

        def tool_schemas(self) -> tuple[Any, ...]:
            return ()

    tool = FunctionTool("look", lambda *_: 1)
    out = run([], tool, output=Count, executor=Executor(), agent_provider=Provider(model="m"))
    assert out.output == Count(words=3)
    assert dispatched == ["look"]


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


def test_a_text_in_the_place_of_the_call_is_told_what_was_expected(server: ChatServer) -> None:
    server.queue(completion("There are three."), answer("tool", 3))
    out = asked(server, "tool")
    assert out.output == Count(words=3)
    assert "calling the tool final_answer" in messages(server, 1)[-1]["content"]


def test_arguments_that_are_no_json_are_told_so() -> None:
    out = run([tool_call("final_answer", "{wor"), '{"words": 3}'], output=Count)
    assert out.output == Count(words=3)
    assert "no JSON object" in out.chunk_table[2].payload["content"]


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
    said = error_of(out)
    expected = ("'scripted-model'", "/v1/chat/completions", "2 tries", "valid integer", "a lot")
    assert [part for part in expected if part not in said] == []
    assert out.outcome == Completed()
    assert out.text() == ('{"words": "a lot"}' if form == "schema" else None)


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


def test_an_answer_that_was_whole_before_it_was_cut_off_counts(server: ChatServer) -> None:
    server.queue(completion('{"words": 3}', finish_reason="length"))
    assert asked(server).output == Count(words=3)


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


def test_a_repair_needs_a_round() -> None:
    out = run(["no", '{"words": 3}'], output=Count, max_tool_rounds=1)
    assert "no further call was left in max_tool_rounds" in error_of(out)
    assert out.outcome == Completed()


def test_a_run_that_used_its_rounds_for_tools_names_its_outcome() -> None:
    tool = FunctionTool("look", lambda *_: 1)
    out = run([tool_call("look")], tool, output=Count, max_tool_rounds=1)
    assert "RoundLimit" in error_of(out)
    assert out.outcome == RoundLimit(1)


def budgeted(*turns: Any, tokens: int) -> ScriptedClient:
    return ScriptedClient(turns, provider=Provider(budget_total_tokens=tokens))


def test_a_run_over_its_budget_is_not_repaired() -> None:
    client = budgeted("no", tokens=1)
    out = run([], output=Count, agent_provider=client.provider)
    assert "BudgetExceeded" in error_of(out)


def test_an_answer_that_crosses_the_budget_counts() -> None:
    client = budgeted(tool_call("final_answer", {"words": 3}), tokens=1)
    assert run([], output=Count, agent_provider=client.provider).output == Count(words=3)


def test_calls_beside_the_answer_are_not_made_over_the_budget() -> None:
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
    runs = [entry for entry in out.record if isinstance(entry, ToolRun)]
    assert [(one.call_id, one.status, len(one.rows)) for one in runs] == [
        ("c1", "interrupted", 1), ("c2", "done", 1),
    ]  # fmt: skip


def test_an_answer_that_does_not_fit_is_not_repaired_over_the_budget() -> None:
    client = budgeted(tool_call("look", {}, tool_call("final_answer", {"words": -1})), tokens=1)
    called: list[object] = []
    look = FunctionTool("look", lambda *_: called.append(1))
    out = run([], look, output=Count, agent_provider=client.provider)
    assert isinstance(out.outcome, BudgetExceeded)
    assert called == []


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
    ("error", "told"),
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
def test_a_validator_that_leaves_is_told_the_model(
    error: BaseException, told: str, turn: Turn
) -> None:
    class Leaving(BaseModel):
        words: int

        def model_post_init(self, _: Any) -> None:
            raise error

    out = run([turn] * 2, output=Leaving, output_retries=1)
    assert told in error_of(out)
    assert told in str(out.chunk_table[2].payload["content"])


@FORMS
def test_an_endpoint_that_takes_no_schema_is_named_with_what_to_do(
    form: str, server: ChatServer
) -> None:
    server.queue(status_error(400, "response_format json_schema is not supported"))
    with pytest.raises(InvalidRequestError) as caught:
        asked(server, form).synchronize()
    told = any("output_mode='tool'" in note for note in caught.value.__notes__)
    assert told == (form == "schema")


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
    whole = [replace(one, api_key=KEY) for one in provider.fallbacks]
    given_one = replace(provider, model="m", api_key=KEY, fallbacks=whole)
    with pytest.raises(ValueError, match="response_format of its own"):
        run([], output=Count, agent_provider=given_one)


@pytest.mark.parametrize("retries", [-1, 1.5, True, None])
def test_retries_are_a_whole_number(retries: Any) -> None:
    with pytest.raises(ValueError, match="output_retries must be a whole number"):
        run(["x"], output=Count, output_retries=retries)


def test_a_mode_that_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match='output_mode must be "schema" or "tool"'):
        Provider(output_mode="json")  # type: ignore[arg-type]  # refused for that


# The record.


def test_the_record_holds_what_was_asked_for() -> None:
    out = run(['{"words": 3}'], output=Count).synchronize()
    operation = next(entry for entry in out.record if isinstance(entry, Operation))
    assert operation.output is not None
    assert operation.output.tool.parameters == Count.model_json_schema()
    assert operation.output.strict


def paused(begun: str) -> Callable[[RathLLMChatRequest], RathLLMChatResponse]:
    """A turn that its vendor stopped in the middle."""

    def answer_with(_: RathLLMChatRequest) -> RathLLMChatResponse:
        message = RathLLMAssistantMessage(content=begun)
        choice = RathLLMChatChoice(index=0, finish_reason="pause_turn", message=message)
        return RathLLMChatResponse(id="", choices=(choice,), created=0, model="m")

    return answer_with


def test_a_paused_turn_is_no_answer() -> None:
    out = run([paused("let me see"), '{"words": 3}'], output=Count)
    assert out.output == Count(words=3)
    assert purposes(out) == ["turn", "turn"]
