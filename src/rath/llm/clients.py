"""Clients for providers, where that none can be made is an answer and no error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from rath.llm.base import ChatClient
from rath.llm.provider import Provider
from rath.llm.registry import chat_client_for
from rath.llm.repeated_key import without_secret

__all__ = ["Unusable", "make_client", "or_unusable"]

C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class Unusable:
    """Why no client could be made."""

    problem: str
    """Without the key."""


def make_client(provider: Provider) -> ChatClient | Unusable:
    """Return a client for a provider, or why there is none; nothing is sent.

    It looks up the provider's kind, its endpoint and key, and the package that it needs.
    """
    return or_unusable(partial(chat_client_for, provider), key=provider.api_key)


def or_unusable(make: Callable[[], C], *, key: str | None) -> C | Unusable:
    """Return the client that `make` makes, or why it makes none, without the key."""
    try:
        return make()
    except Exception as exc:  # noqa: BLE001  # kinds of others raise anything; it is told here
        return Unusable(without_secret(str(exc) or type(exc).__name__, key or ""))
