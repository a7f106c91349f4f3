"""An agent whose answers have a type."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from rath import flow
from rath.errors import OutputError
from rath.llm.chat_request import RathLLMChatRequest
from rath.session import Session
from rath.session.record import Operation
from rath.testing import ScriptedClient, tool_call
from tests.support.waiting import PATIENCE


class Plan(BaseModel):
    steps: list[str]


class Verdict(BaseModel):
    good: bool


PLAN = '{"steps": ["look", "leap"]}'


def user(text: str = "go") -> Session:
    return Session.from_user_message(text)


def planner(*turns: Any, **options: Any) -> flow.Agent:
    options.setdefault("output", Plan)
    return flow.Agent("Plan.", ScriptedClient(turns or [PLAN]).provider, **options)


def test_an_agent_gives_an_object() -> None:
    assert planner()(user()).output == Plan(steps=["look", "leap"])


def test_the_object_comes_by_a_tool_call_too() -> None:
    agent = planner(tool_call("final_answer", {"steps": []}))
    assert agent(user()).output == Plan(steps=[])


def test_a_call_returns_before_the_answer_is_there() -> None:
    gate = threading.Event()

    def slowly(_: RathLLMChatRequest) -> str:
        gate.wait(PATIENCE)
        return PLAN

    out = planner(slowly)(user())
    assert out.is_pending
    gate.set()
    assert out.output == Plan(steps=["look", "leap"])


def test_the_output_is_there_after_an_await() -> None:
    async def ask() -> object:
        session = await planner()(user())
        return session.output

    assert asyncio.run(ask()) == Plan(steps=["look", "leap"])


def test_an_agent_without_a_type_gives_text() -> None:
    out = flow.Agent("Plan.", ScriptedClient(["text"]).provider)(user())
    assert out.text() == "text"
    with pytest.raises(OutputError, match="no run was asked for one"):
        _ = out.output


def test_each_agent_of_a_chain_has_a_type_of_its_own() -> None:
    judge = flow.Agent("Judge.", ScriptedClient(['{"good": true}']).provider, output=Verdict)
    planned = planner()(user())
    judged = judge(planned)
    assert (judged.output, planned.output) == (
        Verdict(good=True),
        Plan(steps=["look", "leap"]),
    )


def test_the_next_agent_reads_the_answer_of_a_tool_call() -> None:
    client = ScriptedClient(["ok"])
    planned = planner(tool_call("final_answer", {"steps": ["x"]}))(user())
    flow.Agent("Do.", client.provider)(planned).synchronize()
    called = [call for message in client.requests[0].messages for call in message.tool_calls or ()]
    assert [call["function"]["arguments"] for call in called] == ['{"steps": ["x"]}']


def test_a_workflow_list_and_a_compiled_one_keep_the_type() -> None:
    talker = flow.Agent("Talk.", ScriptedClient(["hm"]).provider)
    listed = flow.WorkflowList([talker, planner()])

    class Both(flow.Workflow):
        def __init__(self) -> None:
            super().__init__()
            self.parts = listed

        def forward(self, session: Session) -> Session:
            for part in self.parts:
                session = part(session)
            return session

    with Both().compile() as compiled:
        assert compiled(user()).output == Plan(steps=["look", "leap"])


@pytest.mark.parametrize("output", ["Plan", 1, Plan(steps=[])], ids=["name", "number", "object"])
def test_what_is_no_type_is_refused_when_the_agent_is_made(output: Any) -> None:
    with pytest.raises(TypeError, match="output must be a type"):
        planner(output=output)


def test_an_agent_may_have_an_attribute_output_of_its_own() -> None:
    class Writer(flow.Agent):
        def __init__(self, **options: Any) -> None:
            super().__init__("Write.", ScriptedClient([PLAN]).provider, **options)
            self.output = Path("out.txt")

    assert Writer()(user()).text() == PLAN
    writer = Writer(output=Plan)
    assert writer(user()).output == Plan(steps=["look", "leap"])
    assert writer.output == Path("out.txt")


def test_a_class_of_agents_may_have_an_attribute_output_of_its_own() -> None:
    class Writer(flow.Agent):
        output = "out.txt"

    assert Writer("Write.", ScriptedClient(["text"]).provider)(user()).text() == "text"
    writer = Writer("Write.", ScriptedClient([PLAN]).provider, output=Plan)
    assert writer(user()).output == Plan(steps=["look", "leap"])


def test_the_schema_of_the_type_is_worked_out_once() -> None:
    agent = planner(PLAN, PLAN)
    asked = [
        entry.output
        for out in (agent(user()), agent(user()))
        for entry in out.record
        if isinstance(entry, Operation)
    ]
    assert len(asked) == 2
    assert asked[0] is asked[1]


def test_the_number_of_tries_is_the_agents() -> None:
    client = ScriptedClient(["no", "no", PLAN])
    agent = flow.Agent("Plan.", client.provider, output=Plan, output_retries=1)
    with pytest.raises(OutputError, match="2 tries"):
        _ = agent(user()).output
    assert client.n_left == 1
