"""Exceptions of the SDK and of its HTTP client as errors of rath; imports the SDK."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import httpx2
import openai

from rath._core.text import one_line_preview
from rath.errors import ProviderConnectionError, ProviderError
from rath.llm.failure import Asked, retry_after, status_error, timeout_error

__all__ = ["MAPPED", "map_error"]

MAPPED = (openai.OpenAIError, httpx2.HTTPError, httpx2.InvalidURL)
"""What `map_error` takes."""

_MAX_MESSAGE = 500


def map_error(exc: Exception, asked: Asked) -> ProviderError:
    """Return the error of rath for one of `MAPPED`; its text holds no key."""
    if isinstance(exc, openai.APIStatusError):
        return _from_status(exc, asked)
    # The SDK wraps what its HTTP client raised; a stream is read from that client itself.
    cause = exc if isinstance(exc, httpx2.HTTPError) else exc.__cause__ or exc
    if isinstance(cause, httpx2.ConnectTimeout | httpx2.PoolTimeout):
        return _no_connection(asked, "it did not open in time")
    if isinstance(exc, openai.APITimeoutError) or isinstance(cause, httpx2.TimeoutException):
        return timeout_error(asked)
    reason = one_line_preview(asked.without_secret(str(cause)), _MAX_MESSAGE)
    return _no_connection(asked, f"{type(cause).__name__}{reason and ': '}{reason}")


def _no_connection(asked: Asked, reason: str) -> ProviderConnectionError:
    return ProviderConnectionError(
        f"the connection to {asked.endpoint} failed: {reason}. Check that base_url is right and "
        "the server is up",
        endpoint=asked.endpoint,
    )


def _from_status(exc: openai.APIStatusError, asked: Asked) -> ProviderError:
    response = exc.response
    message, code = _said(exc.body)
    if message is None:
        message = f"{response.reason_phrase}; the body begins: {asked.preview(response.content)!r}"
    return status_error(
        asked,
        response.status_code,
        one_line_preview(message, _MAX_MESSAGE),
        code=code,
        wait=retry_after(response.headers),
    )


def _said(body: object) -> tuple[str | None, str | None]:
    """Return the message and the code of an error body in the vendor's form."""
    if not isinstance(body, Mapping):
        return None, None
    fields = cast("Mapping[str, Any]", body)
    message, code = fields.get("message") or fields.get("detail"), fields.get("code")
    code = code if code is not None else fields.get("type")
    return None if message is None else str(message), None if code is None else str(code)
