"""The layer that replaces a long session by a short one."""

from __future__ import annotations

from collections.abc import Callable

from rath.flow.agent_param import AgentParam, resolve_provider_arg
from rath.flow.workflow import Workflow
from rath.llm import Provider, RathLLMStreamDelta
from rath.session import Session, run_session_compress

__all__ = ["Compressor"]


class Compressor(Workflow):
    """Maps a session to one with a single user row: a summary that its model wrote.

    Args:
        compress_instruction: What the summary shall keep and how it shall be written.
        provider: Model and endpoint.
        on_event: Called with each delta of a streamed answer.
        description: What it is good for, read by a `Selector`.
    """

    def __init__(
        self,
        compress_instruction: str,
        provider: Provider,
        *,
        on_event: Callable[[RathLLMStreamDelta], None] | None = None,
        description: str = "",
    ) -> None:
        super().__init__(description)
        instruction = Session.from_agent_prompt(compress_instruction)
        self.agent: AgentParam = AgentParam(
            instruction,
            resolve_provider_arg(provider),
            requires_grad=getattr(compress_instruction, "requires_grad", False),
        )
        self.on_event = on_event

    def forward(self, session: Session) -> Session:
        """Submit the compression of `session`, which may be pending; returns at once."""
        return run_session_compress(
            session,
            self.agent.agent_session,
            agent_provider=self.agent.provider,
            on_event=self.on_event,
            lazy=True,
        )
