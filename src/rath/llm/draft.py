"""One conversation with a model that is sent again and again as it grows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from rath.llm.base import ChatClient
from rath.llm.call import CallFacts, OnDelta, ProviderOrigin
from rath.llm.chat_request import RathLLMChatRequest, RathLLMMessage
from rath.llm.exchange import CallEvidence, Exchange
from rath.llm.foreign import ForeignDraft
from rath.llm.provider import OutputMode, Provider
from rath.llm.vendor import VendorClient

__all__ = [
    "ChatDraft",
    "DraftingClient",
    "OnDelta",
    "ProviderOrigin",
    "SchemaClient",
    "open_draft",
    "output_mode",
    "require_model",
]


class ChatDraft(Protocol):
    """Messages that are encoded once each, and a model to send them to."""

    @property
    def facts(self) -> CallFacts:
        """What is the same for every call: provider kind, endpoint, model and renderer."""
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


def open_draft(
    client: ChatClient,
    request: RathLLMChatRequest,
    *,
    streaming: bool = False,
    provider_origin: ProviderOrigin = "call",
    provider: Provider | None = None,
) -> ChatDraft:
    """Return a draft for any chat client.

    A client that only knows `complete` and `complete_stream` gets a whole request each time.

    Args:
        client: The client that will be asked.
        request: Parameters, tools and the messages that are there already.
        streaming: Whether `digest` and `body` are those of streamed calls.
        provider_origin: Who gave the client's provider; only told in the evidence.
        provider: Sets the limits of calls through a client that is not ours and was not made for
            it; the client's own one by default.

    Raises:
        ValueError: The request names no model and the client has none either.
    """
    if isinstance(client, DraftingClient) and not _answers_by_itself(client):
        return client.open_draft(request, streaming=streaming, provider_origin=provider_origin)
    return ForeignDraft(
        client, request, streaming=streaming, provider_origin=provider_origin, provider=provider
    )


def output_mode(
    client: ChatClient, provider: Provider, *, with_tools: bool, strict: bool
) -> OutputMode:
    """Return how a typed answer is asked for.

    Args:
        client: Is asked for what `provider` leaves open; one that has no method `output_mode` is
            taken to know nothing of schemas.
        provider: Parameters of the call.
        with_tools: Whether the request offers tools.
        strict: Whether the schema of the answer is strict.
    """
    if provider.output_mode is not None:
        return provider.output_mode
    if isinstance(client, SchemaClient) and (
        strict or getattr(client, "takes_loose_schema", False)
    ):
        return client.output_mode(with_tools=with_tools)
    return "tool"


def require_model(client: ChatClient, model: str | None) -> None:
    """Refuse a call for which nobody names a model, without making it.

    Only our own clients must know one: a client of somebody else, and one that answers by itself,
    may need no name.

    Raises:
        ValueError: Neither `model` nor `client` names one.
    """
    if isinstance(client, VendorClient) and not _answers_by_itself(client):
        client.route(model)


def _answers_by_itself(client: DraftingClient) -> bool:
    """Tell whether a subclass overrides what its parent's draft would go past."""
    for name in ("complete", "complete_stream"):
        for owner in type(client).__mro__:
            if "open_draft" in vars(owner):
                break
            if name in vars(owner):
                return True
    return False
