"""What a workflow needs is read from it without running it."""

from __future__ import annotations

import pytest

from rath import flow
from rath.flow.compile import AgentResource, DynamicNode, collect_manifest
from rath.session import Session
from rath.testing import ScriptedClient


class Team(flow.Workflow):
    """Agents at three depths and a choice."""

    def __init__(self, provider: flow.Provider) -> None:
        self.lead = flow.Agent("lead", provider)
        self.steps = flow.WorkflowList([flow.Agent("step", provider, model="m")])
        self.router = flow.Selector(provider)

    def forward(self, session: Session) -> Session:
        return self.lead(session)


def scripted(*turns: str) -> flow.Provider:
    return ScriptedClient(turns).provider


def test_paths_go_through_containers() -> None:
    manifest = collect_manifest(Team(scripted()))
    paths = [agent.path for agent in manifest.agents]
    assert paths == ["lead.agent", "router.agent", "steps.0.agent"]


def test_an_agent_is_described() -> None:
    provider = scripted()
    agent = flow.Agent("p", provider)
    assert collect_manifest(agent).agents == [
        AgentResource("agent", provider, False, str(agent.agent.agent_session.id))
    ]


def test_choices_are_listed() -> None:
    reason = flow.Selector.dynamic_reason or ""
    assert collect_manifest(Team(scripted())).dynamic_nodes == [
        DynamicNode("router", "selector", reason)
    ]
    root = collect_manifest(flow.Selector(scripted()))
    assert [node.path for node in root.dynamic_nodes] == ["Selector"]


def test_models_and_kinds_are_distinct_and_sorted() -> None:
    providers = [
        flow.Provider(model="b"),
        flow.Provider(model="a", provider_kind="other"),
        flow.Provider(),
        flow.Provider(model="b"),
    ]
    workflow = flow.Sequential(*(flow.Agent("p", provider) for provider in providers))
    manifest = workflow.compile().manifest
    assert manifest.provider_models() == ["a", "b"]
    assert manifest.provider_kinds() == ["openai", "other"]


def test_a_compiled_workflow_runs_like_the_workflow() -> None:
    compiled = Team(scripted("hello")).compile()
    assert compiled(Session.from_user_message("hi")).text() == "hello"
    assert compiled.named_children() == compiled.workflow.named_children()


def test_repr_counts() -> None:
    compiled = flow.EmptyWorkflow().compile()
    assert repr(compiled) == "CompiledWorkflow(EmptyWorkflow(), agents=0, dynamic_nodes=0)"


def test_a_missing_key_is_a_problem() -> None:
    compiled = Team(flow.Provider(model="m")).compile()
    problems = compiled.validate()
    assert [problem.partition(":")[0] for problem in problems] == [
        "lead.agent",
        "router.agent",
        "steps.0.agent",
    ]
    assert "No API key found" in problems[0]


def test_a_key_in_the_environment_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "test-key")
    assert Team(flow.Provider(model="m")).compile().validate() == []


def test_a_key_of_the_provider_is_enough() -> None:
    provider = flow.Provider(model="m", api_key="test-key")
    assert flow.Agent("p", provider).compile().validate(raise_on_error=True) == []


def test_an_unknown_kind_is_a_problem() -> None:
    compiled = flow.Agent("p", flow.Provider(model="m", provider_kind="opnai")).compile()
    with pytest.raises(ValueError, match=r"agent: unknown provider_kind 'opnai'.*'openai'"):
        compiled.validate(raise_on_error=True)


def test_a_change_of_the_workflow_is_validated() -> None:
    workflow = flow.Agent("p", flow.Provider(model="m"))
    compiled = workflow.compile()
    workflow.to(flow.Provider(model="m", api_key="test-key"))
    assert compiled.validate() == []


def test_inside_with_every_memory_stays_open() -> None:
    first = flow.Agent("p", model="m", memory="local")
    store = first.memory
    assert store is not None
    second = flow.Agent("p", model="m", memory=store)
    workflow = flow.Sequential(first, second)
    assert store.refcount == 2
    with workflow.compile() as compiled:
        assert compiled.workflow is workflow
        assert store.refcount == 3
        first.close()
        second.close()
        assert not store.closed
    assert store.closed
