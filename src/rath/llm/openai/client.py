"""The chat client for OpenAI, Azure OpenAI and every server that speaks their protocol."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Any, ClassVar, Self
from urllib.parse import quote, urlsplit

from rath._async.retry import Sleep
from rath._core.dataclasses import dataclass
from rath.config.env import env_value
from rath.llm import credentials, transport
from rath.llm.body import BodyWriter, refuse_call_options
from rath.llm.chat_request import RathLLMChatRequest
from rath.llm.chat_response import RathLLMChatResponse
from rath.llm.client import VendorClient
from rath.llm.openai.create_kwargs import body_writer
from rath.llm.openai.normalize import OpenAIChunkDecoder, decode_completion
from rath.llm.provider import Provider
from rath.llm.stream import ChunkDecoder, ServedInfo

__all__ = ["OPENAI_RETRYABLE", "RathOpenAIChatClient"]

OPENAI_RETRYABLE: tuple[type[Exception], ...]
"""Exceptions of the SDK that another try may mend; imports the SDK on first use."""

DEFAULT_BASE_URL = "https://api.openai.com/v1"
DEFAULT_AZURE_VERSION = "2024-10-21"
HEADERS_VARIABLE = "OPENAI_CUSTOM_HEADERS"
COMPLETIONS_PATH = "/chat/completions"
MODELS = transport.ModelListing("/models")

_AZURE_PATH = re.compile(r"/openai(?:/deployments(?:/.*)?)?$")
"""What each call adds to the address of a resource, but many base URLs name too."""


@dataclass(frozen=True, slots=True)
class OpenAIEndpoint:
    """An account at an endpoint, and one of the things that it offers.

    Azure has paths of its own for each deployed model.
    """

    account: credentials.Account
    api: transport.ApiEndpoint
    resource: str
    """Path of what is asked for, such as `/chat/completions`."""

    @classmethod
    def of(cls, account: credentials.Account, resource: str) -> Self:
        """Return what `account` calls.

        Raises:
            ValueError: Its base_url is not one, or headers of the environment would be sent to
                an endpoint that a project's config names.
        """
        base_url = credentials.checked_url(account.base_url.value, account.base_url.origin)
        # A resource of the v1 API needs no version.
        is_versioned = (
            credentials.is_azure(base_url) and "/openai/v1" not in urlsplit(base_url).path
        )
        api = transport.ApiEndpoint(
            base_url=_AZURE_PATH.sub("", base_url) + "/openai" if is_versioned else base_url,
            key_origin=account.api_key.origin,
            from_project=account.from_project,
            api_key=account.api_key.value,
            key_header="api-key" if is_versioned else "Authorization",
            headers=() if account.from_project else _organization(),
            query=(("api-version", env_value("OPENAI_API_VERSION") or DEFAULT_AZURE_VERSION),)
            if is_versioned
            else (),
            headers_variable=HEADERS_VARIABLE,
            # Azure lists models, but calls name deployments, which bear names of their own.
            listing=None if credentials.is_azure(base_url) else MODELS,
        )
        return cls(account, api, resource)

    def target(self, model: str, *, timeout: float | None = None) -> credentials.RequestTarget:
        """Return the target of a call for `model`."""
        path = self.resource
        if self.api.query:
            path = f"/deployments/{quote(model, safe='')}{path}"
        return self.account.target(
            model,
            kind="openai",
            endpoint=credentials.public_url(self.api.base_url + path),
            path=path,
            timeout=timeout,
        )

    async def connect(self, target: credentials.RequestTarget) -> transport.Transport:
        """Return the way there; see `VendorClient.connect`."""
        return await transport.open_transport(self.api, target)


def _organization() -> tuple[tuple[str, str], ...]:
    """Return the headers that name the user's organization and project, where these are set."""
    names = {"OpenAI-Organization": "OPENAI_ORG_ID", "OpenAI-Project": "OPENAI_PROJECT_ID"}
    found = ((header, env_value(variable)) for header, variable in names.items())
    return tuple((header, value) for header, value in found if value)


class CompletionsClient(VendorClient):
    """Writes and reads chat completions; a subclass knows where they go."""

    renderer: ClassVar[str] = "openai-chat/1"
    takes_schema: ClassVar[bool] = True
    takes_loose_schema: ClassVar[bool] = True

    def write_body(self, request: RathLLMChatRequest, *, model: str) -> BodyWriter:
        refuse_call_options(request.extra_create_args)
        return body_writer(request, model=model)

    def decode(
        self, reply: Mapping[str, Any], target: credentials.RequestTarget
    ) -> tuple[RathLLMChatResponse, ServedInfo]:
        return decode_completion(reply, target)

    def chunk_decoder(self, target: credentials.RequestTarget) -> ChunkDecoder:
        return OpenAIChunkDecoder(target)


class RathOpenAIChatClient(CompletionsClient):
    """Speaks chat completions, whole and streamed.

    Args:
        provider: Endpoint, key, model and patience; see `Provider`.
        sleep: Waits between tries; for tests.

    Raises:
        ValueError: There is no key, or the base_url is not one.
    """

    kind: ClassVar[str] = "openai"

    def __init__(self, provider: Provider, *, sleep: Sleep = asyncio.sleep) -> None:
        super().__init__(provider, sleep=sleep)
        account = credentials.resolve_account(
            provider,
            kind=self.kind,
            variables=credentials.OPENAI,
            default_base_url=DEFAULT_BASE_URL,
        )
        self._endpoint = OpenAIEndpoint.of(account, COMPLETIONS_PATH)

    def target(self, model: str | None) -> credentials.RequestTarget:
        chosen = self._endpoint.account.model_for(
            model, advice=" in Provider(model=...), in OPENAI_DEFAULT_MODEL or in the config"
        )
        return self._endpoint.target(chosen, timeout=self.timeout)

    def resolved_settings(self) -> object:
        return self._endpoint

    async def connect(self, target: credentials.RequestTarget) -> transport.Transport:
        return await self._endpoint.connect(target)

    def warm_up(self) -> None:
        transport.warm_up(self._endpoint.api)


def __getattr__(name: str) -> Any:
    """Give `OPENAI_RETRYABLE`, which needs the SDK, on first use."""
    if name == "OPENAI_RETRYABLE":
        return transport.retryable_errors("openai")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
