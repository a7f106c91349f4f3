"""Which chat client speaks to which kind of provider."""

from __future__ import annotations

import threading
from collections.abc import Callable

from rath._core.registry import Registry
from rath.llm.base import ChatClient
from rath.llm.provider import Provider

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

_CacheKey = tuple[str, str, str, str, int | None, float | None, float | None]


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
        "openai": "rath.llm.openai.client:RathOpenAIChatClient",
        "local": "rath.llm.local.client:RathLocalChatClient",
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
    retries and timeout are the same.

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
    )  # fmt: skip
    with _clients_lock:
        known = _clients.get(key)
    if known is None:
        made = factory(provider)
        with _clients_lock:
            known = _clients.setdefault(key, made)
    return known


def registered_kinds() -> tuple[str, ...]:
    """Return all known kinds in alphabetical order; loads none of them."""
    return tuple(sorted(_kinds.names()))


def clear_client_cache() -> None:
    """Forget the clients that `chat_client_for` would give again."""
    with _clients_lock:
        _clients.clear()
