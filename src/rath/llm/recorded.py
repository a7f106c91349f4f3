"""The body of a call that was made, written again from its evidence: no key, no endpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from pkgutil import resolve_name
from typing import Any

from rath.llm.anthropic.create_kwargs import MessagesWriter
from rath.llm.base import BodyDraft
from rath.llm.body import BodyWriter, ListWriter, RequestBody, encode_message, encode_tool
from rath.llm.chat_request import RathLLMChatRequest, RathLLMFunctionTool, RathLLMMessage
from rath.llm.chat_response import RathLLMChatResponse
from rath.llm.custom_client import RENDERER, named_images_then_text
from rath.llm.evidence import CallEvidence, CallFacts, Exchange, OnDelta
from rath.llm.provider import OutputMode, Provider, ProviderOrigin

_Tools = Sequence[RathLLMFunctionTool]
_Write = Callable[[_Tools, Mapping[str, Any]], BodyWriter]

_NOT_SENT = "a call is only written again from what was recorded of it; it is never sent"


def can_write_again(renderer: str) -> bool:
    """Tell whether the bodies of a renderer, as evidence names it, can be written here."""
    return renderer in _WRITERS


class RecordedClient:
    """Stands for the client of a call that was made, for `open_draft`; it sends nothing.

    Parameters are taken from the evidence as they were sent, whatever a request says.

    Args:
        evidence: Of the call; its renderer is one that `can_write_again` knows.
        output_mode: How a typed answer was asked for.
    """

    def __init__(self, evidence: CallEvidence, *, output_mode: OutputMode = "schema") -> None:
        self._evidence = evidence
        self._provider = Provider(
            model=evidence.requested_model,
            provider_kind=evidence.provider_kind,
            output_mode=output_mode,
        )

    @property
    def provider(self) -> Provider:
        """A provider of the same kind and model, without a key."""
        return self._provider

    def complete(self, req: RathLLMChatRequest) -> RathLLMChatResponse:
        """Refuse: nothing is sent.

        Raises:
            RuntimeError: Always.
        """
        raise RuntimeError(_NOT_SENT)

    def open_draft(
        self, request: RathLLMChatRequest, *, streaming: bool, provider_origin: ProviderOrigin
    ) -> RecordedDraft:
        """Return a draft that writes what the call sent, as far as messages are added to it."""
        return RecordedDraft(self._evidence, request)


class RecordedDraft(BodyDraft):
    """Messages of a call that was made, in the form in which they were sent."""

    def __init__(self, evidence: CallEvidence, request: RathLLMChatRequest) -> None:
        parameters = evidence.parameters
        # Tools that were given as an extra argument are parameters like any other.
        tools = () if "tools" in parameters else request.tools or ()
        body = RequestBody(_WRITERS[evidence.renderer](tools, parameters))
        body.append(request.messages)
        known: dict[str, Any] = {
            item.name: getattr(evidence, item.name) for item in fields(CallFacts)
        }
        known["tools_digest"] = body.tools_digest
        super().__init__(body, CallFacts(**known))

    async def asend(self, *, on_delta: OnDelta | None = None) -> Exchange:
        raise RuntimeError(_NOT_SENT)


def _list_writer(
    tools: _Tools,
    parameters: Mapping[str, Any],
    *,
    encode: Callable[[RathLLMMessage], Mapping[str, Any]] = encode_message,
) -> BodyWriter:
    return ListWriter(
        lambda _: parameters, [encode_tool(tool) for tool in tools] or None, encode=encode
    )


def _litellm_writer(tools: _Tools, parameters: Mapping[str, Any]) -> BodyWriter:
    encode = resolve_name("rath.llm.litellm.client:encode_litellm_message")  # a driver at the edge
    return _list_writer(tools, parameters, encode=encode)


_WRITERS: Mapping[str, _Write] = {
    "openai-chat/1": _list_writer,
    "litellm-chat/1": _litellm_writer,
    "anthropic-messages/1": MessagesWriter.recorded,
    RENDERER: partial(_list_writer, encode=partial(encode_message, parts=named_images_then_text)),
}
"""The writer of each renderer; a change of bytes gives it another name."""
