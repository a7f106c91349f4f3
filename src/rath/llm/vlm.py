"""Describing pictures: which model looks at them, and the client that asks it."""

from __future__ import annotations

import asyncio
import mimetypes
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

from rath import config
from rath._async.retry import Sleep
from rath._async.runtime import runtime
from rath._core.blobs import Blob
from rath.llm.body import BodyWriter, encode_message, text_then_images
from rath.llm.chat_request import RathLLMChatRequest, RathLLMMessage
from rath.llm.chat_response import RathLLMChatResponse
from rath.llm.credentials import OPENAI_FIXED_MODEL, RequestTarget, entry_for, resolve_account
from rath.llm.evidence import Exchange
from rath.llm.image import Image
from rath.llm.openai.client import (
    COMPLETIONS_PATH,
    DEFAULT_BASE_URL,
    CompletionsClient,
    OpenAIEndpoint,
)
from rath.llm.openai.create_kwargs import body_writer
from rath.llm.openai.normalize import decode_completion, normalize_chat_completion
from rath.llm.provider import ConfigEntry, Provider, ProviderOrigin, given_fields
from rath.llm.stream import ServedInfo
from rath.llm.transport import Transport

__all__ = ["RathOpenAIVLMClient", "VLMProvider"]

_UNKNOWN_TYPE = "application/octet-stream"


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class VLMProvider:
    """Names a model that sees, and an endpoint.

    Endpoint and key are looked up when a client is made, if they are None here: in the
    environment, then in the config.

    Raises:
        TypeError: A field has a type that it can never have.
        ValueError: There is no model, or a number is out of its range.
    """

    model: str
    base_url: str | None = None
    api_key: str | None = None
    max_tokens: int | None = 512
    """Tokens that a description may have."""

    temperature: float | None = None
    retry_max_attempts: int | None = None
    """Tries in all, the first one included; 4 by default."""

    retry_base_seconds: float | None = None
    """Wait before the second try, doubled before each further one; 0.5 by default."""

    timeout: float | None = None
    """Seconds for one description; 300 by default."""

    config_entry: ConfigEntry | None = field(default=None, compare=False)
    """Set by `from_config`."""

    def __post_init__(self) -> None:
        model: object = self.model
        if not isinstance(model, str) or not model.strip():
            raise ValueError(f"model must name a model that sees, not {model!r}")
        self.to_provider()  # checks what both have in common

    def to_provider(self) -> Provider:
        """Return the same as a provider for chat."""
        return Provider(
            model=self.model,
            base_url=self.base_url,
            api_key=self.api_key,
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            retry_max_attempts=self.retry_max_attempts,
            retry_base_seconds=self.retry_base_seconds,
            timeout=self.timeout,
            config_entry=self.config_entry,
        )

    @classmethod
    def from_config(
        cls, name: str | None = None, *, store: config.ConfigStore | None = None, **overrides: Any
    ) -> Self:
        """Return a provider as the config describes it.

        A provider for chat never stands in, since many models for chat do not see.

        Args:
            name: Entry of `llm.providers`; `llm.vlm_provider` by default.
            store: The config to read; the project's and the user's by default.
            overrides: Fields of the provider to set or replace.

        Raises:
            KeyError: No such entry, no name given and no default set, or the entry has no model.
            UntrustedConfig: The entry is a project's and acts, and the user has not trusted it.
        """
        found = entry_for(name, default="vlm_provider", store=store)
        if found is None:
            raise KeyError(
                "no VLM provider name given, and llm.vlm_provider names no entry of llm.providers "
                "in the config; name one that sees"
            )
        found.origin.check_trusted(given_fields(overrides))
        entry = found.entry
        model = overrides.pop("model", None) or entry.model
        if not model:
            raise KeyError(
                f"the entry {found.origin.name!r} of llm.providers names no model; set one in "
                f"{found.origin.origin.removeprefix('config ')}"
            )
        tokens = {} if entry.max_tokens is None else {"max_tokens": entry.max_tokens}
        provider = cls(
            model=model,
            base_url=entry.base_url,
            api_key=entry.api_key,
            temperature=entry.temperature,
            config_entry=found.origin,
            **tokens,
        )
        return replace(provider, **overrides)

    def __repr__(self) -> str:
        return self.model


class RathOpenAIVLMClient:
    """Asks a model that sees, by OpenAI's chat protocol, what a picture shows.

    Args:
        provider: Endpoint, key, model and patience; see `VLMProvider`.
        sleep: Waits between tries; for tests.

    Raises:
        ValueError: There is no key, or the base_url is not one.
    """

    def __init__(self, provider: VLMProvider, *, sleep: Sleep = asyncio.sleep) -> None:
        self._provider = provider
        self._client = _SeeingClient(provider, sleep=sleep)

    @property
    def provider(self) -> VLMProvider:
        """The provider that the client was made for."""
        return self._provider

    def route(self) -> RequestTarget:
        """Return where the calls go."""
        return self._client.target(None)

    def describe(self, image_bytes: bytes, *, prompt: str, mime: str = "image/png") -> str:
        """Return what the model says of a picture; an empty text if it says nothing.

        Args:
            image_bytes: The picture.
            prompt: What is asked about it.
            mime: Its media type.

        Raises:
            ProviderError: The call failed.
            ValueError: There are no bytes.
        """
        if not image_bytes:
            raise ValueError("the picture has no bytes; give the content of an image file")
        describe = partial(self.adescribe, image_bytes, prompt=prompt, mime=mime)
        choices = runtime().run(describe, label="describing a picture").response.choices
        return (choices[0].message.content or "") if choices else ""

    def describe_path(self, path: str | os.PathLike[str], *, prompt: str) -> str:
        """Return what the model says of the picture in a file, whose name tells its media type.

        Raises:
            OSError: The file cannot be read.
            ProviderError: The call failed.
        """
        file = Path(path)
        mime = mimetypes.guess_type(file.name)[0] or _UNKNOWN_TYPE
        return self.describe(file.read_bytes(), prompt=prompt, mime=mime)

    async def adescribe(self, image_bytes: bytes, *, prompt: str, mime: str) -> Exchange:
        """Return the answer and its evidence; runs on the runtime loop."""
        image = Image(mime, Blob.from_bytes(image_bytes, keep=len(image_bytes)))
        request = RathLLMChatRequest(
            messages=(RathLLMMessage("user", prompt, images=(image,)),),
            max_tokens=self._provider.max_tokens,
            temperature=self._provider.temperature,
        )
        draft = self._client.open_draft(request, streaming=False, provider_origin="call")
        return await draft.asend()


class _SeeingClient(CompletionsClient):
    """The chat client below: the text stands before the picture, and no choice is an answer."""

    kind: ClassVar[str] = "openai"
    renderer: ClassVar[str] = "openai-picture/1"
    sdk: ClassVar[str | None] = "openai"

    def __init__(self, provider: VLMProvider, *, sleep: Sleep) -> None:
        super().__init__(provider.to_provider(), sleep=sleep)
        account = resolve_account(
            provider,
            kind=self.kind,
            variables=OPENAI_FIXED_MODEL,
            default_base_url=DEFAULT_BASE_URL,
            purpose="vlm",
            missing="No API key for VLMProvider",
        )
        self._endpoint = OpenAIEndpoint.of(account, COMPLETIONS_PATH)
        self._model = provider.model

    def target(
        self, model: str | None, *, provider_origin: ProviderOrigin = "call"
    ) -> RequestTarget:
        chosen = model or self._model
        return self._endpoint.target(chosen, timeout=self.timeout, provider_origin=provider_origin)

    def write_body(self, request: RathLLMChatRequest, *, model: str) -> BodyWriter:
        text_first = partial(encode_message, parts=text_then_images)
        return body_writer(request, model=model, encode=text_first)

    def decode(
        self, reply: Mapping[str, Any], target: RequestTarget
    ) -> tuple[RathLLMChatResponse, ServedInfo]:
        if reply.get("error") or reply.get("choices") != []:
            return decode_completion(reply, target)
        response = normalize_chat_completion(reply)
        return response, ServedInfo.of(response)

    async def connect(self, target: RequestTarget) -> Transport:
        return await self._endpoint.connect(target)
