"""What a chat client is, for those who bring one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, runtime_checkable

from rath.llm.chat_request import RathLLMChatRequest
from rath.llm.chat_response import RathLLMChatResponse, RathLLMStreamDelta
from rath.llm.provider import Provider

__all__ = ["ChatClient", "StreamingChatClient", "require_streaming"]


@runtime_checkable
class ChatClient(Protocol):
    """Answers one request. Each method may be `def` or `async def`."""

    @property
    def provider(self) -> Provider:
        """The provider that the client was made for."""
        ...

    def complete(self, req: RathLLMChatRequest) -> RathLLMChatResponse:
        """Return the whole answer."""
        ...


@runtime_checkable
class StreamingChatClient(ChatClient, Protocol):
    """A chat client that can also answer in pieces."""

    def complete_stream(self, req: RathLLMChatRequest) -> Iterator[RathLLMStreamDelta]:
        """Yield the answer piece by piece; may be a generator, plain or async."""
        ...


def require_streaming(client: ChatClient) -> None:
    """Refuse a client that cannot stream.

    Raises:
        TypeError: The client has no `complete_stream`.
    """
    if not callable(getattr(client, "complete_stream", None)):
        raise TypeError(
            f"{type(client).__name__} cannot stream: it has no `complete_stream`. Give it one "
            "(see rath.llm.StreamingChatClient), or leave out on_event"
        )
