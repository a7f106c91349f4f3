"""The chat client for every vendor that LiteLLM speaks to; it does not import the library."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar

from rath._async.retry import Sleep
from rath.config.env import env_value
from rath.config.redaction import looks_secret
from rath.errors import MissingExtra
from rath.llm import credentials
from rath.llm.body import BodyWriter, encode_message
from rath.llm.chat_request import RathLLMChatRequest, RathLLMMessage
from rath.llm.chat_response import RathLLMChatResponse, RathLLMStreamDelta, fields_of, objects_of
from rath.llm.openai.client import CompletionsClient
from rath.llm.openai.create_kwargs import body_writer
from rath.llm.openai.normalize import OpenAIChunkDecoder, decode_completion
from rath.llm.provider import Provider
from rath.llm.stream import ChunkDecoder, ServedInfo
from rath.llm.transport import ConnectionPool, Transport

if TYPE_CHECKING:
    from rath.llm.litellm.connection import LiteLLMConnection


_FIELDS = {
    "api_key": "api_key",
    "api_base": "base_url",
    "base_url": "base_url",
    "timeout": "timeout",
    "request_timeout": "timeout",
    "num_retries": "retry_max_attempts",
    "max_retries": "retry_max_attempts",
    "fallbacks": "fallbacks",
}
"""Arguments of LiteLLM for which a provider has a field."""

_SECRET_NAME = re.compile(
    r"api_?key|access_key|secret|password|credential|(ad|auth|access|bearer|session)_token$",
    re.IGNORECASE,
)


_SENT_VARIABLES = (
    "OPENAI_CUSTOM_HEADERS", "OPENAI_ORG_ID", "OPENAI_ORGANIZATION", "OPENAI_PROJECT_ID",
)  # fmt: skip
"""Variables that are sent to every server that speaks OpenAI's protocol."""


@dataclass(frozen=True, slots=True)
class LiteLLMTarget:
    """An endpoint and a key; LiteLLM looks for what is missing."""

    api_base: str | None = field(repr=False)
    key_origin: str
    api_key: str = field(repr=False)


def _connect(target: LiteLLMTarget) -> LiteLLMConnection:
    """Import the library, for seconds, and return a connection; blocks."""
    connection: LiteLLMConnection = import_module("rath.llm.litellm.connection").LiteLLMConnection(
        target
    )
    return connection


_connections: ConnectionPool[LiteLLMTarget, LiteLLMConnection] = ConnectionPool(_connect)


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
    sdk: str | None = "litellm"
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

    def target(self, model: str | None) -> credentials.RequestTarget:
        advice = (
            ', such as "anthropic/..." or "ollama/...", in Provider(model=...) or in LITELLM_MODEL'
        )
        return self._account.target(
            self._account.model_for(model, advice=advice),
            kind=self.kind,
            endpoint=credentials.public_url(self._target.api_base),
            timeout=self.timeout,
        )

    def write_body(self, request: RathLLMChatRequest, *, model: str) -> BodyWriter:
        refuse_call_settings(request.extra_create_args)
        return body_writer(request, model=model, encode=encode_litellm_message)

    def decode(
        self, reply: Mapping[str, Any], target: credentials.RequestTarget
    ) -> tuple[RathLLMChatResponse, ServedInfo]:
        return decode_litellm(reply, target)

    def chunk_decoder(self, target: credentials.RequestTarget) -> ChunkDecoder:
        return LiteLLMChunkDecoder(target)

    async def connect(self, target: credentials.RequestTarget) -> Transport:
        return (await _connections.get(self._target)).transport(target)


def refuse_call_settings(extra: Mapping[str, Any]) -> None:
    """Refuse extra arguments that a provider has a field for, and those that hold a secret.

    Parameters are written to the record of a session, so none of them may be a secret.

    Raises:
        ValueError: There is such an argument.
    """
    for name in extra:
        if name in _FIELDS:
            raise ValueError(
                f"extra_create_args cannot set {name!r}; use Provider({_FIELDS[name]}=...)"
            )
        if _SECRET_NAME.search(name):
            raise ValueError(
                f"extra_create_args cannot set {name!r}: it is a secret, and parameters are "
                "recorded. LiteLLM reads it from the environment"
            )
    for table in ("headers", "extra_headers"):
        for name in extra.get(table) or ():
            if looks_secret(name):
                raise ValueError(
                    f"extra_create_args cannot set the header {name!r}: it is a secret, and "
                    "parameters are recorded. Use Provider(api_key=...)"
                )


def encode_litellm_message(message: RathLLMMessage) -> dict[str, Any]:
    """Return a message; the thinking that a vendor signed goes back to it as it came."""
    encoded = encode_message(message)
    if message.blocks:
        encoded["thinking_blocks"] = [dict(block) for block in message.blocks]
    return encoded


def keyword_arguments(
    body: bytes, *, api_key: str, api_base: str | None, timeout: float
) -> dict[str, Any]:
    """Return the arguments of one call of `litellm.acompletion`.

    Args:
        body: What was written for the request.
        api_key: Empty to let LiteLLM look for one.
        api_base: None for the vendor's own endpoint.
        timeout: Seconds.
    """
    arguments: dict[str, Any] = {
        # What a vendor does not know is left out, as documented.
        "drop_params": True,
        **json.loads(body),
        # There is one owner of retries, and it is not LiteLLM.
        "num_retries": 0,
        "max_retries": 0,
        "timeout": timeout,
    }
    if api_key:
        arguments["api_key"] = api_key
    if api_base:
        arguments["api_base"] = api_base
    return arguments


def to_event(chunk: Mapping[str, Any]) -> bytes:
    """Return a chunk as a server-sent event."""
    return b"data: %s\n\n" % json.dumps(chunk, ensure_ascii=False).encode(errors="replace")


def _account(provider: Provider, kind: str) -> credentials.Account:
    account = credentials.find_account(
        provider, kind=kind, variables=credentials.LITELLM, default_base_url=""
    )
    account.check_trusted()
    base_url = account.base_url.value
    shown = credentials.public_url(base_url)
    if base_url:
        credentials.checked_url(base_url, account.base_url.origin)
    if credentials.password_in(base_url):
        raise ValueError(
            f"{shown!r} came with user and password from {account.base_url.origin}, "
            'and LiteLLM would write both into logs; provider_kind="openai" keeps them out'
        )
    credentials.refuse_unsendable(account.api_key)
    if not account.from_project:
        return account
    for variable in filter(env_value, _SENT_VARIABLES):
        raise ValueError(
            f"{variable} is set and would be sent to {shown!r}, which the project's "
            "own config names; unset it for this project"
        )
    # Without a key LiteLLM would look for one in the environment, and send that there.
    return credentials.resolve_account(
        provider, kind=kind, variables=credentials.LITELLM, default_base_url=""
    )


def decode_litellm(
    payload: Mapping[str, Any], target: credentials.RequestTarget
) -> tuple[RathLLMChatResponse, ServedInfo]:
    """Return an answer, and what is said about it.

    LiteLLM writes zeros where a vendor counted nothing; they are no usage.

    Raises:
        ProviderError: The answer reports an error, or has no choices.
    """
    is_counted = fields_of(payload.get("usage")).get("total_tokens")
    counted = payload if is_counted else {**payload, "usage": None}
    response, served = decode_completion(counted, target)
    served.blocks = tuple(_thinking_of(first_choice(payload).get("message")))
    return response, served


class LiteLLMChunkDecoder(OpenAIChunkDecoder):
    """Reads the chunks of one stream, and folds the thinking that a vendor signs."""

    def __init__(self, target: credentials.RequestTarget) -> None:
        super().__init__(target)
        self._thinking: list[dict[str, Any]] = []

    def read(self, event: dict[str, Any]) -> Sequence[RathLLMStreamDelta]:
        deltas = super().read(event)
        if blocks := _thinking_of(first_choice(event).get("delta")):
            for block in blocks:
                self._add(block)
            self.served.blocks = tuple(self._thinking)
        return deltas

    def _add(self, piece: Mapping[str, Any]) -> None:
        """Append to the block that is open; a signature closes it."""
        last = self._thinking[-1] if self._thinking else None
        both = (piece.get("type"), last and last.get("type"))
        if last is None or both != ("thinking", "thinking") or last.get("signature"):
            self._thinking.append(dict(piece))
            return
        last["thinking"] = (last.get("thinking") or "") + (piece.get("thinking") or "")
        last["signature"] = piece.get("signature") or None


def first_choice(payload: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the first choice of an answer or a chunk; an empty object where there is none."""
    choices = objects_of(payload.get("choices"))
    return choices[0] if choices else {}


def _thinking_of(message: object) -> list[Mapping[str, Any]]:
    return objects_of(fields_of(message).get("thinking_blocks"))
