"""One model call over a whole session, without tools: what compress and select are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from uuid import UUID

from rath.llm.chat_response import RathLLMChatChoice
from rath.session.body import Body
from rath.session.chunk import RowId
from rath.session.record import ModelCall, Purpose
from rath.session.running.candidates import Candidate, side_request
from rath.session.running.conversation import Conversation, Frame
from rath.session.running.events import Emitter, OnEventCb


@dataclass(frozen=True, slots=True, kw_only=True)
class OneShot:
    """A question about a session that is asked once."""

    purpose: Purpose
    operation: UUID
    candidates: Sequence[Candidate]
    question: str
    """The last message of the user."""

    on_event: OnEventCb | None = None
    row: RowId | None = None
    """The row that the answer will become."""

    async def ask(
        self, user: Body, agent: Body, note: Callable[[ModelCall], None]
    ) -> RathLLMChatChoice:
        """Ask, and return the model's first choice."""
        frame = Frame(
            head=tuple(agent.table),
            request=side_request,
            question=self.question,
            streaming=self.on_event is not None,
        )
        conversation = Conversation(self.candidates, frame)
        async with Emitter(self.on_event) as emitter:
            exchange = await conversation.ask(
                user,
                note,
                operation=self.operation,
                purpose=self.purpose,
                row=self.row,
                on_delta=emitter.sink,
            )
        return exchange.response.primary_choice
