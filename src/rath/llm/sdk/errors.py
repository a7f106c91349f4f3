"""Exceptions of an SDK and of its HTTP client as errors of rath; imports the HTTP client."""

from __future__ import annotations

from traceback import clear_frames
from typing import Any, TypeVar, cast

import httpx2

from rath._core.text import one_line_preview
from rath.errors import ProviderConnectionError, ProviderError
from rath.llm.failure import Asked, retry_after, status_error, timeout_error
from rath.llm.sdk.binding import Sdk
from rath.llm.sdk.decode import decode_error_body

__all__ = ["map_error", "mapped_by", "without_locals"]

_MAX_MESSAGE = 500

E = TypeVar("E", bound=BaseException)


def mapped_by(sdk: Sdk) -> tuple[type[Exception], ...]:
    """Return what `map_error` takes from a call through `sdk`."""
    return (sdk.base_error, httpx2.HTTPError, httpx2.InvalidURL)


def map_error(exc: Exception, sdk: Sdk, asked: Asked) -> ProviderError:
    """Return the error of rath for one of `mapped_by(sdk)`; its text holds no key."""
    if isinstance(exc, sdk.status_error):
        return _from_status(exc, asked)
    # The SDK wraps what its HTTP client raised; a stream is read from that client itself.
    cause = exc if isinstance(exc, httpx2.HTTPError) else exc.__cause__ or exc
    if isinstance(cause, httpx2.ConnectTimeout | httpx2.PoolTimeout):
        return _no_connection(asked, "it did not open in time")
    if isinstance(exc, sdk.timeout_error) or isinstance(cause, httpx2.TimeoutException):
        return timeout_error(asked)
    reason = one_line_preview(asked.without_secret(str(cause)), _MAX_MESSAGE)
    return _no_connection(asked, f"{type(cause).__name__}{reason and ': '}{reason}")


def without_locals(exc: E) -> E:
    """Return `exc` with no variables in the frames that it and what it came from have left.

    Those of the HTTP client hold the headers of a request that ended while it was sent, and so the
    key, which tools that report errors with local variables would show.
    """
    left, seen = list[BaseException | None]([exc]), set[int]()
    while left:
        each = left.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            clear_frames(each.__traceback__)
            left += (each.__cause__, each.__context__)
            if isinstance(each, BaseExceptionGroup):
                # `isinstance` does not tell of what it is a group.
                left += cast("BaseExceptionGroup[BaseException]", each).exceptions
    return exc


def _no_connection(asked: Asked, reason: str) -> ProviderConnectionError:
    return ProviderConnectionError(
        f"the connection to {asked.endpoint} failed: {reason}. Check that base_url is right and "
        "the server is up",
        endpoint=asked.endpoint,
    )


def _from_status(exc: Any, asked: Asked) -> ProviderError:
    response: httpx2.Response = exc.response
    message, code = decode_error_body(response.content)
    if message is None:
        message = f"{response.reason_phrase}; the body begins: {asked.preview(response.content)!r}"
    return status_error(
        asked,
        response.status_code,
        one_line_preview(asked.without_secret(message), _MAX_MESSAGE),
        code=code,
        wait=retry_after(response.headers),
    )
