"""The chat client for OpenAI, Azure OpenAI and every server that speaks their protocol."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from rath._async.retry import Sleep
from rath.llm.call import ProviderOrigin
from rath.llm.credentials import resolve_account
from rath.llm.failure import Asked
from rath.llm.openai.completions import COMPLETIONS_PATH, CompletionsClient
from rath.llm.openai.endpoint import DEFAULT_BASE_URL, OpenAIEndpoint
from rath.llm.provider import Provider
from rath.llm.variables import OPENAI
from rath.llm.vendor import Route
from rath.llm.wire import Wire

__all__ = ["OPENAI_RETRYABLE", "RathOpenAIChatClient"]

OPENAI_RETRYABLE: tuple[type[Exception], ...]
"""Exceptions of the SDK that another try may mend; imports the SDK on first use."""


class RathOpenAIChatClient(CompletionsClient):
    """Speaks chat completions, whole and streamed.

    Args:
        provider: Endpoint, key, model and patience; see `Provider`.
        sleep: Waits between tries; for tests.

    Raises:
        ValueError: There is no key, or the base_url is not one.
    """

    kind: ClassVar[str] = "openai"
    sdk: ClassVar[str | None] = "openai"

    def __init__(self, provider: Provider, *, sleep: Sleep = asyncio.sleep) -> None:
        super().__init__(provider, sleep=sleep)
        account = resolve_account(
            provider, kind=self.kind, variables=OPENAI, default_base_url=DEFAULT_BASE_URL
        )
        self._endpoint = OpenAIEndpoint.of(account, COMPLETIONS_PATH)

    def route(self, model: str | None, *, provider_origin: ProviderOrigin = "call") -> Route:
        known = self._endpoint.account.model
        chosen = model or (known.value if known else None)
        if not chosen:
            raise ValueError(
                "model is required: name one in Provider(model=...), in OPENAI_DEFAULT_MODEL or "
                "in the config"
            )
        return self._endpoint.route(chosen, provider_origin=provider_origin)

    def looked_up(self) -> object:
        return self._endpoint

    async def connect(self, asked: Asked) -> Wire:
        return await self._endpoint.connect(asked)


def __getattr__(name: str) -> Any:
    """Give `OPENAI_RETRYABLE`, which needs the SDK, on first use."""
    if name != "OPENAI_RETRYABLE":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import openai

    return (
        openai.RateLimitError,
        openai.APIConnectionError,
        openai.APITimeoutError,
        openai.InternalServerError,
    )
