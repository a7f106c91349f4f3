"""An agent as a layer: what it needs, what it sends, what it leaves in its session."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest

from rath import flow
from rath.config import ConfigStore, LLMProviderConfig
from rath.errors import ToolNameConflictError
from rath.flow.agent_param import resolve_provider_arg
from rath.flow.tool import FlowToolCall, global_system_tools
from rath.llm import RathLLMStreamDelta
from rath.session import ChunkKind, Session
from rath.session.outcome import Completed, DeadlineExceeded, RoundLimit
from rath.session.record import Operation
from rath.testing import ScriptedClient, tool_call


class Echo(FlowToolCall):
    """Gives back its text."""

    def __init__(self, name: str = "echo") -> None:
        self._name = name

    @property
    def name(self) -> str:
        return self._name

    @property
    def parameters(self) -> Mapping[str, Any]:
        return {"type": "object", "properties": {"text": {"type": "string"}}}

    def __call__(self, session: Session, arguments: Mapping[str, Any]) -> Any:
        return arguments.get("text", "")


def user(text: str = "hi") -> Session:
    return Session.from_user_message(text)


def configured(name: str, model: str) -> None:
    """Put a provider of that name into the config of the test's home."""
    store = ConfigStore()
    store.config.llm.providers[name] = LLMProviderConfig(model=model)
    store.save()


class Wrapped(flow.Workflow):
    """Asks one agent."""

    def __init__(self, agent: flow.Agent) -> None:
        super().__init__()
        self.agent = agent

    def forward(self, session: Session) -> Session:
        return self.agent(session=session)


def test_a_session_may_be_given_by_its_name() -> None:
    client = ScriptedClient(["one", "two", "three"])
    agent = flow.Agent("Be kind.", client.provider)
    workflow = Wrapped(agent)
    assert agent(session=user()).text() == "one"
    assert workflow(session=user()).text() == "two"
    assert workflow.compile()(session=user()).text() == "three"


def test_an_agent_answers() -> None:
    client = ScriptedClient(["hello"])
    out = flow.Agent("Be kind.", client.provider)(user())
    assert out.text() == "hello"
    assert [message.content for message in client.requests[0].messages] == ["Be kind.", "hi"]


def test_the_prompt_stays_out_of_the_transcript() -> None:
    out = flow.Agent("Be kind.", ScriptedClient(["hello"]).provider)(user())
    assert [row.kind for row in out.chunk_table] == [ChunkKind.USER, ChunkKind.ASSISTANT]


def test_a_chain_of_agents_never_blocks_the_caller() -> None:
    first = flow.Agent("one", ScriptedClient(["1"]).provider)
    second = flow.Agent("two", ScriptedClient(["2"]).provider)
    out = second(first(user()))
    assert [row.payload["content"] for row in out.chunk_table] == ["hi", "1", "2"]


def test_an_agent_needs_a_provider_or_a_model() -> None:
    with pytest.raises(ValueError, match="no provider given"):
        flow.Agent("p")


def test_a_model_name_is_no_provider() -> None:
    with pytest.raises(TypeError, match="model='NAME'"):
        flow.Agent("p", "gpt-5.5")  # type: ignore[arg-type]  # wrong on purpose


def test_a_given_provider_is_kept_as_it_is() -> None:
    provider = flow.Provider(model="m")
    assert flow.Agent("p", provider, model="other").agent.provider is provider


def test_a_model_fills_a_provider_that_has_none() -> None:
    agent = flow.Agent("p", flow.Provider(seed=3), model="m")
    assert agent.agent.provider == flow.Provider(seed=3, model="m")
    assert flow.Agent("p", model="m").agent.provider == flow.Provider(model="m")


def test_tools_are_a_list_of_its_own() -> None:
    tools: list[FlowToolCall] = [Echo()]
    agent = flow.Agent("p", model="m", tools=tools)
    agent.register_tool(Echo("other"))
    assert [tool.name for tool in agent.tools] == ["echo", "other"]
    assert len(tools) == 1


def test_a_known_tool_is_not_registered_again() -> None:
    first = Echo()
    agent = flow.Agent("p", model="m", tools=[first])
    agent.register_tool(Echo())
    assert agent.tools == [first]
    agent.unregister_tool("echo")
    agent.unregister_tool("echo")
    assert agent.tools == []


def test_two_tools_of_one_name_are_refused_at_the_call() -> None:
    agent = flow.Agent("p", ScriptedClient([]).provider, [Echo("run_code")])
    with pytest.raises(ToolNameConflictError, match="run_code"):
        agent(user())


@pytest.mark.parametrize(
    ("system_tools", "offered"),
    [
        pytest.param(True, sorted([*global_system_tools(), "echo"]), id="all"),
        pytest.param(False, ["echo"], id="none"),
        pytest.param(["run_code"], ["echo", "run_code"], id="some"),
    ],
)
def test_the_built_in_tools_can_be_left_out(
    system_tools: bool | list[str], offered: list[str]
) -> None:
    client = ScriptedClient(["done"])
    flow.Agent("p", client.provider, [Echo()], system_tools=system_tools)(user()).synchronize()
    assert [tool.name for tool in client.requests[0].tools or ()] == offered


def test_an_unknown_built_in_tool_is_named_at_the_call() -> None:
    agent = flow.Agent("p", ScriptedClient([]).provider, system_tools=["run_cod"])
    with pytest.raises(LookupError, match="run_cod"):
        agent(user())


def test_rounds_are_limited() -> None:
    client = ScriptedClient([tool_call("echo", {})] * 2)
    out = flow.Agent("p", client.provider, [Echo()], max_tool_rounds=2)(user())
    assert out.outcome == RoundLimit(2)
    assert client.n_left == 0


def test_a_run_has_a_deadline() -> None:
    class Slow(Echo):
        async def __call__(self, session: Session, arguments: Mapping[str, Any]) -> Any:
            await asyncio.Event().wait()

    client = ScriptedClient([tool_call("echo", {}), "late"])
    out = flow.Agent("p", client.provider, [Slow()], timeout=0.05)(user())
    assert out.outcome == DeadlineExceeded(0.05)


def test_events_are_streamed() -> None:
    events: list[RathLLMStreamDelta] = []
    out = flow.Agent("p", ScriptedClient(["so it is"]).provider, on_event=events.append)(user())
    assert out.text() == "so it is"
    assert "".join(event.content_delta or "" for event in events) == "so it is"


def test_the_record_says_which_agent_ran() -> None:
    class Team(flow.Workflow):
        def __init__(self) -> None:
            self.writer = flow.Agent("p", ScriptedClient(["a", "b"]).provider)

        def forward(self, session: Session) -> Session:
            return self.writer(self.writer(session))

    out = Team()(user())
    places = [entry.place for entry in out.record if isinstance(entry, Operation)]
    assert [(place.path, place.ordinal) for place in places] == [
        ("Team.writer", 0),
        ("Team.writer", 1),
    ]


def test_a_tool_may_run_an_agent_on_its_session() -> None:
    inner = flow.Agent("inner", ScriptedClient(["from inside"]).provider)

    class Ask(Echo):
        def __call__(self, session: Session, arguments: Mapping[str, Any]) -> Any:
            return inner(session).text()

    client = ScriptedClient([tool_call("echo", {}), "done"])
    out = flow.Agent("outer", client.provider, [Ask()])(user())
    assert out.text() == "done"
    assert out.outcome == Completed()
    assert "from inside" in str(list(out.chunk_table)[2].payload["content"])


def test_agent_param_shows_its_data_read_only() -> None:
    param = flow.Agent("p", model="m").agent
    assert isinstance(param.data, MappingProxyType)
    assert dict(param.data) == {
        "agent_session": param.agent_session,
        "provider": param.provider,
        "memory": None,
    }


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        pytest.param({"model": "new"}, flow.Provider(model="new", seed=1), id="model"),
        pytest.param({"target": flow.Provider(model="x")}, flow.Provider(model="x"), id="target"),
        pytest.param(
            {"target": flow.Provider(model="x"), "model": "new"},
            flow.Provider(model="x"),
            id="the target's own model wins",
        ),
        pytest.param(
            {"target": flow.Provider(seed=2), "model": "new"},
            flow.Provider(model="new", seed=2),
            id="model fills the target",
        ),
    ],
)
def test_agent_param_changes_its_provider(
    arguments: dict[str, Any], expected: flow.Provider
) -> None:
    param = flow.Agent("p", flow.Provider(model="old", seed=1)).agent
    assert param.to(**arguments) is param
    assert param.provider == expected


def test_agent_param_takes_a_configured_provider() -> None:
    configured("mine", "from-config")
    param = flow.Agent("p", model="old").agent
    assert param.to(provider="mine").provider.model == "from-config"
    assert param.to(provider="mine", model="other").provider.model == "other"


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        pytest.param({}, ValueError, "no provider given", id="nothing"),
        pytest.param({"target": "x"}, TypeError, "expected a Provider, got str", id="text"),
        pytest.param(
            {"target": flow.Provider(), "provider": "x"}, ValueError, "not both", id="both"
        ),
    ],
)
def test_agent_param_says_what_is_wrong(
    arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        flow.Agent("p", model="m").agent.to(**arguments)


def test_a_model_alone_overlays_the_base() -> None:
    base = flow.Provider(seed=4, model="old")
    assert resolve_provider_arg(model="new", base=base) == replace(base, model="new")


def test_agent_param_shows_its_memory_only_when_there_is_one() -> None:
    with flow.Agent("p", model="m", memory="local") as agent:
        assert "(memory): MemoryStore('local'" in repr(agent)
    assert "(memory)" not in repr(agent)


def test_a_run_that_nobody_reads_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        made = flow.Agent("p", ScriptedClient(["x"]).provider)(user()).synchronize().id
    assert [each for each in caplog.records if str(made)[:8] in each.getMessage()] == []


def test_an_agent_is_used_inside_a_running_event_loop() -> None:
    async def main() -> list[str | None]:
        agents = [flow.Agent("p", ScriptedClient([str(n)]).provider) for n in range(3)]
        done = await asyncio.gather(*(settled(agent(user())) for agent in agents))
        return [session.text() for session in done]

    async def settled(session: Session) -> Session:
        return await session

    assert asyncio.run(main()) == ["0", "1", "2"]
