"""The chat client for every vendor that LiteLLM speaks to."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, ClassVar

from rath._async.retry import Sleep
from rath.config.env import env_value
from rath.errors import MissingExtra
from rath.llm.body import BodyWriter
from rath.llm.chat_request import RathLLMChatRequest
from rath.llm.chat_response import RathLLMChatResponse
from rath.llm.credentials import (
    LITELLM,
    Account,
    RequestTarget,
    find_account,
    refuse_unsendable,
    resolve_account,
)
from rath.llm.endpoint import checked_url, password_in, public_url
from rath.llm.litellm.decode import LiteLLMChunkDecoder, decode_litellm
from rath.llm.litellm.encode import encode_litellm_message, refuse_call_settings
from rath.llm.litellm.target import LiteLLMTarget, open_litellm
from rath.llm.openai.client import CompletionsClient
from rath.llm.openai.create_kwargs import body_writer
from rath.llm.provider import Provider, ProviderOrigin
from rath.llm.stream import ChunkDecoder, ServedInfo
from rath.llm.transport import Transport

__all__ = ["LITELLM_RETRYABLE", "RathLiteLLMChatClient"]

LITELLM_RETRYABLE: tuple[type[Exception], ...]
"""Exceptions of the library that another try may mend; imports the library on first use."""


_SENT_VARIABLES = (
    "OPENAI_CUSTOM_HEADERS", "OPENAI_ORG_ID", "OPENAI_ORGANIZATION", "OPENAI_PROJECT_ID",
)  # fmt: skip
"""What they hold is sent to every server that speaks OpenAI's protocol."""


class RathLiteLLMChatClient(CompletionsClient):
    """Asks through LiteLLM; the model's name says whom, such as `anthropic/...` or `ollama/...`.

    Without a key, LiteLLM looks for the vendor's own in the environment. The digest of a request
    is that of the arguments that LiteLLM gets, not of what it makes of them.

    Args:
        provider: `base_url` only for a server that is not the vendor's own; see `Provider`.
        sleep: Waits between tries; for tests.

    Raises:
        MissingExtra: LiteLLM is not installed.
        ValueError: The base_url is not one, or a project names it and there is no key for it.
    """

    kind: ClassVar[str] = "litellm"
    sdk: ClassVar[str | None] = "litellm"
    renderer: ClassVar[str] = "litellm-chat/1"
    # It depends on the vendor, the model and the tools, and LiteLLM's own word on it is a table.
    takes_schema: ClassVar[bool] = False

    def __init__(self, provider: Provider, *, sleep: Sleep = asyncio.sleep) -> None:
        super().__init__(provider, sleep=sleep)
        if find_spec("litellm") is None:
            raise MissingExtra("litellm", 'Provider(provider_kind="litellm")')
        self._account = account = _account(provider, self.kind)
        self._target = LiteLLMTarget(
            api_base=account.base_url.value.rstrip("/") or None,
            key_origin=account.api_key.origin,
            api_key=account.api_key.value,
        )

    def target(
        self, model: str | None, *, provider_origin: ProviderOrigin = "call"
    ) -> RequestTarget:
        advice = (
            ', such as "anthropic/..." or "ollama/...", in Provider(model=...) or in LITELLM_MODEL'
        )
        return self._account.target(
            self._account.model_for(model, advice=advice),
            kind=self.kind,
            endpoint=public_url(self._target.api_base),
            timeout=self.timeout,
            provider_origin=provider_origin,
        )

    def write_body(self, request: RathLLMChatRequest, *, model: str) -> BodyWriter:
        refuse_call_settings(request.extra_create_args)
        return body_writer(request, model=model, encode=encode_litellm_message)

    def decode(
        self, reply: Mapping[str, Any], target: RequestTarget
    ) -> tuple[RathLLMChatResponse, ServedInfo]:
        return decode_litellm(reply, target)

    def chunk_decoder(self, target: RequestTarget) -> ChunkDecoder:
        return LiteLLMChunkDecoder(target)

    async def connect(self, target: RequestTarget) -> Transport:
        return await open_litellm(self._target, target)


def __getattr__(name: str) -> Any:
    """Give `LITELLM_RETRYABLE`, which needs the library, on first use."""
    if name != "LITELLM_RETRYABLE":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from rath.llm.litellm.errors import RETRYABLE

    return RETRYABLE


def _account(provider: Provider, kind: str) -> Account:
    account = find_account(provider, kind=kind, variables=LITELLM, default_base_url="")
    account.check_trusted()
    base_url = account.base_url.value
    if base_url:
        checked_url(base_url, account.base_url.origin)
    if password_in(base_url):
        raise ValueError(
            f"{public_url(base_url)!r} came with user and password from {account.base_url.origin}, "
            'and LiteLLM would write both into logs; provider_kind="openai" keeps them out'
        )
    refuse_unsendable(account.api_key)
    if not account.from_project:
        return account
    for variable in filter(env_value, _SENT_VARIABLES):
        raise ValueError(
            f"{variable} is set and would be sent to {public_url(base_url)!r}, which the project's "
            "own config names; unset it for this project"
        )
    # Without a key LiteLLM would look for one in the environment, and send that there.
    return resolve_account(provider, kind=kind, variables=LITELLM, default_base_url="")
