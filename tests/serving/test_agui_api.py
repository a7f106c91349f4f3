"""AG-UI: events of runs, by the types of the protocol's package."""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

import rath
from rath.flow import Agent
from rath.llm.chat_request import RathLLMChatRequest
from rath.serving import Principal, ServerOptions, TokenFile, asgi
from rath.session.persistence.store import FileStore
from rath.testing import ScriptedClient, tool_call
from tests.support.serving import listening
from tests.support.sessions import FunctionTool

agui: Any = pytest.importorskip("ag_ui.core")
pydantic: Any = pytest.importorskip("pydantic")

WEATHER = {"name": "weather", "description": "The weather.", "parameters": {"type": "object"}}


def echo(request: RathLLMChatRequest) -> str:
    """Answer as a model that says again what was said last."""
    return f"you said {request.messages[-1].content}"


class GuardedTool(FunctionTool):
    approval = "always"


def answer(request: RathLLMChatRequest) -> Any:
    """Do what was said last."""
    last = request.messages[-1]
    calls = ("weather", "question", "remove")
    return tool_call(str(last.content)) if last.content in calls else echo(request)


class AguiClient:
    """A client of a server with a principal that may approve and one that may not."""

    def __init__(self, url: str, tokens: TokenFile) -> None:
        self.url = f"{url}/agui/team"
        self.me = tokens.add(Principal(name="me", may_approve=True))
        self.other = tokens.add(Principal(name="other"))

    def post(self, token: str, **more: Any) -> httpx2.Response:
        messages = [agui.UserMessage(id="1", content=more.pop("says", "hello"))]
        more.setdefault("messages", messages)
        asked = agui.RunAgentInput(thread_id="t", run_id="r", **more)
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        content = asked.model_dump_json(by_alias=True)
        return httpx2.post(self.url, content=content, headers=headers, timeout=30)

    def run(self, token: str = "", **more: Any) -> list[Any]:
        """Return the events of a run, each of the type that the package has for it."""
        response = self.post(token or self.me, **more)
        assert response.status_code == 200, response.text
        adapter = pydantic.TypeAdapter(agui.Event)
        lines = response.text.splitlines()
        return [adapter.validate_json(line[6:]) for line in lines if line.startswith("data: ")]


@pytest.fixture
def removed() -> list[str]:
    return []


@contextmanager
def client_of(team: Agent, home: Path) -> Generator[AguiClient]:
    tokens = TokenFile(home / "serve" / "tokens.json")
    store = FileStore(home / "sessions")
    options = ServerOptions(tokens=tokens, store=store, openai=False, a2a=False, mcp=False)
    with listening(asgi({"team": team}, options)) as url:
        yield AguiClient(url, tokens)


@pytest.fixture
def client(tmp_path: Path, removed: list[str]) -> Generator[AguiClient]:
    tools = [
        FunctionTool("question", lambda *_: rath.ask("Which colour?")),
        GuardedTool("remove", lambda *_: removed.append("removed")),
    ]
    team = Agent("x", ScriptedClient([answer] * 10).provider, tools, system_tools=False)
    with client_of(team, tmp_path) as client:
        yield client


def test_a_run_is_told_by_events(client: AguiClient) -> None:
    first, begun, *parts, end, last = client.run()
    assert (first.type, first.thread_id, first.run_id) == ("RUN_STARTED", "t", "r")
    assert (begun.type, begun.role) == ("TEXT_MESSAGE_START", "assistant")
    assert "".join(part.delta for part in parts) == "you said hello"
    assert {each.message_id for each in (begun, *parts, end)} == {begun.message_id}
    assert (end.type, last.type, last.outcome.type) == (
        "TEXT_MESSAGE_END",
        "RUN_FINISHED",
        "success",
    )
    assert last.usage[0].total_tokens > 0


def test_a_typed_answer_follows_the_texts_of_earlier_rounds(tmp_path: Path) -> None:
    call = tool_call("final_answer", {"value": 7}, content="Here it is.")
    look = FunctionTool("look", lambda *_: "found")
    team = Agent("x", ScriptedClient([call]).provider, [look], system_tools=False, output=int)
    with client_of(team, tmp_path) as client:
        events = client.run()
    assert "".join(each.delta for each in events[2:-2]) == "Here it is.\n\n7"


def test_a_conversation_is_sent_as_the_client_keeps_it(client: AguiClient) -> None:
    messages = [
        agui.UserMessage(id="1", content="first"),
        agui.AssistantMessage(id="2", content="second"),
        agui.UserMessage(id="3", content=[agui.TextPart(text="third")]),
    ]
    events = client.run(messages=messages)
    assert "".join(each.delta for each in events[2:-2]) == "you said third"


def test_a_tool_of_the_client_is_called_and_its_result_goes_on(client: AguiClient) -> None:
    events = client.run(says="weather", tools=[agui.Tool(**WEATHER)])
    start, arguments, end, last = events[-4:]
    assert (start.tool_call_name, json.loads(arguments.delta)) == ("weather", {})
    assert last.outcome.pending_tool_call_ids == [end.tool_call_id]
    result = agui.ToolMessage(id="2", content="sunny", tool_call_id=start.tool_call_id)
    done = client.run(messages=[result], tools=[agui.Tool(**WEATHER)])
    assert "".join(each.delta for each in done[2:-2]) == 'you said "sunny"'


def test_a_question_is_an_interrupt_that_is_resumed(client: AguiClient) -> None:
    (interrupt,) = client.run(says="question")[-1].outcome.interrupts
    assert (interrupt.reason, interrupt.message) == ("input_required", "Which colour?")
    resume = [agui.ResumeEntry(interrupt_id=interrupt.id, status="resolved", payload="blue")]
    assert client.post(client.other, messages=[], resume=resume).status_code == 404
    done = client.run(messages=[], resume=resume)
    assert "".join(each.delta for each in done[2:-2]) == 'you said "blue"'
    assert client.post(client.me, messages=[], resume=resume).status_code == 400


def test_an_approval_is_given_by_a_payload_of_who_may(
    client: AguiClient, removed: list[str]
) -> None:
    def resume(interrupt: Any, payload: object) -> list[Any]:
        return [agui.ResumeEntry(interrupt_id=interrupt.id, status="resolved", payload=payload)]

    (posed,) = client.run(client.other, says="remove")[-1].outcome.interrupts
    refused = client.post(client.other, resume=resume(posed, {"decision": "approve"}))
    assert "may not allow" in refused.json()["error"]["message"]
    (interrupt,) = client.run(says="remove")[-1].outcome.interrupts
    text = client.post(client.me, resume=resume(interrupt, "approve"))
    assert "a text allows nothing" in text.json()["error"]["message"]
    assert removed == []
    events = client.run(resume=resume(interrupt, {"decision": "approve"}))
    assert events[-1].outcome.type == "success"
    assert removed == ["removed"]


def test_what_cannot_be_run_is_an_error(client: AguiClient) -> None:
    unknown = agui.ResumeEntry(interrupt_id="x", status="resolved")
    assert client.post(client.me, resume=[unknown]).status_code == 400
    assert client.post(client.me, messages=[]).status_code == 400
    assert client.post("wrong").status_code == 401
