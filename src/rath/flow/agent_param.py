"""The parameters of an agent: its prompt, its provider and its memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from textwrap import indent
from types import MappingProxyType
from typing import Any
from uuid import UUID

from rath._async.deferred import Deferred
from rath._core.dataclasses import dataclass
from rath._core.references import Reduction, Referenced
from rath.llm import Provider
from rath.memory import MemoryStore
from rath.session import ChunkRow, ChunkTable, Session
from rath.session.body import Body
from rath.session.chunk import system_text_chunk
from rath.session.content import SystemText
from rath.session.graph.kind import LineageKind
from rath.session.graph.recording import Provenance

__all__ = ["AgentParam", "Provider"]


@dataclass(slots=True)
class AgentParam(Referenced):
    """The parameters of one agent; `to` and assignments change them in place."""

    agent_session: Session
    """The system session whose rows stand before every transcript."""

    provider: Provider
    memory: MemoryStore | None = None
    requires_grad: bool = field(default=False, kw_only=True)
    """Whether an optimizer may change the prompt."""

    @property
    def system_prompt(self) -> str | None:
        """The text that the rows of the agent begin with; None where they begin otherwise.

        Assigning puts another text in its place; a `Prompt` says whether it may be optimized.
        """
        return self._rows()[0]

    @system_prompt.setter
    def system_prompt(self, text: str) -> None:
        if not isinstance(text, str):
            raise TypeError(f"a system prompt is a str, not {type(text).__name__}")
        self.requires_grad = getattr(text, "requires_grad", self.requires_grad)
        self._set_rows(str(text), self.examples)

    @property
    def examples(self) -> tuple[ChunkRow, ...]:
        """The few-shot rows, which stand behind the prompt in every request; assign others."""
        return self._rows()[1]

    @examples.setter
    def examples(self, rows: Iterable[ChunkRow]) -> None:
        self._set_rows(self.system_prompt, rows)

    def _rows(self) -> tuple[str | None, tuple[ChunkRow, ...]]:
        rows = tuple(self.agent_session.chunk_table)
        first = rows[0].content if rows else None
        return (first.text, rows[1:]) if isinstance(first, SystemText) else (None, rows)

    def _set_rows(self, prompt: str | None, examples: Iterable[ChunkRow]) -> None:
        head = () if prompt is None else (system_text_chunk(prompt),)
        self.agent_session = Session(ChunkTable((*head, *examples)))

    def to(
        self,
        target: Provider | None = None,
        *,
        provider: str | None = None,
        model: str | None = None,
    ) -> AgentParam:
        """Change the provider and return this parameter; arguments as in `resolve_provider_arg`."""
        check_provider(target)
        if target is not None and provider is not None:
            raise ValueError("give a Provider or provider='NAME', not both")
        chosen = provider if target is None else target
        self.provider = resolve_provider_arg(chosen, model=model, base=self.provider)
        return self

    def _pickle_reference(self) -> Reduction:
        """Return prompt, provider and memory: a prompt is no state, and travels as it is."""
        prompt, origin = self.agent_session, self.agent_session.provenance
        stamp = (origin.operator, origin.kind, origin.extras)
        rows = prompt.chunk_table
        return _parameters_again, (
            prompt.id, rows, stamp, self.provider, self.memory, self.requires_grad
        )  # fmt: skip

    @property
    def data(self) -> Mapping[str, Any]:
        """The parameters by name, read-only."""
        return MappingProxyType(
            {
                "agent_session": self.agent_session,
                "provider": self.provider,
                "memory": self.memory,
            }
        )

    def __repr__(self) -> str:
        lines = [f"(agent_session): {self.agent_session!r}", f"(provider): {self.provider}"]
        if self.memory is not None:
            lines.append(f"(memory): {self.memory!r}")
        body = indent("\n".join(lines), "  ")
        return f"AgentParam(\n{body}\n)"


def _parameters_again(
    session: UUID,
    rows: ChunkTable,
    origin: tuple[str, LineageKind, tuple[tuple[str, Any], ...]],
    provider: Provider,
    memory: MemoryStore | None,
    requires_grad: bool,
) -> AgentParam:
    prompt = Session.from_body(
        Deferred.of(Body(rows)), Provenance(*origin[:2], (), origin[2]), id=session
    )
    return AgentParam(prompt, provider, memory, requires_grad=requires_grad)


def check_provider(provider: object) -> None:
    """Refuse what is neither a Provider nor None.

    Raises:
        TypeError: It is something else, such as the name of a model.
    """
    if provider is not None and not isinstance(provider, Provider):
        raise TypeError(
            f"expected a Provider, got {type(provider).__name__}; a model is named with "
            "model='NAME', a configured provider is Provider.from_config('NAME')"
        )


def resolve_provider_arg(
    provider: Provider | str | None = None,
    *,
    model: str | None = None,
    base: Provider | None = None,
) -> Provider:
    """Return the provider that the arguments mean.

    Args:
        provider: A provider, whose own model wins over `model`; or the name of a configured one,
            whose model `model` replaces.
        model: Alone, it changes the model of `base`, or of a plain `Provider()`.
        base: What is used until now.

    Raises:
        ValueError: Neither provider nor model was given.
        KeyError: No provider of that name is configured.
    """
    if isinstance(provider, str):
        configured = Provider.from_config(provider)
        return configured if model is None else replace(configured, model=model)
    if provider is not None:
        is_open = provider.model is None and model is not None
        return replace(provider, model=model) if is_open else provider
    if model is None:
        raise ValueError(
            "no provider given: pass model='NAME' or a Provider; Provider.from_config() is the one "
            "that `rath config init` set up"
        )
    return Provider(model=model) if base is None else replace(base, model=model)
