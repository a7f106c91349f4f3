"""The router of rath: a model picks the workflow that runs next."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from rath.flow.agent_param import AgentParam, resolve_provider_arg
from rath.flow.empty import EmptyWorkflow
from rath.flow.workflow import Workflow, running
from rath.llm import Provider, RathLLMStreamDelta
from rath.session import Session, select_session

__all__ = ["Selector"]

_ROUTER_PROMPT = (
    "You decide which workflow continues a conversation. Read the conversation and the numbered "
    "list of workflows. Answer with the number of the one that should run next, or with -1 if the "
    "task is done or none of them fits. Answer with that number alone."
)


class Selector(Workflow):
    """Asks a model which of several workflows shall run next on a session.

    It is asked through `forward`, since its answer is a workflow and not a session:
    `next_one = selector.forward(session, triage, repair)`.

    Args:
        provider: Model and endpoint.
        select_instruction: Instructions for the choice.
        description: What it is good for, read by another `Selector`.
        on_event: Kept as an attribute; a choice is not streamed.
    """

    dynamic_reason: ClassVar[str | None] = "a model picks the next workflow at run time"

    def __init__(
        self,
        provider: Provider,
        *,
        select_instruction: str = _ROUTER_PROMPT,
        description: str = "",
        on_event: Callable[[RathLLMStreamDelta], None] | None = None,
    ) -> None:
        super().__init__(description)
        instruction = Session.from_agent_prompt(select_instruction)
        self.agent: AgentParam = AgentParam(
            instruction,
            resolve_provider_arg(provider),
            requires_grad=getattr(select_instruction, "requires_grad", False),
        )
        self.on_event = on_event

    def forward(  # type: ignore[override]  # documented: it returns a workflow, not a session
        self, session: Session, *workflows: Workflow
    ) -> Workflow:
        """Return the workflow that the model chose; waits for the session and for the model.

        Args:
            session: What there is so far.
            workflows: The candidates; the model reads their `description`, or the name of their
                class where they have none.

        Returns:
            One of `workflows`, or a new `EmptyWorkflow` when the model says that none shall run,
            or twice gives an answer that names no candidate; see `select_session`. Without
            candidates that is so, and no model is asked.
        """
        described = [each.description or type(each).__name__ for each in workflows]
        with running(self, session):
            index, _ = select_session(
                session,
                self.agent.agent_session,
                *described,
                agent_provider=self.agent.provider,
            )
        return workflows[index] if index >= 0 else EmptyWorkflow()
