"""`compile()`: dry runs, and one live call of each model."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from rath import flow
from rath.errors import ModelNotFoundError
from rath.flow.compile import AgentResource, DynamicNode, collect_manifest
from rath.session import Session
from rath.testing import ScriptedClient
from tests.support import chat_replies
from tests.support.asking import KEY
from tests.support.chat_server import ChatServer
from tests.support.endpoints import Serve, Servers


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


def test_a_key_of_the_environment_or_the_provider_is_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = flow.Provider(model="m", api_key="test-key")
    assert flow.Agent("p", own).compile().validate(raise_on_error=True) == []
    monkeypatch.setenv("OPENAI_API_KEY", "test-key")
    assert Team(flow.Provider(model="m")).compile().validate() == []


def test_an_unknown_kind_is_a_problem() -> None:
    compiled = flow.Agent("p", flow.Provider(model="m", provider_kind="smoke")).compile()
    with pytest.raises(ValueError, match=r"agent: unknown provider_kind 'smoke'.*openai"):
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


CLAUDE = "claude-opus-4-1"


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start servers that are closed after the test."""
    with Servers() as servers:
        yield servers.start


def at(server: ChatServer, **fields: Any) -> flow.Provider:
    given: dict[str, Any] = {"model": "gpt-9", "api_key": KEY, **fields}
    return flow.Provider(base_url=server.base_url, **given)


def n_lists(server: ChatServer) -> int:
    return len(server.requests) - len(server.calls)


def test_an_example_that_is_pinned_to_another_vendors_model(
    serve: Serve,
) -> None:
    server = serve(models=["gpt-9", "gpt-9-mini"])
    agent = flow.Agent("You are a friendly guide.", at(server, model=CLAUDE))
    assert agent.compile().validate() == []
    (problem,) = agent.compile().validate(live=True)
    assert problem == (
        f"agent: {server.base_url}/chat/completions does not offer the model {CLAUDE!r}, which "
        "came from the call. If another vendor serves it, name that one with "
        "Provider(provider_kind=...). It offers 'gpt-9', 'gpt-9-mini'"
    )
    assert server.calls == []


def test_the_same_mistake_in_a_run_is_reported_without_a_list_before_it(
    serve: Serve,
) -> None:
    server = serve(models=["gpt-9", "gpt-9-mini"])
    server.queue(chat_replies.status_error(404, "no such model"))
    agent = flow.Agent("You are a friendly guide.", at(server, model=CLAUDE))
    with pytest.raises(ModelNotFoundError, match=r"came from the call.*It offers 'gpt-9'"):
        agent(Session.from_user_message("hi")).text()
    assert [request.method for request in server.requests] == ["POST", "GET"]


def test_a_run_that_works_asks_for_no_list(serve: Serve) -> None:
    server = serve(models=["gpt-9"])
    server.queue(chat_replies.completion("hello"))
    agent = flow.Agent("You are a friendly guide.", at(server))
    assert agent.compile()(Session.from_user_message("hi")).text() == "hello"
    assert n_lists(server) == 0


def test_the_origin_of_a_name_from_the_environment_is_reported(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_DEFAULT_MODEL", "gpt-8")
    agent = flow.Agent("p", at(serve(models=["gpt-9"]), model=None))
    (problem,) = agent.compile().validate(live=True)
    assert "'gpt-8', which came from env OPENAI_DEFAULT_MODEL. Did you mean 'gpt-9'?" in problem


@pytest.mark.parametrize(
    ("model", "listed"),
    [
        ("gpt-9", "gpt-9"),
        ("gpt-9", "gpt-9-2026-10-01"),
        ("gpt-9", "models/gpt-9"),
        ("claude-9-latest", "claude-9-20261001"),
        ("openai/gpt-9:online", "openai/gpt-9"),
        ("openai/gpt-9", "openai/*"),
        ("gpt-9", None),  # an empty list says nothing
    ],
)
def test_a_model_that_is_offered_is_no_problem(
    serve: Serve, model: str, listed: str | None
) -> None:
    models = chat_replies.model_list(*([] if listed is None else [listed]))
    agent = flow.Agent("p", at(serve(models=models), model=model))
    assert agent.compile().validate(live=True) == []


def test_each_endpoint_is_asked_once_and_every_agent_is_judged(
    serve: Serve,
) -> None:
    first, second = serve(models=["gpt-9"]), serve(models=["o-1"])
    team = flow.Sequential(
        flow.Agent("a", at(first)),
        flow.Agent("b", at(first, model="gpt-8")),
        flow.Compressor("short", at(second)),
        flow.Selector(at(second, model="o-2")),
    )
    problems = team.compile().validate(live=True)
    assert [problem.partition(":")[0] for problem in problems] == [
        "1.agent", "2.agent", "3.agent",
    ]  # fmt: skip
    assert (n_lists(first), n_lists(second)) == (1, 1)


def test_endpoints_are_asked_at_the_same_time(serve: Serve) -> None:
    gate = chat_replies.Gate()
    listing = chat_replies.model_list("gpt-9")

    def release(_: object) -> chat_replies.Reply:
        gate.release()
        return listing

    first, second = serve(models=chat_replies.held(listing, gate)), serve(models=release)
    pair = flow.Sequential(flow.Agent("a", at(first)), flow.Agent("b", at(second)))
    assert pair.compile().validate(live=True) == []


def test_another_key_is_another_account(serve: Serve) -> None:
    server = serve(models=["gpt-9"])
    pair = flow.Sequential(
        flow.Agent("a", at(server)), flow.Agent("b", at(server, api_key="another-key"))
    )
    assert pair.compile().validate(live=True) == []
    assert n_lists(server) == 2


@pytest.mark.parametrize("status", [404, 403, 500])
def test_an_endpoint_that_lists_nothing_is_no_problem_but_logged(
    serve: Serve, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    server = serve(models=chat_replies.status_error(status, "no list here"))
    with caplog.at_level(logging.INFO, logger="rath"):
        assert flow.Agent("p", at(server)).compile().validate(live=True) == []
    assert "whether 'gpt-9' is offered is not known" in caplog.text
    assert KEY not in caplog.text


def test_a_refused_key_is_a_problem(serve: Serve) -> None:
    server = serve(models=chat_replies.status_error(401, f"bad key {KEY}"))
    (problem,) = flow.Agent("p", at(server)).compile().validate(live=True)
    assert "answered with status 401: bad key ***" in problem


def test_an_endpoint_that_is_not_there_is_a_problem(serve: Serve) -> None:
    server = serve()
    server.close()
    compiled = flow.Agent("p", at(server)).compile()
    with pytest.raises(ValueError, match=r"the workflow cannot run: agent: the connection to"):
        compiled.validate(live=True, raise_on_error=True)


def test_what_is_wrong_offline_is_not_asked(serve: Serve) -> None:
    server = serve(models=["gpt-9"])
    (problem,) = flow.Agent("p", at(server, model=None)).compile().validate(live=True)
    assert problem.startswith("agent: model is required")
    assert server.requests == []


def test_clients_of_others_are_not_asked() -> None:
    model = ScriptedClient([])
    assert flow.Agent("p", model.provider).compile().validate(live=True) == []
    assert model.requests == []


def test_fallbacks_are_checked_like_their_provider(serve: Serve) -> None:
    server = serve(models=["gpt-9"])
    fallbacks = [
        flow.Provider(model="m", provider_kind="smoke"),
        flow.Provider(model="m", provider_kind="anthropic"),
        flow.Provider(base_url=server.base_url, api_key=KEY),
        at(server, model="gpt-7"),
    ]
    compiled = flow.Agent("p", at(server, fallbacks=fallbacks)).compile()
    offline = compiled.validate()
    assert [problem.partition(":")[0] for problem in offline] == [
        "agent, fallback 1", "agent, fallback 2", "agent, fallback 3",
    ]  # fmt: skip
    assert "unknown provider_kind 'smoke'" in offline[0]
    assert "No Anthropic api_key" in offline[1]
    assert "model is required" in offline[2]
    live = compiled.validate(live=True)
    assert live[:3] == offline
    assert live[3].startswith("agent, fallback 4: ")
    assert "does not offer the model 'gpt-7'" in live[3]
