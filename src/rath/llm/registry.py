"""Chat clients by provider kind, and whether a client can be made and finds its model."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import TypeVar

from rath._async.lanes import gather
from rath._async.runtime import runtime
from rath._core.dataclasses import dataclass
from rath._core.lazy_imports import lazy_function
from rath._core.registry import Registry
from rath._core.text import nearest
from rath.config.redaction import redact
from rath.errors import ProviderProtocolError, ProviderStatusError
from rath.llm.base import ChatClient
from rath.llm.client import VendorClient
from rath.llm.credentials import RequestTarget
from rath.llm.errors import refusal_foreseen
from rath.llm.provider import Provider

__all__ = [
    "ChatClientFactory",
    "chat_client_for",
    "clear_client_cache",
    "register_chat_client",
    "registered_kinds",
]

C = TypeVar("C")

_log = logging.getLogger("rath.llm")

ChatClientFactory = Callable[[Provider], ChatClient]

# Most providers need no client of an SDK.
_sdk_chat_client: ChatClientFactory = lazy_function("rath.llm.sdk_client", "sdk_chat_client")

DEFAULT_KIND = "openai"

_CacheKey = tuple[Hashable, ...]
"""The kind, and all that the provider itself says of how calls are made."""


class UnknownProviderKind(ValueError, LookupError):
    """No chat client is registered for a provider kind."""


def _unknown_kind(name: str, known: list[str], hint: str) -> LookupError:
    return UnknownProviderKind(
        f"unknown provider_kind {name!r}.{hint} Known: {', '.join(sorted(known)) or 'none'}. "
        "Add one with register_chat_client(...) or as an entry point of 'rath.providers'."
    )


_BUILT_IN = {
    "anthropic": "rath.llm.anthropic.client:RathAnthropicChatClient",
    "litellm": "rath.llm.litellm.client:RathLiteLLMChatClient",
    "openai": "rath.llm.openai.client:RathOpenAIChatClient",
    "local": "rath.llm.local.server:RathLocalChatClient",
}

_kinds: Registry[ChatClientFactory] = Registry(
    "provider kind", group="rath.providers", builtins=_BUILT_IN, not_found=_unknown_kind
)
_clients: dict[_CacheKey, ChatClient] = {}
_clients_lock = threading.Lock()


def check_kind(kind: str) -> None:
    """Refuse a kind that is unknown and close to a built-in one; loads none of them.

    Any other unknown one may be registered before the first call: the client is made then. Kinds
    of others may well be alike, such as `mine-1` and `mine-2`.

    Raises:
        ValueError: It is probably misspelt.
    """
    near = None if _kinds.is_known(kind) else nearest(kind, _BUILT_IN)
    # Who calls a kind `openai2` or `my-openai` has one of his own in mind.
    if near is not None and near not in kind.casefold():
        _kinds.check(kind)


def register_chat_client(kind: str, factory: ChatClientFactory) -> None:
    """Let `factory` make the clients of a provider kind; a kind that is there is replaced.

    Args:
        kind: What `Provider.provider_kind` says.
        factory: Called with the provider, in the thread of whoever starts a run.
    """
    _kinds.register(kind, factory, replace=True)
    with _clients_lock:
        for key in [key for key in _clients if key[0] == kind]:
            del _clients[key]


def chat_client_for(provider: Provider) -> ChatClient:
    """Return a client for `provider`; its kind is "openai" when it names none.

    A provider with a key of its own gets the same client again as long as endpoint, key, model,
    retries, timeout and limits are the same. What it leaves open is looked up each time, in the
    environment and in the configs: where that finds something else, the client is another one.

    Raises:
        ValueError: No such kind; or the client finds no key.
    """
    if provider.client is not None:
        return _sdk_chat_client(provider)
    kind = provider.provider_kind or DEFAULT_KIND
    factory = _kinds.get(kind)
    if not provider.api_key:
        return factory(provider)
    key = (
        kind, provider.base_url or "", provider.api_key, provider.model or "",
        provider.retry_max_attempts, provider.retry_base_seconds, provider.timeout,
        provider.max_in_flight, provider.max_requests_per_minute, provider.config_entry,
    )  # fmt: skip
    with _clients_lock:
        known = _clients.get(key)
    if known is not None and not isinstance(known, VendorClient):
        return known  # what clients of others look up, nobody else knows
    client = factory(provider)
    with _clients_lock:
        known = _clients.get(key)
        if known is None or not _are_alike(known, client):
            _clients[key] = known = client
    return known


def registered_kinds() -> tuple[str, ...]:
    """Return all known kinds in alphabetical order; loads none of them."""
    return tuple(sorted(_kinds.names()))


def clear_client_cache() -> None:
    """Forget the clients that `chat_client_for` would give again."""
    with _clients_lock:
        _clients.clear()


def _are_alike(known: ChatClient, other: ChatClient) -> bool:
    """Tell whether two clients for one key call the same way."""
    if not isinstance(known, VendorClient) or not isinstance(other, VendorClient):
        return True
    return type(known) is type(other) and known.resolved_settings() == other.resolved_settings()


@dataclass(frozen=True, slots=True)
class NoClient:
    """The problem for which no client could be made."""

    problem: str
    """Without the key."""


def make_client(provider: Provider) -> ChatClient | NoClient:
    """Return a client for a provider, or why there is none; nothing is sent.

    It looks up the provider's kind, its endpoint and key, and the package that it needs.
    """
    return or_no_client(partial(chat_client_for, provider), key=provider.api_key)


def or_no_client(make: Callable[[], C], *, key: str | None) -> C | NoClient:
    """Return the client that `make` makes, or why it makes none, without the key."""
    try:
        return make()
    except Exception as exc:  # noqa: BLE001  # kinds of others raise anything; it is told here
        return NoClient(redact(str(exc) or type(exc).__name__, key or ""))


@dataclass(frozen=True, slots=True)
class ModelOffer:
    """The answer of an endpoint to the question for its models."""

    models: tuple[str, ...] = ()
    error: Exception | None = None

    @property
    def is_unknown(self) -> bool:
        """Whether the endpoint answers, but not this question; calls to it may work."""
        error = self.error
        if isinstance(error, ProviderStatusError):
            # A key may be good for calls alone, but not where it is unknown altogether.
            return error.status != 401
        return isinstance(error, ProviderProtocolError)


async def ask_offer(client: VendorClient) -> ModelOffer:
    """Ask the endpoint of a client for its models."""
    try:
        # A list needs no model; where the client has one, some vendors list only its relatives.
        target = own_target(client) or client.target("any")
        return ModelOffer(await client.amodels(target))
    except Exception as exc:  # noqa: BLE001  # adapters of others raise anything; it is told
        return ModelOffer(error=exc)


def foresee_refusals(clients: Sequence[ChatClient]) -> list[str | None]:
    """Tell for each client why its endpoint would refuse its model; waits for the answers.

    Each endpoint is asked once for its models, all at the same time.

    Returns:
        None where nothing speaks against a call: also where the endpoint does not list its
        models, and for clients that are not made by rath.
    """
    targets = {
        index: (client, target)
        for index, client in enumerate(clients)
        if isinstance(client, VendorClient) and (target := own_target(client)) is not None
    }
    # A client that has no endpoint yet has one for each model.
    places = {
        index: (type(client), target.endpoint or target.model, target.secret)
        for index, (client, target) in targets.items()
    }
    unique = {places[index]: client for index, (client, _) in targets.items()}
    offers = dict(zip(unique, _ask_all([*unique.values()]), strict=True))
    reasons: list[str | None] = [None] * len(clients)
    for index, (_, target) in targets.items():
        offer = offers[places[index]]
        if offer.is_unknown:
            _log.info("whether %r is offered is not known: %s", target.model, offer.error)
        elif offer.error is not None:
            reasons[index] = str(offer.error)
        else:
            reasons[index] = refusal_foreseen(target, offer.models)
    return reasons


def own_target(client: VendorClient) -> RequestTarget | None:
    """Return the target of calls for the client's own model, None when it has no model."""
    try:
        return client.target(None)
    except ValueError:
        return None


def _ask_all(clients: Sequence[VendorClient]) -> list[ModelOffer]:
    if not clients:
        return []
    asking = [partial(ask_offer, client) for client in clients]
    return runtime().run(lambda: gather(asking), label="asking endpoints for their models")
