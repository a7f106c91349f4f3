"""A vendor inside the process: real drafts and evidence of our own clients, without a network."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from rath.llm import Provider, RathLLMChatRequest, RathLLMMessage, register_chat_client
from rath.llm.body import BodyWriter, ListWriter, encode_message
from rath.llm.chat_response import (
    RathLLMAssistantMessage,
    RathLLMChatChoice,
    RathLLMChatResponse,
    RathLLMFinishReason,
    RathLLMTokenUsage,
    tool_call_part,
)
from rath.llm.client import VendorClient
from rath.llm.credentials import RequestTarget
from rath.llm.stream import ChunkDecoder, ServedInfo
from rath.llm.transport import ReplyStream, Transport, WireReply

_numbers = itertools.count(1)

Blocks = tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Says:
    """What a vendor answers."""

    text: str | None = None
    calls: tuple[str, ...] = ()
    """Names of tools that are called, without arguments."""

    blocks: Blocks = ()
    finish: RathLLMFinishReason | None = None
    """`tool_calls` or `stop` when left out."""


Answer = Callable[[Sequence[Mapping[str, Any]]], Says]
"""Gets the messages of a request as they were encoded; raises what the call fails with."""


class OfflineVendor:
    """An endpoint that `answer` serves.

    Args:
        answer: Called on the runtime thread for each request.
        endpoint: Its URL; one of its own by default.
        model: Its model; one of its own by default.
    """

    def __init__(
        self, answer: Answer, *, endpoint: str | None = None, model: str | None = None
    ) -> None:
        number = next(_numbers)
        self.answer = answer
        self.endpoint = endpoint or f"https://vendor-{number}.example/v1"
        self.requests: list[list[dict[str, Any]]] = []
        """The messages of each request, with their blocks."""

        self.n_encoded = 0
        """Messages that were encoded so far, by all clients."""

        self.n_clients = 0
        kind = f"offline-{number}"
        register_chat_client(kind, self._client)
        self.provider = Provider(model=model or f"m-{number}", provider_kind=kind)

    def encode(self, message: RathLLMMessage) -> dict[str, Any]:
        """Return a message in OpenAI's form, and its blocks with it."""
        self.n_encoded += 1
        own = {} if message.blocks is None else {"blocks": list(message.blocks)}
        return {**encode_message(message), **own}

    def _client(self, provider: Provider) -> OfflineClient:
        self.n_clients += 1
        return OfflineClient(provider, self)


class OfflineClient(VendorClient):
    """Asks an `OfflineVendor`."""

    kind = "offline"
    renderer = "offline/1"

    def __init__(self, provider: Provider, vendor: OfflineVendor) -> None:
        super().__init__(provider)
        self._vendor = vendor
        self._said = Says()

    def target(self, model: str | None) -> RequestTarget:
        chosen = model or self.provider.model
        if chosen is None:
            raise ValueError("model is required")
        return RequestTarget(
            kind=self.kind,
            endpoint=self._vendor.endpoint,
            model=chosen,
            origins=(("model", "call"),),
            secret="no secret",
        )

    def write_body(self, request: RathLLMChatRequest, *, model: str) -> BodyWriter:
        parameters = {"model": model, "temperature": request.temperature, "stream": False}
        return ListWriter(parameters, None, encode=self._vendor.encode)

    async def connect(self, target: RequestTarget) -> Transport:
        return _Wire(self._vendor)

    def decode(
        self, reply: Mapping[str, Any], target: RequestTarget
    ) -> tuple[RathLLMChatResponse, ServedInfo]:
        calls = tuple(tool_call_part(call_id, name, "{}") for call_id, name in reply["calls"])
        message = RathLLMAssistantMessage(content=reply["text"], tool_calls=calls or None)
        finish: RathLLMFinishReason = reply["finish"] or ("tool_calls" if calls else "stop")
        choice = RathLLMChatChoice(index=0, finish_reason=finish, message=message)
        response = RathLLMChatResponse(
            id="1",
            choices=(choice,),
            created=0,
            model=target.model,
            usage=RathLLMTokenUsage(prompt_tokens=1, completion_tokens=1, total_tokens=2),
        )
        served = ServedInfo.of(response, finish_reason=finish)
        served.blocks = tuple(reply["blocks"])
        return response, served

    def chunk_decoder(self, target: RequestTarget) -> ChunkDecoder:
        raise AssertionError("an offline vendor does not stream")


class _Wire:
    sdk_version = None
    credential = None

    def __init__(self, vendor: OfflineVendor) -> None:
        self._vendor = vendor
        self.endpoint = vendor.endpoint

    async def post(self, body: bytes) -> WireReply:
        messages = json.loads(body)["messages"]
        self._vendor.requests.append(messages)
        said = self._vendor.answer(messages)
        reply = {
            "text": said.text,
            "calls": [(f"call_{next(_numbers)}", name) for name in said.calls],
            "blocks": said.blocks,
            "finish": said.finish,
        }
        return WireReply(200, json.dumps(reply).encode())

    def stream(self, body: bytes) -> AbstractAsyncContextManager[ReplyStream]:
        raise AssertionError("an offline vendor does not stream")

    async def models(self) -> tuple[str, ...]:
        return ()
