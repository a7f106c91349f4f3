"""The requirements of a workflow, read without running it: agents, memories, keys, choices."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import field
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rath._core.dataclasses import dataclass
from rath._core.lazy_imports import lazy_function
from rath._core.references import Reduction, Referenced
from rath.flow.agent_param import AgentParam
from rath.llm import ChatClient, Provider
from rath.llm.client import require_model
from rath.llm.registry import NoClient, foresee_refusals, make_client
from rath.memory import MemoryStore
from rath.session import Session

if TYPE_CHECKING:
    from rath.flow.workflow import Workflow

_state_digest = lazy_function("rath.flow.parameters", "state_digest")

__all__ = [
    "AgentResource",
    "CompiledWorkflow",
    "DynamicNode",
    "ResourceManifest",
    "collect_manifest",
]


@dataclass(frozen=True)
class AgentResource:
    """One agent of a workflow."""

    path: str
    """Dotted attribute path from the workflow to the agent's parameters."""

    provider: Provider
    has_memory: bool
    agent_session_id: str


@dataclass(frozen=True)
class DynamicNode:
    """A place where it is decided only at run time what runs next."""

    path: str
    kind: str
    reason: str


@dataclass
class ResourceManifest:
    """Everything that a workflow can reach, in the order of `named_modules`."""

    agents: list[AgentResource] = field(default_factory=list[AgentResource])
    dynamic_nodes: list[DynamicNode] = field(default_factory=list[DynamicNode])
    state_digest: str = ""
    """The sha256 of `state_dict()`, which the record of each run names."""

    def provider_models(self) -> list[str]:
        """Return the distinct model names, sorted; agents that name none are left out."""
        return sorted({agent.provider.model for agent in self.agents if agent.provider.model})

    def provider_kinds(self) -> list[str]:
        """Return the distinct provider kinds, sorted."""
        return sorted({_kind(agent.provider) for agent in self.agents})


def collect_manifest(workflow: Workflow) -> ResourceManifest:
    """Return what a workflow can reach; nothing is opened or called."""
    manifest = ResourceManifest(state_digest=_state_digest(workflow))
    for path, module in workflow.named_modules():
        if module.dynamic_reason is not None:
            place = path or type(module).__name__
            manifest.dynamic_nodes.append(DynamicNode(place, "selector", module.dynamic_reason))
        for name, part in module.named_agents():
            manifest.agents.append(_resource(f"{path}.{name}" if path else name, part))
    return manifest


class CompiledWorkflow(Referenced):
    """A workflow with its manifest; inside `with`, the memories of all its agents stay open.

    Args:
        workflow: Later changes of it show in calls and in `validate`, not in `manifest`.
    """

    __slots__ = ("_acquired", "manifest", "workflow")

    def __init__(self, workflow: Workflow) -> None:
        self.workflow: Workflow = workflow
        self.manifest: ResourceManifest = collect_manifest(workflow)
        self._acquired = ExitStack()

    def _pickle_reference(self) -> Reduction:
        """Return the workflow; the memories that it keeps open here stay here."""
        return CompiledWorkflow, (self.workflow,)

    def __call__(self, session: Session, text: str | None = None) -> Session:
        # A workflow with a `__call__` of its own may take the session alone.
        return self.workflow(session) if text is None else self.workflow(session, text)

    def named_children(self) -> tuple[tuple[str, Workflow], ...]:
        """Return the workflows that the compiled one holds directly."""
        return self.workflow.named_children()

    def validate(self, *, raise_on_error: bool = False, live: bool = False) -> list[str]:
        """Return what would keep the agents from running; an empty list when nothing would.

        Checked are the provider kind, its key, the extra that it needs and that a model is named,
        for every provider and its fallbacks.

        Args:
            raise_on_error: Raise instead of returning problems.
            live: Also ask the endpoints for their models, each once and all at the same time, and
                wait for that. An endpoint that lists none is no problem; it is logged as info.

        Raises:
            ValueError: There are problems, and `raise_on_error` is True.
        """
        checks = [check for agent in self._agents() for check in _checks(agent)]
        reasons = [check.problem for check in checks]
        if live:
            open_ones = [index for index, check in enumerate(checks) if check.client is not None]
            clients = [client for check in checks if (client := check.client) is not None]
            for index, refusal in zip(open_ones, foresee_refusals(clients), strict=True):
                reasons[index] = refusal
        told = zip(checks, reasons, strict=True)
        problems = [f"{check.place}: {reason}" for check, reason in told if reason is not None]
        if problems and raise_on_error:
            raise ValueError(f"the workflow cannot run: {'; '.join(problems)}")
        return problems

    def __enter__(self) -> Self:
        with ExitStack() as acquired:
            for store in self._stores():
                acquired.enter_context(store)
            # A store that cannot be acquired gives back those before it.
            self._acquired.enter_context(acquired.pop_all())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._acquired.close()

    def __repr__(self) -> str:
        agents, nodes = len(self.manifest.agents), len(self.manifest.dynamic_nodes)
        return f"CompiledWorkflow({self.workflow!r}, agents={agents}, dynamic_nodes={nodes})"

    def _agents(self) -> list[AgentResource]:
        return collect_manifest(self.workflow).agents

    def _stores(self) -> list[MemoryStore]:
        """Return each reachable memory once."""
        stores: dict[int, MemoryStore] = {}
        for module in self.workflow.modules():
            for _, part in module.named_agents():
                if part.memory is not None:
                    stores[id(part.memory)] = part.memory
        return list(stores.values())


def _resource(path: str, part: AgentParam) -> AgentResource:
    has_memory = part.memory is not None
    return AgentResource(path, part.provider, has_memory, str(part.agent_session.id))


@dataclass(frozen=True, slots=True)
class _ProviderCheck:
    """A provider of an agent, or a fallback of it, without asking its endpoint."""

    place: str
    client: ChatClient | None = None
    problem: str | None = None


def _checks(agent: AgentResource) -> list[_ProviderCheck]:
    fallbacks = enumerate(agent.provider.fallbacks, start=1)
    return [
        _check(agent.path, agent.provider),
        *(_check(f"{agent.path}, fallback {n}", fallback) for n, fallback in fallbacks),
    ]


def _check(place: str, provider: Provider) -> _ProviderCheck:
    client = make_client(provider)
    if isinstance(client, NoClient):
        return _ProviderCheck(place, problem=client.problem)
    try:
        require_model(client, provider.model)
    except ValueError as exc:
        return _ProviderCheck(place, problem=str(exc))
    return _ProviderCheck(place, client)


def _kind(provider: Provider) -> str:
    return provider.provider_kind or "openai"
