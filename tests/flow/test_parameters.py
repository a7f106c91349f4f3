"""Parameters of a workflow: names, states, what fits, files, and the digest in the record."""

from __future__ import annotations

import copy
import json
import pickle
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rath
from rath import flow
from rath.errors import StateFileError, StateMismatch
from rath.flow.parameters import state_digest
from rath.flow.tool import FlowToolCall
from rath.session import Session
from rath.session.chunk import user_text_chunk
from rath.session.record import Operation
from rath.testing import ScriptedClient

KEY = "sk-test-0123456789abcdef0123456789"


@rath.tool
def search(query: str) -> str:
    """Search the web."""
    return query


class FixedText(FlowToolCall):
    @property
    def name(self) -> str:
        return "fixed"

    @property
    def description(self) -> str:
        return "always this"

    @property
    def parameters(self) -> dict[str, Any]:
        return {"type": "object", "properties": {}}

    def __call__(self, session: Session, arguments: Mapping[str, Any]) -> str:
        return "done"


class Team(flow.Workflow):
    def __init__(self, *turns: str) -> None:
        provider = ScriptedClient(turns).provider
        self.writer = flow.Agent(
            rath.Prompt("Write."), provider, tools=[search], description="writes"
        )
        self.critic = flow.Agent("Criticise.", provider)
        self.style = rath.Prompt("Be short.", requires_grad=False)

    def forward(self, session: Session) -> Session:
        return self.writer(session)


@given(text=st.text(), requires_grad=st.booleans())
def test_a_prompt_is_its_text_and_survives_copies(text: str, requires_grad: bool) -> None:
    prompt = rath.Prompt(text, requires_grad=requires_grad)
    assert prompt == text
    for other in (copy.deepcopy(prompt), pickle.loads(pickle.dumps(prompt))):
        assert (other, other.requires_grad, type(other)) == (text, requires_grad, rath.Prompt)


def test_names_are_attribute_paths() -> None:
    team = Team()
    found = {name: each.value for name, each in team.named_parameters()}
    assert found == {
        "style": "Be short.",
        "critic.agent.system_prompt": "Criticise.",
        "writer.description": "writes",
        "writer.agent.system_prompt": "Write.",
        "writer.tools.search.description": "Search the web.",
    }
    trainable = [each.name for each in team.parameters() if each.requires_grad]
    assert trainable == ["writer.agent.system_prompt"]
    assert all(each.requires_grad for each in team.requires_grad_().parameters())


def test_an_agent_used_as_a_tool_is_part_of_the_state() -> None:
    helper = flow.Agent("Help.", ScriptedClient([]).provider)
    lead = flow.Agent("Lead.", ScriptedClient([]).provider, tools=[helper.as_tool("helper")])
    assert lead.state_dict()["tools.helper.agent.system_prompt"] == "Help."


def test_a_state_goes_into_another_workflow_of_the_kind() -> None:
    one, other = Team(), Team()
    one.writer.agent.system_prompt = "Write well."
    one.writer.agent.examples = (user_text_chunk("an example"),)
    one.critic.to(model="gpt-5")
    state = json.loads(json.dumps(one.state_dict()))
    state["writer.tools.search.description"] = "Find pages."
    state["critic.agent.sampling"] = {"temperature": 0.5, "stop": ["x"]}
    assert not any(other.load_state_dict(state))
    assert other.state_dict() == state
    assert other.critic.agent.provider.temperature == 0.5
    assert other.writer.tools[0].description == "Find pages."
    assert search.description == "Search the web.", "the tool of others stays as it is"


def test_no_key_and_no_endpoint_is_part_of_a_state() -> None:
    provider = flow.Provider(
        model="m",
        api_key=KEY,
        base_url=f"https://user:{KEY}@example.test",
        extra_create_args={"extra_headers": {"x-key": KEY}},
        metadata={"key": KEY},
    )
    agent = flow.Agent("p", provider)
    assert KEY not in json.dumps(agent.state_dict())
    state = {**agent.state_dict(), "agent.sampling": {"seed": 1}}
    agent.load_state_dict(state)
    assert (agent.agent.provider.api_key, agent.agent.provider.seed) == (KEY, 1)


def test_mismatches_are_listed_and_nothing_is_written() -> None:
    team = Team()
    state = team.state_dict()
    del state["critic.agent.provider"]
    state |= {"extra": 1, "style": 3, "writer.agent.system_prompt": "Other."}
    state["writer.tools.search.schema"] = "0" * 64
    state["critic.agent.sampling"] = {"temprature": 1}
    with pytest.raises(StateMismatch) as caught:
        team.load_state_dict(state)
    message = str(caught.value)
    assert message.startswith("Error(s) in loading state_dict for Team:")
    for part in (
        'Missing key(s) in state_dict: "critic.agent.provider".',
        'Unexpected key(s) in state_dict: "extra".',
        "style: expected a text, got int",
        "writer.tools.search.schema: the state is of",
        "unknown sampling parameters temprature",
    ):
        assert part in message
    assert team.writer.agent.system_prompt == "Write."
    found = team.load_state_dict(state, strict=False)
    assert (found.missing_keys, found.unexpected_keys) == (["critic.agent.provider"], ["extra"])
    assert len(found.errors) == 3
    assert team.writer.agent.system_prompt == "Other."


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("agent.examples", [{"kind": "user_text"}], "expected a list of rows"),
        (
            "agent.examples",
            [{"kind": "user_text", "payload": dict[str, str]()}],
            "no row is of the kind 'user_text'; known: system, user, assistant, tool_result",
        ),
        (
            "agent.provider",
            {"name": None, "kind": "opneai", "model": "m"},
            "unknown provider_kind 'opneai'; known: .*openai",
        ),
        ("agent.provider", {"model": "m"}, "expected the texts or nulls"),
        ("agent.provider", {"name": "no-such", "kind": None, "model": None}, "no-such"),
        ("agent.sampling", {"temperature": "hot"}, "temperature"),
        ("agent.sampling", 3, "expected a mapping"),
        ("tools.fixed.description", "another", "the class FixedText decides the text"),
    ],
)
def test_a_wrong_value_is_named(name: str, value: object, problem: str) -> None:
    agent = flow.Agent("p", model="m", tools=[FixedText()])
    with pytest.raises(StateMismatch, match=problem):
        agent.load_state_dict({**agent.state_dict(), name: value})


def test_a_parameter_refuses_what_is_no_text() -> None:
    agent = flow.Agent("p", model="m", tools=[FixedText()])
    found = dict(agent.named_parameters())
    with pytest.raises(TypeError, match="expected a text"):
        found["agent.system_prompt"].set(3)  # type: ignore[arg-type]  # the point of the test
    with pytest.raises(TypeError, match="decides the text"):
        found["tools.fixed.description"].set("x")
    with pytest.raises(TypeError, match="mapping"):
        agent.load_state_dict([])  # type: ignore[arg-type]  # the point of the test
    with pytest.raises(TypeError, match="made of a str"):
        rath.Prompt(3)  # type: ignore[arg-type]  # the point of the test


def test_a_file_gives_the_state_back(tmp_path: Path) -> None:
    team = Team()
    path = rath.save(team, tmp_path / "team.json")
    assert rath.load(path) == team.state_dict()
    assert rath.load(rath.save(team.state_dict(), path)) == team.state_dict()
    with pytest.raises(TypeError, match="plain JSON"):
        rath.save({"a": object()}, path)
    with pytest.raises(TypeError, match="plain JSON"):
        rath.save({"a": float("nan")}, path)
    with pytest.raises(TypeError, match="workflow"):
        rath.save(3, path)  # type: ignore[arg-type]  # the point of the test
    assert rath.load(path) == team.state_dict(), "a refused state leaves the file as it was"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{", "no JSON"),
        ("[]", "no saved state"),
        ('{"format": "rath-state", "version": 9, "state": {}}', "version 9"),
        ('{"format": "rath-state", "version": 1, "digest": "0", "state": {}}', "was changed"),
        ('{"format": "rath-state", "version": 1, "state": {"a": NaN}}', "no saved state"),
    ],
)
def test_a_file_that_is_no_state_is_refused(tmp_path: Path, content: str, problem: str) -> None:
    path = tmp_path / "state.json"
    path.write_text(content)
    with pytest.raises(StateFileError, match=problem):
        rath.load(path)


def test_the_record_names_the_state_that_a_run_had() -> None:
    team = Team("one", "two")
    digests = [team.compile().manifest.state_digest]
    first = team(Session.from_user_message("a"))
    first.synchronize()
    team.writer.agent.system_prompt = "Write better."
    digests.append(state_digest(team))
    second = team(Session.from_user_message("b"))
    recorded = [
        each.place.state
        for session in (first, second)
        for each in session.record
        if isinstance(each, Operation)
    ]
    assert recorded == digests
    assert digests[0] != digests[1]


def test_the_digest_follows_every_change() -> None:
    team = Team()
    seen = [state_digest(team)]
    changes = (
        lambda: setattr(team, "style", rath.Prompt("Be long.")),
        lambda: team.critic.to(model="gpt-5"),
        lambda: setattr(team.writer, "tools", []),
        lambda: setattr(team.critic.agent, "examples", (user_text_chunk("x"),)),
        lambda: setattr(team, "critic", flow.Agent("Praise.", model="m")),
        lambda: setattr(team.writer, "description", ""),
    )
    for change in changes:
        change()
        seen.append(state_digest(team))
    assert len(set(seen)) == len(seen)


def test_equal_states_have_one_digest() -> None:
    agents = [flow.Agent("p", model="m", tools=[search]) for _ in range(2)]
    assert state_digest(agents[0]) == state_digest(agents[1])


def test_a_run_does_not_wait_for_the_state_of_pending_instructions() -> None:
    asked, answered = threading.Event(), threading.Event()

    def wait(_: object) -> str:
        asked.set()
        assert answered.wait(60)
        return "You are brief."

    author = flow.Agent("p", ScriptedClient([wait]).provider)
    agent = flow.Agent("p", ScriptedClient(["done"]).provider)
    agent.agent.agent_session = author(Session.from_user_message("write instructions"))
    assert asked.wait(60)
    out = agent(Session.from_user_message("x"))
    assert out.is_pending
    answered.set()
    assert out.text() == "done"
    operation = [each for each in out.record if isinstance(each, Operation)][-1]
    assert operation.place.state is None


@dataclass
class Comparable(flow.Workflow):
    """A workflow of a class with `__eq__`, which has no hash."""

    name: str

    def __post_init__(self) -> None:
        self.agent = flow.Agent("p", ScriptedClient(["done"]).provider)

    def forward(self, session: Session) -> Session:
        return self.agent(session)


def test_a_workflow_without_a_hash_has_a_state() -> None:
    team = Comparable("a")
    out = team(Session.from_user_message("x"))
    states = [each.place.state for each in out.record if isinstance(each, Operation)]
    assert states == [state_digest(team)]


def test_what_fails_to_say_its_state_runs_as_before() -> None:
    is_broken: list[bool] = []

    class Odd(FixedText):
        @property
        def description(self) -> str:
            if is_broken:
                raise LookupError("no text")
            return "A text."

    agent = flow.Agent("p", ScriptedClient(["done"]).provider, tools=[Odd()])
    is_broken.append(True)
    with pytest.raises(LookupError, match="no text"):
        agent(Session.from_user_message("x")).synchronize()


def test_a_prompt_goes_wherever_a_text_does(tmp_path: Path) -> None:
    @rath.tool(description=rath.Prompt("Look it up."))
    def look(word: str) -> str:
        return word

    client = ScriptedClient(["done"])
    agent = flow.Agent(rath.Prompt("p"), client.provider, tools=[look])
    assert dict(agent.named_parameters())["tools.look.description"].requires_grad
    out = agent(Session.from_user_message(rath.Prompt("hello")))
    stored = Session.load(out.save(store=f"files://{tmp_path}"), store=f"files://{tmp_path}")
    assert stored.chunk_table == out.chunk_table
