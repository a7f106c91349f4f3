"""Where LiteLLM is told to call, for code that must not import it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rath.llm.credentials import RequestTarget
from rath.llm.transport import ConnectionPool, Transport

if TYPE_CHECKING:
    from rath.llm.litellm.connection import LiteLLMConnection

__all__ = ["LiteLLMTarget", "open_litellm"]


@dataclass(frozen=True, slots=True)
class LiteLLMTarget:
    """An endpoint and a key; LiteLLM looks for what is missing."""

    api_base: str | None = field(repr=False)
    key_origin: str
    api_key: str = field(repr=False)


async def open_litellm(target: LiteLLMTarget, asked: RequestTarget) -> Transport:
    """Return the way through LiteLLM; the first one imports it, for seconds, on a worker thread."""
    return (await _connections.get(target)).wire(asked)


def _connect(target: LiteLLMTarget) -> LiteLLMConnection:
    from rath.llm.litellm.connection import LiteLLMConnection

    return LiteLLMConnection(target)


_connections: ConnectionPool[LiteLLMTarget, LiteLLMConnection] = ConnectionPool(_connect)
