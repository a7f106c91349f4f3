"""Workflows: calls, parts, copies, their agents and typed answers."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from rath import flow
from rath.config import ConfigStore, LLMProviderConfig
from rath.errors import OutputError, ToolNameConflictError
from rath.flow.tool import FlowToolCall, global_system_tools
from rath.llm import RathLLMStreamDelta
from rath.llm.chat_request import RathLLMChatRequest
from rath.session import ChunkKind, Session
from rath.session.outcome import DeadlineExceeded, RoundLimit
from rath.session.record import Operation
from rath.testing import ScriptedClient, tool_call
from tests.support.waiting import PATIENCE

PARTS: dict[str, Any] = {
    "agent": flow.AgentParam(Session.from_agent_prompt("p"), flow.Provider(model="m")),
    "child": flow.EmptyWorkflow(),
    "other": 3,
}

names = st.sampled_from(["a", "b", "c"])
steps = st.lists(
    st.one_of(
        st.tuples(st.just("set"), names, st.sampled_from(list(PARTS))),
        st.tuples(st.just("delete"), names, st.just("")),
    )
)


class Bare(flow.Workflow):
    """Has no `super().__init__()`, as in the README."""

    def __init__(self, **parts: object) -> None:
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, session: Session) -> Session:
        return session


def user(text: str = "hi") -> Session:
    return Session.from_user_message(text)


@given(steps)
def test_the_parts_are_what_the_attributes_hold_now(steps: list[tuple[str, str, str]]) -> None:
    workflow, model = Bare(), dict[str, str]()
    for step, name, part in steps:
        if step == "set":
            setattr(workflow, name, PARTS[part])
            model[name] = part
        elif name in model:
            delattr(workflow, name)
            del model[name]
    expected = sorted(model.items())
    assert workflow.named_agents() == tuple(
        (name, PARTS[part]) for name, part in expected if part == "agent"
    )
    assert workflow.named_children() == tuple(
        (name, PARTS[part]) for name, part in expected if part == "child"
    )


def test_modules_come_in_pre_order_sorted_by_name() -> None:
    inner = Bare(z=flow.EmptyWorkflow(), y=flow.EmptyWorkflow())
    last = flow.EmptyWorkflow()
    outer = Bare(b=last, a=inner)
    assert outer.modules() == [outer, inner, inner.y, inner.z, last]  # type: ignore[attr-defined]  # set by name


def test_a_circle_ends() -> None:
    workflow = Bare()
    workflow.itself = Bare(back=workflow)  # type: ignore[attr-defined]  # set by name
    assert len(workflow.modules()) == 2
    assert "..." in repr(workflow)


def test_items_of_containers_have_dotted_paths() -> None:
    workflow = Bare(steps=flow.WorkflowList([Bare(x=flow.EmptyWorkflow())]))
    assert [path for path, _ in workflow.named_modules()] == ["", "steps", "steps.0", "steps.0.x"]


@pytest.mark.parametrize(
    ("held", "instead"),
    [
        pytest.param([flow.EmptyWorkflow()], "WorkflowList", id="list"),
        pytest.param((flow.EmptyWorkflow(),), "WorkflowList", id="tuple"),
        pytest.param({"a": flow.EmptyWorkflow()}, "WorkflowDict", id="dict"),
    ],
)
def test_a_plain_collection_of_workflows_is_named_in_a_hint(
    held: object, instead: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="rath.flow.workflow"):
        Bare(steps=held).to(model="m")
    assert "Bare.steps" in caplog.text
    assert instead in caplog.text


def test_a_plain_list_of_known_children_needs_no_hint(caplog: pytest.LogCaptureFixture) -> None:
    child = flow.EmptyWorkflow()
    Bare(child=child, order=[child], words=["x"], steps=flow.WorkflowList([child])).modules()
    assert [each for each in caplog.records if each.name == "rath.flow.workflow"] == []


def test_to_reaches_every_descendant() -> None:
    def agent() -> flow.Agent:
        return flow.Agent("p", model="old")

    deep, listed, kept = agent(), agent(), agent()
    workflow = Bare(
        a=Bare(b=Bare(c=deep)),
        steps=flow.WorkflowList([listed]),
        table=flow.WorkflowDict({"k": kept}),
    )
    assert workflow.to(model="new") is workflow
    assert [each.agent.provider.model for each in (deep, listed, kept)] == ["new"] * 3
    with pytest.raises(TypeError, match="expected a Provider"):
        workflow.to("openai")  # type: ignore[arg-type]  # wrong on purpose


def test_repr_is_a_tree() -> None:
    class Outer(flow.Workflow):
        def __init__(self) -> None:
            self.one = flow.EmptyWorkflow()
            self.agent = flow.Agent("x", model="m")
            self.all = flow.WorkflowList([flow.EmptyWorkflow("z")])

    assert (
        repr(Outer())
        == """Outer(
  (one): EmptyWorkflow()
  (agent): Agent(prompt='x', provider=Provider(model='m'), tools=[])
  (all): WorkflowList(
    (0): EmptyWorkflow()
  )
)"""
    )


def test_extra_repr_is_displayed() -> None:
    class Layer(Bare):
        def extra_repr(self) -> str:
            return "width=3"

    assert repr(Layer()) == "Layer(width=3)"
    assert repr(Layer(a=flow.EmptyWorkflow())) == "Layer(\n  width=3\n  (a): EmptyWorkflow()\n)"


def test_a_description_may_be_a_class_attribute() -> None:
    class Triage(flow.Workflow):
        description = "sorts requests"

    assert Triage().description == "sorts requests"
    assert Triage("other").description == "other"
    assert Bare().description == ""


def test_a_call_takes_a_session() -> None:
    with pytest.raises(TypeError, match=r"Bare takes a Session, got str; .*from_user_message"):
        Bare()("hi")  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(TypeError):
        Bare()(user(), user())  # type: ignore[arg-type]  # wrong on purpose


def test_a_base_workflow_has_no_forward() -> None:
    with pytest.raises(NotImplementedError, match="Workflow has no forward"):
        flow.Workflow()(user())


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        pytest.param(None, "is a return missing", id="none"),
        pytest.param(flow.EmptyWorkflow(), r"\.forward\(session, \*workflows\)", id="workflow"),
    ],
)
def test_forward_must_return_a_session(returned: Any, message: str) -> None:
    class Wrong(flow.Workflow):
        def forward(self, session: Session) -> Session:
            return returned  # type: ignore[no-any-return]  # wrong on purpose

    with pytest.raises(TypeError, match=message):
        Wrong()(user())


def test_an_async_forward_is_refused() -> None:
    class Wrong(flow.Workflow):
        async def forward(self, session: Session) -> Session:  # type: ignore[override]  # wrong on purpose
            return session

    with pytest.raises(TypeError, match="async def"):
        Wrong()(user())


def test_the_record_names_the_path_of_an_operation() -> None:
    class Step(flow.Workflow):
        def forward(self, session: Session) -> Session:
            return session.fork()

    class Team(flow.Workflow):
        def __init__(self) -> None:
            self.first = Step()
            self.steps = flow.WorkflowList([Step()])

        def forward(self, session: Session) -> Session:
            session = self.first(session)
            session = self.steps[0](self.first(session))
            return Step()(session).fork()

    out = Team()(user())
    places = [entry.place for entry in out.record if isinstance(entry, Operation)]
    assert [(place.path, place.ordinal) for place in places] == [
        ("Team.first", 0),
        ("Team.first", 1),
        ("Team.steps.0", 0),
        ("Team.Step", 0),
        ("Team", 0),
    ]


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
    # The prompt is no row.
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
        flow.Agent("p", "gpt-5.5")  # type: ignore[call-overload]  # wrong on purpose


def test_a_given_provider_is_preserved_as_it_is() -> None:
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
    agent = flow.Agent("p", client.provider, [Echo()], system_tools=system_tools)
    agent(user().to("local")).synchronize()
    assert [tool.name for tool in client.requests[0].tools or ()] == offered


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


def test_agent_param_shows_its_memory_only_when_there_is_one() -> None:
    with flow.Agent("p", model="m", memory="local") as agent:
        assert "(memory): MemoryStore('local'" in repr(agent.agent)
        assert "memory=MemoryStore('local'" in repr(agent)
    assert "(memory)" not in repr(agent.agent)
    assert "memory" not in repr(agent)


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


class Plan(BaseModel):
    steps: list[str]


class Verdict(BaseModel):
    good: bool


PLAN = '{"steps": ["look", "leap"]}'


def planner(*turns: Any, **options: Any) -> flow.Agent:
    options.setdefault("output", Plan)
    return flow.Agent("Plan.", ScriptedClient(turns or [PLAN]).provider, **options)


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


def test_a_notebook_shows_a_workflow_as_a_tree_without_markup_of_others() -> None:
    class Both(flow.Workflow):
        def __init__(self) -> None:
            self.second = flow.Agent("<b>Two</b>", flow.Provider(model="m"))
            self.first = flow.Compressor("One", flow.Provider(model="m"))
            self.inner = flow.EmptyWorkflow()
            self.inner.back = self  # type: ignore[attr-defined]  # a cycle

        def forward(self, session: Session) -> Session:
            return self.second(session)

    shown = str(getattr(Both(), "_repr_html_")())  # noqa: B009  # of IPython
    assert "&lt;b&gt;Two" in shown
    assert "<b>Two" not in shown
    names = ("second: Agent", "first: Compressor", "prompt=&#x27;One&#x27;", "inner: EmptyWorkflow")
    assert [shown.index(name) for name in names] == sorted(shown.index(name) for name in names)
    assert "back: Both" in shown
