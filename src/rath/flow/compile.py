"""What a workflow needs, read from it without running it: agents, memories, keys, choices."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rath.errors import RathError
from rath.flow.agent_param import AgentParam
from rath.llm import Provider, chat_client_for
from rath.memory import MemoryStore
from rath.session import Session

if TYPE_CHECKING:
    from rath.flow.workflow import Workflow

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

    def provider_models(self) -> list[str]:
        """Return the distinct model names, sorted; agents that name none are left out."""
        return sorted({agent.provider.model for agent in self.agents if agent.provider.model})

    def provider_kinds(self) -> list[str]:
        """Return the distinct provider kinds, sorted."""
        return sorted({_kind(agent.provider) for agent in self.agents})


def collect_manifest(workflow: Workflow) -> ResourceManifest:
    """Return what a workflow can reach; nothing is opened or called."""
    manifest = ResourceManifest()
    for path, module in workflow.named_modules():
        if module.dynamic_reason is not None:
            place = path or type(module).__name__
            manifest.dynamic_nodes.append(DynamicNode(place, "selector", module.dynamic_reason))
        for name, part in module.named_agents():
            manifest.agents.append(_resource(f"{path}.{name}" if path else name, part))
    return manifest


class CompiledWorkflow:
    """A workflow with its manifest; inside `with`, the memories of all its agents stay open.

    Args:
        workflow: Later changes of it show in calls and in `validate`, not in `manifest`.
    """

    __slots__ = ("_acquired", "manifest", "workflow")

    def __init__(self, workflow: Workflow) -> None:
        self.workflow = workflow
        self.manifest = collect_manifest(workflow)
        self._acquired = ExitStack()

    def __call__(self, session: Session, /) -> Session:
        return self.workflow(session)

    def named_children(self) -> tuple[tuple[str, Workflow], ...]:
        """Return the workflows that the compiled one holds directly."""
        return self.workflow.named_children()

    def validate(self, *, raise_on_error: bool = False) -> list[str]:
        """Return what would keep the agents from running; asks no endpoint.

        Checked are the provider kind, its key, and the extra that it needs.

        Raises:
            ValueError: There are problems, and `raise_on_error` is True.
        """
        checked = ((agent.path, _problem(agent.provider)) for agent in self._agents())
        problems = [f"{path}: {problem}" for path, problem in checked if problem is not None]
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


def _problem(provider: Provider) -> str | None:
    try:
        # Making a client looks up kind, key and extra; nothing is sent.
        chat_client_for(provider)
    except (ValueError, RathError) as exc:
        return str(exc)
    return None


def _kind(provider: Provider) -> str:
    return provider.provider_kind or "openai"
