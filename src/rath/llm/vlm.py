"""Describing pictures: which model looks at them, and the client that asks it."""

from __future__ import annotations

import asyncio
import mimetypes
import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

from rath import config
from rath._async.retry import Sleep
from rath._async.runtime import runtime
from rath._core.blobs import Blob
from rath.llm import one_shot
from rath.llm.body import encode_message, text_then_images, to_json
from rath.llm.chat_request import RathLLMMessage
from rath.llm.chat_response import RathLLMChatResponse
from rath.llm.credentials import RequestTarget, entry_for
from rath.llm.errors import answer_object, protocol_error
from rath.llm.evidence import CallRecorder, Exchange, JsonValue
from rath.llm.image import Image
from rath.llm.openai.normalize import decode_completion, normalize_chat_completion
from rath.llm.provider import given_fields
from rath.llm.stream import ServedInfo

__all__ = ["RathOpenAIVLMClient", "VLMProvider"]

_UNKNOWN_TYPE = "application/octet-stream"


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class VLMProvider(one_shot.PurposeProvider):
    """Names a model that sees, and an endpoint.

    Endpoint and key are looked up when a client is made, if they are None here: in the
    environment, then in the config.

    Raises:
        TypeError: A field has a type that it can never have.
        ValueError: There is no model, or a number is out of its range.
    """

    _noun: ClassVar[str] = "a model that sees"

    max_tokens: int | None = 512
    """Tokens that a description may have."""

    temperature: float | None = None

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
        entry, origin = found
        if not overrides.get("model"):
            overrides.pop("model", None)
        own: dict[str, Any] = {
            "model": overrides.get("model") or entry.model,
            "temperature": entry.temperature,
        }
        if entry.max_tokens is not None:
            own["max_tokens"] = entry.max_tokens
        if not own["model"]:
            origin.check_trusted(given_fields(overrides))
            raise KeyError(
                f"the entry {origin.name!r} of llm.providers names no model; set one in "
                f"{origin.origin.removeprefix('config ')}"
            )
        return cls._of_entry(found, overrides, **own)


class RathOpenAIVLMClient(one_shot.OneShotClient[VLMProvider]):
    """Asks a model that sees, by OpenAI's chat protocol, what a picture shows.

    Args:
        provider: Endpoint, key, model and patience; see `VLMProvider`.
        sleep: Waits between tries; for tests.

    Raises:
        ValueError: There is no key, or the base_url is not one.
    """

    kind: ClassVar[str] = "openai"
    renderer: ClassVar[str] = "openai-picture/1"

    def __init__(self, provider: VLMProvider, *, sleep: Sleep = asyncio.sleep) -> None:
        super().__init__(provider, sleep=sleep)
        self._endpoint = one_shot.PurposeEndpoint(provider, purpose="vlm", path="/chat/completions")

    def route(self) -> RequestTarget:
        return self._endpoint.target

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
        provider = self.provider
        image = Image(mime, Blob.from_bytes(image_bytes, keep=len(image_bytes)))
        message = RathLLMMessage("user", prompt, images=(image,))
        limits = {"temperature": provider.temperature, "max_tokens": provider.max_tokens}
        set_limits = {name: value for name, value in limits.items() if value is not None}
        parameters: dict[str, JsonValue] = {"model": provider.model, **set_limits}
        # The text stands before the picture, as in the vendor's own examples.
        written = encode_message(message, parts=text_then_images)
        body = to_json({"messages": [written], **set_limits, "model": provider.model})
        call = self._open_call(body, parameters)
        return call.finish(
            await self.complete_call(
                call,
                partial(self._ask, body, call),
                self.route(),
                list_models=self._endpoint.models,
                n_images=1,
            )
        )

    async def _ask(self, body: bytes, call: CallRecorder) -> RathLLMChatResponse:
        target = self._endpoint.target
        reply = await self._endpoint.post(body, call)
        fields = answer_object(reply.content, target, status=reply.status)
        try:
            if fields.get("error") or fields.get("choices") != []:
                response, call.served = decode_completion(fields, target)
            else:  # no choice is an answer here
                response = normalize_chat_completion(fields)
                call.served = ServedInfo.of(response)
        except RecursionError as exc:
            problem = "with an answer of an unexpected form"
            raise protocol_error(target, problem, reply.content, status=reply.status) from exc
        return response
