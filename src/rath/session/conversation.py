"""The requests of one run: rendered once, encoded once, growing round by round."""

from __future__ import annotations

from collections.abc import Sequence

from rath.llm.base import ChatClient
from rath.llm.chat_request import RathLLMChatRequest, RathLLMMessage
from rath.llm.draft import ProviderOrigin, open_draft
from rath.session.body import Body
from rath.session.calls import Context, bytes_digest
from rath.session.chunk import ChunkRow, ChunkTable
from rath.session.reasoning import ReasoningIndex
from rath.session.request import Renderer


class Conversation:
    """A draft that follows the rows of a session.

    What it sends is a function of the agent's rows, the session's rows, the recalled notes, the
    request's parameters and tools, the client's way of encoding, and the reasoning texts that the
    record holds for this very endpoint and model: nothing else.
    """

    def __init__(
        self,
        client: ChatClient,
        request: RathLLMChatRequest,
        *,
        head: Sequence[ChunkRow],
        body: Body,
        context: Context | None = None,
        question: str | None = None,
        streaming: bool = False,
        provider_origin: ProviderOrigin = "call",
    ) -> None:
        self.draft = open_draft(
            client, request, streaming=streaming, provider_origin=provider_origin
        )
        self.reasoning = ReasoningIndex(self.draft.facts, body.record)
        self._renderer = Renderer(self.reasoning)
        messages = [*self._renderer.render(head), *self._renderer.close()]
        self.head_digest = bytes_digest(repr(messages).encode(errors="replace"))
        rows = body.table.rows
        at = len(rows) if context is None else context.at
        messages += self._renderer.render(rows[:at])
        if context is not None:
            messages += [*self._renderer.close(), context.message]
        messages += self._renderer.render(rows[at:])
        if question is None:
            messages += self._renderer.hand_over()
        else:
            messages += [*self._renderer.close(), RathLLMMessage("user", question)]
        self.draft.append(messages)
        self._n_rows = len(rows)

    def extend(self, table: ChunkTable) -> None:
        """Add the rows that came since; O(new rows)."""
        messages = self._renderer.render(table.since(self._n_rows))
        self.draft.append([*messages, *self._renderer.close()])
        self._n_rows = len(table)
