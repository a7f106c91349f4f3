"""The chat client for OpenAI, Azure OpenAI and every server that speaks their protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, ClassVar
from urllib.parse import quote, urlsplit

from rath._async.retry import Sleep
from rath.config.env import env_value
from rath.llm.call import ProviderOrigin
from rath.llm.credentials import Variables, resolve_account
from rath.llm.endpoint import is_azure, public_url
from rath.llm.failure import Asked
from rath.llm.openai.completions import COMPLETIONS_PATH, CompletionsClient
from rath.llm.openai.target import Target, open_wire
from rath.llm.provider import Provider
from rath.llm.vendor import Route
from rath.llm.wire import Wire

__all__ = ["OPENAI_RETRYABLE", "RathOpenAIChatClient"]

OPENAI_RETRYABLE: tuple[type[Exception], ...]
"""Exceptions of the SDK that another try may mend; imports the SDK on first use."""


DEFAULT_BASE_URL = "https://api.openai.com/v1"
DEFAULT_AZURE_VERSION = "2024-10-21"


def _key_names(base_url: str) -> Sequence[str]:
    """Return the variables that may hold the key; Azure prefers those that bear its name."""
    if is_azure(base_url):
        return "AZURE_OPENAI_API_KEY", "AZURE_API_KEY", "OPENAI_API_KEY"
    return "OPENAI_API_KEY", "AZURE_OPENAI_API_KEY"


_VARIABLES = Variables(
    api_key=_key_names,
    base_url=("OPENAI_BASE_URL", "AZURE_OPENAI_ENDPOINT"),
    model=("OPENAI_DEFAULT_MODEL",),
)


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
            provider, kind=self.kind, variables=_VARIABLES, default_base_url=DEFAULT_BASE_URL
        )
        self._account = account
        self._target = Target(
            base_url=_checked(account.base_url.value, account.base_url.origin),
            key_origin=account.api_key.origin,
            azure_version=_azure_version(account.base_url.value),
            from_project=account.from_project,
            api_key=account.api_key.value,
        )

    def route(self, model: str | None, *, provider_origin: ProviderOrigin = "call") -> Route:
        account = self._account
        chosen = model or (account.model.value if account.model else None)
        if not chosen:
            raise ValueError(
                "model is required: name one in Provider(model=...), in OPENAI_DEFAULT_MODEL or "
                "in the config"
            )
        origins = dict(account.origins)
        if account.model is None or account.model.value != chosen:
            origins = {"model": "call", **origins}
        root = self._target.base_url + ("/openai" if self._target.azure_version else "")
        return Route(
            endpoint=public_url(root + self._path(chosen)),
            model=chosen,
            origins=tuple(
                (name, provider_origin if origin == "call" else origin)
                for name, origin in origins.items()
            ),
            secret=account.api_key.value,
        )

    async def connect(self, asked: Asked) -> Wire:
        return await open_wire(self._target, self._path(asked.model), asked)

    def _path(self, model: str) -> str:
        """Return the path below the endpoint; Azure has one for each deployed model."""
        if self._target.azure_version is None:
            return COMPLETIONS_PATH
        return f"/deployments/{quote(model, safe='')}{COMPLETIONS_PATH}"


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


def _checked(base_url: str, origin: str) -> str:
    if public_url(base_url) is None or urlsplit(base_url).scheme not in {"http", "https"}:
        raise ValueError(
            "base_url must begin with http:// or https:// and name a host, not "
            f"{base_url!r}; it came from {origin}"
        )
    return base_url.rstrip("/")


def _azure_version(base_url: str) -> str | None:
    """Return the API version for an Azure resource; one of the v1 API needs none."""
    if not is_azure(base_url) or "/openai/v1" in urlsplit(base_url).path:
        return None
    return env_value("OPENAI_API_VERSION") or DEFAULT_AZURE_VERSION
