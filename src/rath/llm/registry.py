"""Which chat client speaks to which kind of provider."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable

from rath._core.registry import Registry
from rath.llm.base import ChatClient
from rath.llm.provider import Provider
from rath.llm.vendor import VendorClient

__all__ = [
    "DEFAULT_KIND",
    "ChatClientFactory",
    "chat_client_for",
    "clear_client_cache",
    "register_chat_client",
    "registered_kinds",
]

ChatClientFactory = Callable[[Provider], ChatClient]

DEFAULT_KIND = "openai"

_CacheKey = tuple[Hashable, ...]
"""The kind, and all that the provider itself says of how calls are made."""


class _UnknownKind(ValueError, LookupError):
    """No chat client is registered for a provider kind."""


def _unknown_kind(name: str, known: list[str], hint: str) -> LookupError:
    return _UnknownKind(
        f"unknown provider_kind {name!r}.{hint} Known: {', '.join(sorted(known)) or 'none'}. "
        "Add one with register_chat_client(...) or as an entry point of 'rath.providers'."
    )


_kinds: Registry[ChatClientFactory] = Registry(
    "provider kind",
    group="rath.providers",
    builtins={
        "anthropic": "rath.llm.anthropic.client:RathAnthropicChatClient",
        "litellm": "rath.llm.litellm.client:RathLiteLLMChatClient",
        "openai": "rath.llm.openai.client:RathOpenAIChatClient",
        "local": "rath.llm.local.server:RathLocalChatClient",
    },
    not_found=_unknown_kind,
)
_clients: dict[_CacheKey, ChatClient] = {}
_clients_lock = threading.Lock()


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
    made = factory(provider)
    with _clients_lock:
        known = _clients.get(key)
        if known is None or not _are_alike(known, made):
            _clients[key] = known = made
    return known


def registered_kinds() -> tuple[str, ...]:
    """Return all known kinds in alphabetical order; loads none of them."""
    return tuple(sorted(_kinds.names()))


def clear_client_cache() -> None:
    """Forget the clients that `chat_client_for` would give again."""
    with _clients_lock:
        _clients.clear()


def _are_alike(known: ChatClient, made: ChatClient) -> bool:
    """Tell whether two clients that were made for one key call the same way."""
    if not isinstance(known, VendorClient) or not isinstance(made, VendorClient):
        return True
    return type(known) is type(made) and known.looked_up() == made.looked_up()
