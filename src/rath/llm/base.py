"""Chat clients and drafts, for those who bring their own: protocols, and the base of our drafts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable

from rath.llm.body import RequestBody
from rath.llm.chat_request import RathLLMChatRequest, RathLLMMessage
from rath.llm.chat_response import RathLLMChatResponse, RathLLMStreamDelta
from rath.llm.evidence import CallEvidence, CallRecorder, DraftFacts, Exchange, OnDelta
from rath.llm.provider import OutputMode, Provider, ProviderOrigin

__all__ = ["ChatClient", "StreamingChatClient"]


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


class ChatDraft(Protocol):
    """Messages that are encoded once each, and a model to send them to."""

    @property
    def facts(self) -> DraftFacts:
        """The same for every call: provider kind, endpoint, model and renderer."""
        ...

    @property
    def digest(self) -> str:
        """sha256 of the exact body that `asend` would send now, as hex."""
        ...

    def append(self, messages: Sequence[RathLLMMessage]) -> None:
        """Add messages at the end."""
        ...

    def body(self) -> bytes:
        """Return the exact body that `asend` would send now."""
        ...

    async def asend(self, *, on_delta: OnDelta | None = None) -> Exchange:
        """Call the model, with retries; runs on the runtime loop.

        Args:
            on_delta: Makes it a streamed call and gets each delta on the runtime thread; what it
                returns is awaited before the next one. Deltas of a try that failed in the middle
                were given already; the tries stand in the evidence.

        Raises:
            ProviderError: The call failed; `evidence_of(error)` tells the rest.
        """
        ...

    def last_evidence(self) -> CallEvidence | None:
        """Return what is known of the last call, also of one that is cancelled or in flight."""
        ...


@runtime_checkable
class DraftingClient(Protocol):
    """A chat client with a draft of its own."""

    def open_draft(
        self,
        request: RathLLMChatRequest,
        *,
        streaming: bool,
        provider_origin: ProviderOrigin,
    ) -> ChatDraft:
        """Return a draft that holds the request's messages already."""
        ...


@runtime_checkable
class SchemaClient(Protocol):
    """A chat client that says how it is asked for a typed answer."""

    def output_mode(self, *, with_tools: bool) -> OutputMode:
        """Return "schema" where it passes `response_format` on, "tool" elsewhere."""
        ...


class BodyDraft(ChatDraft):
    """A draft over a growing body; a subclass knows how it is sent."""

    def __init__(self, body: RequestBody, facts: DraftFacts, *, streaming: bool = False) -> None:
        self._body = body
        self._facts = facts
        self._streaming = streaming
        self._call: CallRecorder | None = None

    @property
    def facts(self) -> DraftFacts:
        return self._facts

    @property
    def digest(self) -> str:
        return self._body.digest(streaming=self._streaming)

    def append(self, messages: Sequence[RathLLMMessage]) -> None:
        self._body.append(messages)

    def body(self) -> bytes:
        return self._body.content(streaming=self._streaming)

    def last_evidence(self) -> CallEvidence | None:
        return None if self._call is None else self._call.evidence()

    def _record_call(self, *, streaming: bool) -> CallRecorder:
        """Return the recorder of a call that begins now."""
        self._call = CallRecorder(
            self._facts,
            parameters=self._body.parameters(streaming=streaming),
            digest=self._body.digest(streaming=streaming),
        )
        return self._call


def can_stream(client: ChatClient) -> bool:
    """Tell whether a client can give its answers as they come."""
    return callable(getattr(client, "complete_stream", None))


def require_streaming(client: ChatClient) -> None:
    """Refuse a client that cannot stream.

    Raises:
        TypeError: The client has no `complete_stream`.
    """
    if not can_stream(client):
        raise TypeError(
            f"{type(client).__name__} cannot stream: it has no `complete_stream`. Give it one "
            "(see rath.llm.StreamingChatClient), or leave out on_event"
        )
