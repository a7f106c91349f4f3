"""The chat client for Anthropic and every server that speaks its Messages API."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, ClassVar

from rath._async.retry import Sleep
from rath.llm import transport
from rath.llm.anthropic.create_kwargs import MessagesWriter
from rath.llm.anthropic.normalize import decode_message
from rath.llm.anthropic.stream_deltas import AnthropicChunkDecoder
from rath.llm.body import BodyWriter, refuse_call_options
from rath.llm.chat_request import RathLLMChatRequest
from rath.llm.chat_response import RathLLMChatResponse
from rath.llm.client import VendorClient
from rath.llm.credentials import ANTHROPIC, RequestTarget, checked_url, public_url, resolve_account
from rath.llm.provider import Provider
from rath.llm.stream import ChunkDecoder, ServedInfo

__all__ = ["ANTHROPIC_RETRYABLE", "RathAnthropicChatClient"]

ANTHROPIC_RETRYABLE: tuple[type[Exception], ...]
"""Exceptions of the SDK that another try may mend; imports the SDK on first use."""

DEFAULT_BASE_URL = "https://api.anthropic.com"
API_VERSION = "2026-10-21"
"""The one that the SDK of the vendor asks for."""

MESSAGES_PATH = "/v1/messages"
_VERSION_PATH = "/v1"
"""It belongs to the paths, but many base URLs name it too."""

_MODELS = transport.ModelListing("/v1/models", query=(("limit", "1000"),), cursor="after_id")


class MessagesClient(VendorClient):
    """Writes and reads messages; a subclass knows where they go."""

    kind: ClassVar[str] = "anthropic"
    renderer: ClassVar[str] = "anthropic-messages/1"
    takes_schema: ClassVar[bool] = True

    def write_body(self, request: RathLLMChatRequest, *, model: str) -> BodyWriter:
        refuse_call_options(request.extra_create_args)
        return MessagesWriter(request, model=model)

    def decode(
        self, reply: Mapping[str, Any], target: RequestTarget
    ) -> tuple[RathLLMChatResponse, ServedInfo]:
        return decode_message(reply, target)

    def chunk_decoder(self, target: RequestTarget) -> ChunkDecoder:
        return AnthropicChunkDecoder(target)


class RathAnthropicChatClient(MessagesClient):
    """Speaks the Messages API, whole and streamed.

    The stable part of a prompt is marked for the vendor's cache;
    `extra_create_args={"cache_control": None}` takes the marks away, and another value is used in
    their place.

    Args:
        provider: Endpoint, key, model and patience; see `Provider`.
        sleep: Waits between tries; for tests.

    Raises:
        ValueError: There is no key, or the base_url is not one.
    """

    def __init__(self, provider: Provider, *, sleep: Sleep = asyncio.sleep) -> None:
        super().__init__(provider, sleep=sleep)
        account = resolve_account(
            provider,
            kind=self.kind,
            variables=ANTHROPIC,
            default_base_url=DEFAULT_BASE_URL,
            missing="No Anthropic api_key found",
        )
        self._account = account
        root = checked_url(account.base_url.value, account.base_url.origin)
        self._endpoint = transport.ApiEndpoint(
            base_url=root.removesuffix(_VERSION_PATH),
            key_origin=account.api_key.origin,
            from_project=account.from_project,
            headers_variable="ANTHROPIC_CUSTOM_HEADERS",
            api_key=account.api_key.value,
            headers=(("anthropic-version", API_VERSION),),
            listing=_MODELS,
        )

    def target(self, model: str | None) -> RequestTarget:
        account = self._account
        advice = " in Provider(model=...), in ANTHROPIC_DEFAULT_MODEL or in the config"
        return account.target(
            account.model_for(model, advice=advice),
            kind=self.kind,
            endpoint=public_url(self._endpoint.base_url + MESSAGES_PATH),
            path=MESSAGES_PATH,
            timeout=self.timeout,
        )

    def resolved_settings(self) -> object:
        return self._account, self._endpoint

    async def connect(self, target: RequestTarget) -> transport.Transport:
        return await transport.open_transport(self._endpoint, target)

    def warm_up(self) -> None:
        transport.warm_up(self._endpoint)


def __getattr__(name: str) -> Any:
    """Give `ANTHROPIC_RETRYABLE`, which needs the SDK, on first use."""
    if name == "ANTHROPIC_RETRYABLE":
        return transport.retryable_errors("anthropic")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
