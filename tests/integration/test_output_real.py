"""Typed answers of a real model that is served on this machine, asked in both forms."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from rath import flow
from rath.llm import Provider
from rath.session import Session, run_session_loop
from rath.session.record import ModelCall, ToolRun
from tests.support.sessions import FunctionTool

pytestmark = pytest.mark.timeout(180)


class Person(BaseModel):
    name: str
    age: int
    mood: Literal["happy", "sad"]


class Count(BaseModel):
    words: int


ANNA = "Anna is 31 years old and smiles all day."


def count_words(_: Session, arguments: Any) -> dict[str, int]:
    return {"words": len(arguments["text"].split())}


WORD_COUNT = FunctionTool(
    "word_count",
    count_words,
    schema={
        "type": "object",
        "properties": {"text": {"type": "string", "description": "Text to count."}},
        "required": ["text"],
    },
)


def person_of(provider: Provider) -> tuple[Session, Person]:
    agent = flow.Agent("Extract the person.", provider, system_tools=False, output=Person)
    out = agent(Session.from_user_message(ANNA))
    assert isinstance(out.output, Person)
    return out, out.output


def test_a_real_model_is_held_to_the_schema(embedded: Provider) -> None:
    out, person = person_of(embedded)
    assert (person.name, person.age) == ("Anna", 31)
    (call,) = [entry for entry in out.record if isinstance(entry, ModelCall)]
    assert "response_format" in call.evidence.parameters


def test_a_real_model_calls_the_tool_that_takes_the_answer(embedded: Provider) -> None:
    out, person = person_of(replace(embedded, output_mode="tool"))
    assert (person.name, person.age) == ("Anna", 31)
    assert [entry.tool for entry in out.record if isinstance(entry, ToolRun)] == ["final_answer"]


def test_a_real_model_uses_its_tools_before_it_answers(embedded: Provider) -> None:
    user = Session.from_user_message("Count the words in: OpenRath makes agent clusters traceable.")
    agent = Session.from_agent_prompt("Use the `word_count` tool, then answer briefly.")
    out = run_session_loop(
        user,
        agent,
        agent_provider=replace(embedded, max_tokens=60),
        tools=[WORD_COUNT],
        system_tools=False,
        output=Count,
    )
    assert out.output == Count(words=5)
    used = [entry.tool for entry in out.record if isinstance(entry, ToolRun)]
    assert used[0] == "word_count"
