"""Checkers of types know the answer of an agent that was asked for a type."""

from __future__ import annotations

from typing import Any, Literal, assert_type

from pydantic import BaseModel

from rath.flow import Agent
from rath.session import Session
from rath.testing import ScriptedClient

ANSWER = '{"name": "Paris", "people": 2}'


class City(BaseModel):
    name: str
    people: int


class Guide(Agent[City]):
    """An agent of one's own."""

    def __init__(self) -> None:
        super().__init__(
            "You answer.", ScriptedClient([ANSWER]).provider, output=City, system_tools=False
        )


def ask() -> Session:
    return Session.from_user_message("Which city?")


def test_an_agent_that_is_asked_for_a_type_gives_sessions_of_it() -> None:
    agent = Agent("You answer.", ScriptedClient([ANSWER, ANSWER]).provider, output=City)
    assert_type(agent, Agent[City])
    out = agent(ask())
    assert_type(out, Session[City])
    assert assert_type(out.output, City) == City(name="Paris", people=2)
    assert assert_type(out.fork().output, City).people == 2
    assert assert_type(agent(out, "Again?").output, City).name == "Paris"
    assert assert_type(Guide()(ask()).output, City).name == "Paris"


def test_an_agent_without_a_type_gives_sessions_of_any() -> None:
    plain = Agent("You answer.", ScriptedClient(["Paris"]).provider, system_tools=False)
    out = assert_type(plain(ask()), Session[Any])
    assert assert_type(out.text(), str) == "Paris"
    either = Agent("You answer.", ScriptedClient(['"a"']).provider, output=Literal["a", "b"])
    assert assert_type(either(ask()).output, Any) == "a"


def test_the_last_answer_is_read_as_the_type_that_is_given() -> None:
    out = Agent("You answer.", ScriptedClient([ANSWER]).provider, system_tools=False)(ask())
    assert assert_type(out.output_as(City), City).name == "Paris"
    assert assert_type(out.output_as(dict[str, Any]), dict[str, Any])["people"] == 2


def test_sessions_of_different_types_can_be_merged() -> None:
    number = Agent("You answer.", ScriptedClient(["7"]).provider, output=int)(ask())
    merged = Guide()(ask()).merge(number)
    assert assert_type(merged.output, City).name == "Paris"
