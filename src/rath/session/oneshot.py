"""One model call over a whole session, without tools: what compress and select are made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from uuid import UUID

from rath.llm.base import ChatClient
from rath.llm.chat_request import RathLLMChatRequest
from rath.llm.chat_response import RathLLMChatChoice
from rath.llm.draft import ProviderOrigin
from rath.llm.provider import Provider
from rath.session.body import Body
from rath.session.calls import Call, call_model
from rath.session.chat_request_build import provider_into_chat_request
from rath.session.chunk import RowId
from rath.session.conversation import Conversation
from rath.session.events import Emitter, OnEventCb
from rath.session.record import ModelCall, Purpose


@dataclass(frozen=True, slots=True, kw_only=True)
class OneShot:
    """A question about a session that is asked once."""

    purpose: Purpose
    operation: UUID
    client: ChatClient
    provider: Provider
    provider_origin: ProviderOrigin
    question: str
    """The last message of the user."""

    on_event: OnEventCb | None = None
    row: RowId | None = None
    """The row that the answer will become."""

    async def ask(
        self, user: Body, agent: Body, note: Callable[[ModelCall], None]
    ) -> RathLLMChatChoice:
        """Ask, and return the model's first choice."""
        conversation = await Conversation(
            self.client,
            side_request(self.provider),
            head=tuple(agent.table),
            body=user,
            question=self.question,
            streaming=self.on_event is not None,
            provider_origin=self.provider_origin,
        ).begun()
        call = Call(
            operation=self.operation,
            purpose=self.purpose,
            head_digest=conversation.head_digest,
            n_rows=len(user.table),
            question=self.question,
            row=self.row,
        )
        async with Emitter(self.on_event) as emitter:
            exchange = await call_model(conversation.draft, call, note, on_delta=emitter.sink)
        return exchange.response.primary_choice


def side_request(provider: Provider) -> RathLLMChatRequest:
    """Return the request of a side call: no tools, and none wanted whatever the provider says."""
    bare = replace(provider, tool_choice=None)
    return provider_into_chat_request((), None, bare, default_tool_choice="none")
