"""The requests of one run: rendered once, encoded once, growing round by round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from rath.llm.base import ChatClient
from rath.llm.chat_request import RathLLMChatRequest, RathLLMMessage
from rath.llm.draft import ProviderOrigin, open_draft
from rath.session.aside import aside
from rath.session.body import Body
from rath.session.calls import Context, bytes_digest
from rath.session.chunk import ChunkRow, ChunkTable
from rath.session.reasoning import ReasoningIndex
from rath.session.request import Renderer


class Conversation:
    """A draft that follows the rows of a session.

    What it sends is a function of the agent's rows, the session's rows, the recalled notes, the
    request's parameters and tools, the client's way of encoding, and the reasoning texts that the
    record holds for this very endpoint and model: nothing else. It is empty until it has begun.
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
        self.draft.append(messages)
        self._table = body.table
        self._context = context
        self._question = question
        self._n_rows = 0

    def begin(self) -> None:
        """Add the rows that are there, the recalled notes and the question; O(rows)."""
        rows = self._table.rows
        at = len(rows) if self._context is None else self._context.at
        messages = self._renderer.render(rows[:at])
        if self._context is not None:
            messages += [*self._renderer.close(), self._context.message]
        messages += self._renderer.render(rows[at:])
        if self._question is None:
            messages += self._renderer.hand_over()
        else:
            messages += [*self._renderer.close(), RathLLMMessage("user", self._question)]
        self.draft.append(messages)
        self._n_rows = len(rows)

    async def begun(self) -> Self:
        """Begin without stalling the runtime, however many rows there are."""
        await aside(len(self._table), self.begin)
        return self

    def extend(self, table: ChunkTable) -> None:
        """Add the rows that came since; O(new rows)."""
        messages = self._renderer.render(table.since(self._n_rows))
        self.draft.append([*messages, *self._renderer.close()])
        self._n_rows = len(table)
