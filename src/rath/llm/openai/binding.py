"""The SDK of OpenAI for the shared layer; imports it."""

from __future__ import annotations

from typing import Any

import openai

from rath.llm.sdk.binding import ClientParts, Sdk, SdkClient
from rath.llm.sdk.target import Target

__all__ = ["SDK"]


def _make_client(target: Target, parts: ClientParts) -> SdkClient:
    shared: Any = {
        "api_key": target.api_key,
        "max_retries": parts.max_retries,
        "default_headers": parts.default_headers,
        "http_client": parts.http_client,
    }
    client: openai.AsyncOpenAI
    if target.api_version is None:
        client = openai.AsyncOpenAI(base_url=target.base_url, **shared)
    else:
        client = openai.AsyncAzureOpenAI(
            azure_endpoint=target.base_url, api_version=target.api_version, **shared
        )
    if target.from_project:
        # The environment names the user's own; a project's endpoint need not know of them.
        client.organization = client.project = None
    return client


SDK = Sdk(
    version=openai.__version__,
    make_client=_make_client,
    make_http_client=openai.DefaultAsyncHttpxClient,
    stream_cls=openai.AsyncStream[Any],
    omit=openai.Omit(),
    base_error=openai.OpenAIError,
    status_error=openai.APIStatusError,
    timeout_error=openai.APITimeoutError,
    # Without this the SDK may also send an administrator's key that it finds in the environment.
    call_options={"security": {"bearer_auth": True}},
)
