"""Calls with one request and one answer, for embeddings and pictures."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from hashlib import sha256
from typing import Any

from rath.llm import credentials
from rath.llm.calls import CallSource, ModelCaller, P, at_endpoint
from rath.llm.evidence import CallRecorder, JsonValue
from rath.llm.openai.client import DEFAULT_BASE_URL, OpenAIEndpoint
from rath.llm.provider import Provider, given_fields
from rath.llm.transport import WireReply


def check_fields(provider: Any, noun: str) -> None:
    """Check the model of a provider, and the fields that it shares with those for chat.

    Raises:
        TypeError: A field has a type that it can never have.
        ValueError: There is no model, or a number is out of its range.
    """
    model: object = provider.model
    if not isinstance(model, str) or not model.strip():
        raise ValueError(f"model must name {noun}, not {model!r}")
    chat_provider(provider)


def chat_provider(provider: Any) -> Provider:
    """Return a provider for chat with the fields that both have in common."""
    shared = {field.name for field in fields(Provider)} & {field.name for field in fields(provider)}
    return Provider(**{name: getattr(provider, name) for name in shared})


def from_entry(
    found: credentials.EntryFound, kind: Callable[..., P], overrides: Mapping[str, Any], **own: Any
) -> P:
    """Return a provider with the account of an entry of the config.

    Args:
        found: The entry, and the origin of its values.
        kind: Class of the provider.
        overrides: Fields that the caller set.
        own: Fields beside the account.

    Raises:
        UntrustedConfig: The entry is a project's and acts, and the user has not trusted it.
    """
    entry, origin = found
    origin.check_trusted(given_fields(overrides))
    account = {"base_url": entry.base_url, "api_key": entry.api_key}
    account_only: Any = kind(**account, config_entry=origin, **own)
    provider: P = replace(account_only, **overrides)
    return provider


class PurposeEndpoint:
    """An endpoint that speaks OpenAI's protocol, with the account of one purpose.

    Args:
        provider: Endpoint, key, model and timeout.
        purpose: Which default of the config lends its account.
        path: Path of what is asked for, such as `/embeddings`.

    Raises:
        ValueError: There is no key, or the base_url is not one.
    """

    def __init__(self, provider: CallSource, *, purpose: credentials.Purpose, path: str) -> None:
        account = credentials.resolve_account(
            provider,
            kind="openai",
            variables=credentials.OPENAI_FIXED_MODEL,
            default_base_url=DEFAULT_BASE_URL,
            purpose=purpose,
            missing=f"No API key for {type(provider).__name__}",
        )
        assert provider.model is not None  # see check_fields
        self._endpoint = OpenAIEndpoint.of(account, path)
        self.target = self._endpoint.target(provider.model, timeout=provider.timeout)

    async def post(self, body: bytes, call: CallRecorder) -> WireReply:
        """Send a body once, and return the answer.

        Raises:
            ProviderError: No answer, or one with an error status.
        """
        transport = await self._endpoint.connect(self.target)
        async with at_endpoint(call, transport):
            return await transport.post(body)

    async def models(self) -> tuple[str, ...]:
        """Ask the endpoint which models it offers; see `Transport.models`."""
        return await (await self._endpoint.connect(self.target)).models()


class OneShotClient(ModelCaller[P]):
    """Base of the clients for one purpose: they call one target."""

    @abstractmethod
    def route(self) -> credentials.RequestTarget:
        """Return the target of all calls."""

    def _open_call(self, body: bytes, parameters: Mapping[str, JsonValue]) -> CallRecorder:
        """Return the record of a call that is about to be made."""
        facts = self.call_facts(self.route())
        return CallRecorder(facts, parameters=parameters, digest=sha256(body).hexdigest())
