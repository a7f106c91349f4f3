"""Failed calls as errors of rath: which class, which words, and whether to try again."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from urllib.parse import quote

from rath._core.text import one_line_preview
from rath.errors import (
    AuthenticationError,
    InvalidRequestError,
    ModelNotFoundError,
    ProviderConnectionError,
    ProviderError,
    ProviderProtocolError,
    ProviderServerError,
    ProviderStatusError,
    ProviderTimeout,
    RateLimitError,
    StreamInterrupted,
)

__all__ = [
    "Asked",
    "protocol_error",
    "retry_after",
    "retry_verdict",
    "status_error",
    "timeout_error",
]

_SHOWN_BYTES = 200
_MIN_SECRET = 6
"""A shorter key is no secret, and hiding it would only garble texts."""

_FINAL_CODES = frozenset({"insufficient_quota", "billing_hard_limit_reached", "billing_not_active"})
"""Codes of a 429 that waiting does not mend."""

_CLASSES: Mapping[int, type[ProviderStatusError]] = {
    400: InvalidRequestError,
    401: AuthenticationError,
    403: AuthenticationError,
    404: ModelNotFoundError,
    409: InvalidRequestError,
    413: InvalidRequestError,
    422: InvalidRequestError,
    429: RateLimitError,
}
_MENDED_BY_WAITING = frozenset({408, 409, 429})


@dataclass(frozen=True, slots=True)
class Asked:
    """Who was asked for what, for the words of an error."""

    endpoint: str
    """Scheme, host and path, or what else names it."""

    model: str
    model_origin: str
    key_origin: str
    timeout: float
    """Seconds."""

    secret: str = field(repr=False)

    def without_secret(self, text: str) -> str:
        """Return `text` with the key replaced wherever a vendor or a proxy repeated it."""
        if len(self.secret) < _MIN_SECRET:
            return text
        return text.replace(self.secret, "***").replace(quote(self.secret, safe=""), "***")

    def preview(self, content: bytes) -> str:
        """Return the first bytes of an answer, on one line."""
        text = content[:_SHOWN_BYTES].decode("utf-8", "replace")
        return self.without_secret(one_line_preview(text, _SHOWN_BYTES))


def status_error(
    asked: Asked,
    status: int,
    message: str,
    *,
    code: str | None = None,
    wait: float | None = None,
) -> ProviderStatusError:
    """Return the error for an answer with an error status.

    Args:
        asked: Who was asked.
        status: HTTP status, or the one that a body of status 200 names.
        message: What the endpoint says about it.
        code: The vendor's code for it.
        wait: Seconds that the endpoint asks to wait.
    """
    default = ProviderServerError if status >= 500 else ProviderStatusError
    kind = _CLASSES.get(status, default)
    said = asked.without_secret(message).strip().rstrip(".")
    text = f"{asked.endpoint} answered with status {status}: {said}{_advice(asked, status, code)}"
    return kind(text, endpoint=asked.endpoint, status=status, code=code, retry_after=wait)


def protocol_error(
    asked: Asked, problem: str, content: bytes, *, status: int | None = None
) -> ProviderProtocolError:
    """Return the error for an answer that its protocol does not allow."""
    begins = f"It begins: {asked.preview(content)!r}" if content else "It is empty"
    with_status = "" if status is None else f" with status {status}"
    return ProviderProtocolError(
        f"{asked.endpoint} answered{with_status}, but {problem}. {begins}. Check that base_url "
        "names an API endpoint of this kind",
        endpoint=asked.endpoint,
        status=status,
    )


def timeout_error(asked: Asked) -> ProviderTimeout:
    """Return the error for an answer that did not come in time."""
    return ProviderTimeout(
        f"{asked.endpoint} gave no answer within {asked.timeout:g} s; "
        "Provider(timeout=...) gives it more",
        endpoint=asked.endpoint,
    )


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that the headers of an answer ask to wait, or None.

    `retry-after-ms` is read first, then `retry-after` in seconds or as an HTTP date.
    """
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    text = headers.get("retry-after")
    seconds = _number(text)
    if seconds is not None or not text:
        return seconds
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, (moment - datetime.now(UTC)).total_seconds())


def retry_verdict(error: BaseException) -> float | bool:
    """Tell whether another try may mend `error`, or after how many seconds it may."""
    if isinstance(error, ProviderConnectionError | ProviderTimeout | StreamInterrupted):
        return True
    if not isinstance(error, ProviderError) or error.status is None:
        return False
    mended = error.status in _MENDED_BY_WAITING or error.status >= 500
    if not mended or error.code in _FINAL_CODES or isinstance(error, ProviderProtocolError):
        return False
    return True if error.retry_after is None else error.retry_after


def _advice(asked: Asked, status: int, code: str | None) -> str:
    if status in {401, 403}:
        return f". The key came from {asked.key_origin}; check it and what it is allowed to do"
    if status == 404:
        return (
            f". The model {asked.model!r} came from {asked.model_origin}; check that it and "
            "base_url exist there"
        )
    if code in _FINAL_CODES:
        return ". The account has no quota left; retrying does not help"
    return ""


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None
