"""The SDK of Anthropic for the shared layer; imports it."""

from __future__ import annotations

from typing import Any

import anthropic

from rath.llm.sdk.binding import ClientParts, Sdk, SdkClient
from rath.llm.sdk.target import Target

__all__ = ["SDK"]


def _make_client(target: Target, parts: ClientParts) -> SdkClient:
    given: Any = {
        # With a key the SDK looks for no other credential, be it a token or a profile on disk.
        "api_key": target.api_key,
        "base_url": target.base_url,
        "max_retries": parts.max_retries,
        "default_headers": parts.default_headers,
        "http_client": parts.http_client,
    }
    return anthropic.AsyncAnthropic(**given)


SDK = Sdk(
    version=anthropic.__version__,
    make_client=_make_client,
    make_http_client=anthropic.DefaultAsyncHttpxClient,
    stream_cls=anthropic.AsyncStream[Any],
    omit=anthropic.Omit(),
    base_error=anthropic.AnthropicError,
    status_error=anthropic.APIStatusError,
    timeout_error=anthropic.APITimeoutError,
)
