"""Exceptions of LiteLLM as errors of rath; imports LiteLLM.

LiteLLM maps what a vendor's client raised to a class of its own, and often to another status: a 403
of Anthropic becomes a lost connection, a lost connection a status 500. What really happened stands
in the chain of the exception, so that is read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, cast

import httpx
import openai

from rath._core.text import one_line_preview
from rath.config.redaction import cause_without, redact
from rath.config.secrets import looks_secret
from rath.errors import (
    AuthenticationError,
    ProviderConnectionError,
    ProviderError,
    ProviderProtocolError,
)
from rath.llm.credentials import RequestTarget
from rath.llm.errors import (
    decode_error_body,
    protocol_error,
    reported_error,
    retry_after,
    status_error,
    timeout_error,
)
from rath.llm.litellm.library import litellm

__all__ = ["MAPPED", "RETRYABLE", "map_error", "shown_cause"]

MAPPED: tuple[type[Exception], ...] = (openai.OpenAIError, httpx.HTTPError, ValueError)
"""What `map_error` takes: LiteLLM's classes are subclasses of OpenAI's."""

RETRYABLE: tuple[type[Exception], ...] = (
    litellm.RateLimitError,
    litellm.APIConnectionError,
    litellm.Timeout,
    litellm.ServiceUnavailableError,
    litellm.InternalServerError,
)

_MIDSTREAM: type[Exception] = litellm.exceptions.MidStreamFallbackError
_MAX_MESSAGE = 500
_MIN_SECRET = 8


def map_error(exc: Exception, asked: RequestTarget) -> ProviderError:
    """Return the error of rath for one of `MAPPED`; its text holds no key."""
    foreign = [each for each in _chain(exc) if not type(each).__module__.startswith("litellm")]
    for each in reversed(foreign):
        if (response := _response(each)) is not None:
            return _from_status(response, each, asked)
    for each in foreign:
        error = _from_foreign(each, asked)
        if error is not None:
            return error
    if isinstance(exc, openai.APITimeoutError):
        return timeout_error(asked)
    status: object = getattr(exc, "status_code", None)
    is_unread = status == 500 and not foreign and not isinstance(exc, _MIDSTREAM)
    if isinstance(status, int) and not is_unread:
        return status_error(asked, status, _words(exc, asked))
    return ProviderProtocolError(
        f"LiteLLM cannot use the answer of {asked.endpoint}: {_words(exc, asked)}",
        endpoint=asked.endpoint,
    )


def shown_cause(exc: Exception, asked: RequestTarget) -> Exception | None:
    """Return `exc` as a cause unless what a traceback shows of it repeats a key."""
    return cause_without(exc, partial(_masked, asked=asked))


def _from_foreign(exc: BaseException, asked: RequestTarget) -> ProviderError | None:
    """Return the error for what a vendor's client raised without an answer, if it is known."""
    if isinstance(exc, httpx.ConnectTimeout | httpx.PoolTimeout):
        return _no_connection(asked, "it did not open in time")
    if isinstance(exc, openai.APITimeoutError | httpx.TimeoutException):
        return timeout_error(asked)
    if isinstance(exc, json.JSONDecodeError):
        return protocol_error(asked, "not with the JSON that was expected", exc.doc.encode())
    if isinstance(exc, httpx.TransportError):
        return _no_connection(asked, f"{type(exc).__name__}: {_words(exc, asked)}")
    if isinstance(exc, openai.APIConnectionError):
        return None  # what it wraps says more
    if isinstance(exc, openai.APIError):
        return reported_error(exc.body or str(exc), asked)
    if isinstance(exc, openai.OpenAIError):
        return AuthenticationError(
            f"LiteLLM did not call {asked.endpoint}: {_words(exc, asked)}", endpoint=asked.endpoint
        )
    return None


def _chain(exc: BaseException) -> Iterator[BaseException]:
    shown: BaseException | None = exc
    while shown is not None:
        yield shown
        shown = shown.__cause__ or shown.__context__


def _response(exc: BaseException) -> Any:
    response: Any = getattr(exc, "response", None)
    return response if isinstance(getattr(response, "status_code", None), int) else None


def _from_status(response: Any, exc: BaseException, asked: RequestTarget) -> ProviderError:
    try:
        content: bytes = response.content
    except (httpx.StreamError, RuntimeError):
        content = b""  # a streamed answer that nobody has read
    message, code = decode_error_body(content)
    headers = cast("Mapping[str, str]", response.headers)
    return status_error(
        asked,
        response.status_code,
        _words(message or exc, asked),
        code=code,
        wait=retry_after(headers),
    )


def _no_connection(asked: RequestTarget, reason: str) -> ProviderConnectionError:
    return ProviderConnectionError(
        f"the connection to {asked.endpoint} failed: {reason}. Check that base_url is right and "
        "the server is up",
        endpoint=asked.endpoint,
    )


def _words(said: object, asked: RequestTarget) -> str:
    return one_line_preview(_masked(str(said), asked), _MAX_MESSAGE)


def _masked(text: str, asked: RequestTarget) -> str:
    """Hide the key, and those of the environment that LiteLLM may have found by itself."""
    text = asked.redactor.text(text)
    for name, value in os.environ.items():
        if len(value) >= _MIN_SECRET and looks_secret(name):
            text = redact(text, value)
    return text
