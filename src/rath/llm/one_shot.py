"""Calls with one request and one answer, for embeddings and pictures."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import field, fields, replace
from hashlib import sha256
from typing import Any, ClassVar, Self

from rath._core.dataclasses import dataclass
from rath.llm import credentials
from rath.llm.calls import CallSource, ModelCaller, P, enter_endpoint
from rath.llm.evidence import CallRecorder, JsonValue
from rath.llm.openai.client import DEFAULT_BASE_URL, OpenAIEndpoint
from rath.llm.provider import ConfigEntry, Provider, given_fields
from rath.llm.transport import WireReply


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class PurposeProvider:
    """Names a model for one purpose, and an endpoint.

    Endpoint and key are looked up when a client is made, if they are None here: in the
    environment, then in the config.

    Raises:
        TypeError: A field has a type that it can never have.
        ValueError: There is no model, or a number is out of its range.
    """

    model: str
    base_url: str | None = None
    api_key: str | None = None
    retry_max_attempts: int | None = None
    """Tries in all, the first one included; 4 by default."""

    retry_base_seconds: float | None = None
    """Wait before the second try, doubled before each further one; 0.5 by default."""

    timeout: float | None = None
    """Seconds for one request; 300 by default."""

    config_entry: ConfigEntry | None = field(default=None, compare=False)
    """Set by `from_config`."""

    _noun: ClassVar[str]
    """The kind of its model, for errors."""

    def __post_init__(self) -> None:
        model: object = self.model
        if not isinstance(model, str) or not model.strip():
            raise ValueError(f"model must name {self._noun}, not {model!r}")
        self.to_provider()

    def to_provider(self) -> Provider:
        """Return the same as a provider for chat, as far as both have the same fields."""
        shared = {field.name for field in fields(Provider)} & {field.name for field in fields(self)}
        return Provider(**{name: getattr(self, name) for name in shared})

    @classmethod
    def _of_entry(
        cls, found: credentials.EntryFound, overrides: Mapping[str, Any], **own: Any
    ) -> Self:
        """Return a provider with the account of an entry of the config.

        Args:
            found: The entry, and the origin of its values.
            overrides: Fields that the caller set.
            own: Fields beside the account.

        Raises:
            UntrustedConfig: The entry is a project's and acts, and the user has not trusted it.
        """
        entry, origin = found
        origin.check_trusted(given_fields(overrides))
        account: dict[str, Any] = {"base_url": entry.base_url, "api_key": entry.api_key}
        return replace(cls(**account, config_entry=origin, **own), **overrides)

    def __repr__(self) -> str:
        return self.model


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
        assert provider.model is not None  # see PurposeProvider
        self._endpoint = OpenAIEndpoint.of(account, path)
        self.target: credentials.RequestTarget = self._endpoint.target(
            provider.model, timeout=provider.timeout
        )

    async def post(self, body: bytes, call: CallRecorder) -> WireReply:
        """Send a body once, and return the answer.

        Raises:
            ProviderError: No answer, or one with an error status.
        """
        transport = await self._endpoint.connect(self.target)
        gate = await enter_endpoint(call, transport)
        try:
            return await transport.post(body)
        finally:
            gate.leave()

    async def models(self, target: credentials.RequestTarget) -> tuple[str, ...]:
        """Ask the endpoint which models it offers; see `Transport.models`."""
        return await (await self._endpoint.connect(target)).models()


class OneShotClient(ModelCaller[P]):
    """Base of the clients for one purpose: they call one target."""

    @abstractmethod
    def route(self) -> credentials.RequestTarget:
        """Return the target of all calls."""

    def _open_call(self, body: bytes, parameters: Mapping[str, JsonValue]) -> CallRecorder:
        """Return the record of a call that is about to be made."""
        facts = self.call_facts(self.route())
        return CallRecorder(facts, parameters=parameters, digest=sha256(body).hexdigest())
