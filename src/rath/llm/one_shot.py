"""Calls with one request and one answer, for embeddings and pictures: config, account, evidence.

provider -> account and endpoint -> [ gate -> request -> answer -> decode ] -> evidence
                                    '----------- each try ------------'
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import fields, replace
from hashlib import sha256
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from rath import __version__
from rath._async import retry as retries
from rath.errors import ProviderStatusError
from rath.llm.credentials import (
    OPENAI_FIXED_MODEL,
    AccountSource,
    EntryFound,
    Purpose,
    RequestTarget,
    resolve_account,
)
from rath.llm.errors import explain_refusal, retry_verdict
from rath.llm.evidence import CallFacts, CallRecorder, JsonValue
from rath.llm.limits import pass_gate
from rath.llm.offline import refuse_live_call
from rath.llm.openai.client import DEFAULT_BASE_URL, OpenAIEndpoint
from rath.llm.provider import Provider, given_fields

__all__ = [
    "OneShotClient",
    "OneShotProvider",
    "PurposeEndpoint",
    "chat_provider",
    "check_fields",
    "from_entry",
]

T = TypeVar("T")


class OneShotProvider(AccountSource, Protocol):
    """Fields that the providers for embeddings and for pictures have in common."""

    @property
    def model(self) -> str: ...

    @property
    def retry_max_attempts(self) -> int | None: ...

    @property
    def retry_base_seconds(self) -> float | None: ...

    @property
    def timeout(self) -> float | None: ...


P = TypeVar("P", bound=OneShotProvider)


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
    found: EntryFound, kind: Callable[..., P], overrides: Mapping[str, Any], **own: Any
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
    found.origin.check_trusted(given_fields(overrides))
    account = {"base_url": found.entry.base_url, "api_key": found.entry.api_key}
    account_only: Any = kind(**account, config_entry=found.origin, **own)
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

    def __init__(self, provider: OneShotProvider, *, purpose: Purpose, path: str) -> None:
        account = resolve_account(
            provider,
            kind="openai",
            variables=OPENAI_FIXED_MODEL,
            default_base_url=DEFAULT_BASE_URL,
            purpose=purpose,
            missing=f"No API key for {type(provider).__name__}",
        )
        self._endpoint = OpenAIEndpoint.of(account, path)
        self.target = self._endpoint.target(provider.model, timeout=provider.timeout)

    async def post(self, body: bytes, call: CallRecorder) -> bytes:
        """Send a body once, and return the content of the answer.

        Raises:
            ProviderError: No answer, or one with an error status.
        """
        way = await self._endpoint.connect(self.target)
        call.reached(way.endpoint, sdk_version=way.sdk_version, credential=way.credential)
        gate = await pass_gate(call, None)
        try:
            return (await way.post(body)).content
        except ProviderStatusError as exc:
            explained = await explain_refusal(exc, self.target, way.models)
            if explained is exc:
                raise
            raise explained from exc
        finally:
            gate.leave()


class OneShotClient(ABC, Generic[P]):
    """Base of the clients for one purpose: retries, the offline switch, and evidence.

    Args:
        provider: What the client is made for.
        sleep: Waits between tries; for tests.
    """

    kind: ClassVar[str]
    renderer: ClassVar[str]
    """Name and version of the code that writes requests."""

    sdk: ClassVar[str | None] = None

    def __init__(self, provider: P, *, sleep: retries.Sleep) -> None:
        self._provider = provider
        self._sleep = sleep
        attempts, base = provider.retry_max_attempts, provider.retry_base_seconds
        self._policy = retries.RetryPolicy(
            max_attempts=retries.DEFAULT_MAX_ATTEMPTS if attempts is None else attempts,
            base=retries.DEFAULT_BASE_SECONDS if base is None else base,
        )

    @property
    def provider(self) -> P:
        """The provider that the client was made for."""
        return self._provider

    @abstractmethod
    def route(self) -> RequestTarget:
        """Return the target of all calls."""

    def _open_call(self, body: bytes, parameters: Mapping[str, JsonValue]) -> CallRecorder:
        """Return the record of a call that is about to be made."""
        target = self.route()
        facts = CallFacts(
            provider_kind=getattr(self._provider, "provider_kind", None) or self.kind,
            adapter=f"{type(self).__module__}:{type(self).__qualname__}",
            adapter_version=__version__,
            renderer=self.renderer,
            sdk=self.sdk,
            endpoint=target.endpoint,
            requested_model=target.model,
            origins=target.origins,
        )
        return CallRecorder(facts, parameters=parameters, digest=sha256(body).hexdigest())

    async def _complete(self, call: CallRecorder, attempt: Callable[[], Awaitable[T]]) -> T:
        """Return what `attempt` gives, after as many tries as the provider allows.

        Args:
            call: Records the tries, and how the last one failed.
            attempt: One try; its answer is decoded.

        Raises:
            ProviderError: The last try failed.
        """
        facts = call.facts

        async def guarded(_: int) -> T:
            refuse_live_call(facts.endpoint, facts.requested_model, kind=facts.provider_kind)
            return await attempt()

        try:
            return await retries.retry(
                guarded,
                policy=self._policy,
                retryable=retry_verdict,
                on_attempt=call.attempts.append,
                sleep=self._sleep,
            )
        except Exception as exc:
            call.fail(exc)
            raise
