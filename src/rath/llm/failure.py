"""Failed calls as errors of rath: which class, which words, and whether to try again."""

from __future__ import annotations

import asyncio
import errno
import math
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from rath._async.retry import DEFAULT_LONGEST_WAIT
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
    QuotaExceededError,
    RateLimitError,
    RathError,
    StreamInterrupted,
)
from rath.llm.repeated_key import answer_without, event_without, without_secret

__all__ = [
    "NO_SUCH_MODEL",
    "Asked",
    "may_fall_back",
    "network_error_class",
    "protocol_error",
    "retry_after",
    "retry_verdict",
    "status_error",
    "timeout_error",
    "untyped_error",
    "without_secret",
]

_UNREACHABLE = frozenset(
    {errno.ENETDOWN, errno.ENETUNREACH, errno.ENETRESET, errno.EHOSTDOWN, errno.EHOSTUNREACH}
)
"""Numbers of the errors of sockets for which Python has no class."""

_SHOWN_CHARS = 200
_MAX_MESSAGE = 500
_NO_QUOTA = "insufficient_quota"
_BILLING = "billing_"
"""How every code about a bill begins: `billing_hard_limit_reached`, `billing_not_active`."""

_SPEND_LIMIT = "_spend_limit_reached"
"""How Anthropic's codes about a limit in money end: `contract_spend_limit_reached`."""

_SPENT_IN_WORDS = ("credit balance is too low", "reached your specified api usage limits")
"""How Anthropic says it where it answers like to a bad request, with status 400 and no such code:
https://platform.claude.com/docs/en/api/errors"""

_CLASSES: Mapping[int, type[ProviderStatusError]] = {
    400: InvalidRequestError,
    401: AuthenticationError,
    402: QuotaExceededError,
    403: AuthenticationError,
    404: ModelNotFoundError,
    409: InvalidRequestError,
    413: InvalidRequestError,
    422: InvalidRequestError,
    429: RateLimitError,
}
_ABOUT_MODEL = frozenset({400, 403, 404, 422})
"""Statuses with which endpoints refuse a model."""

NO_SUCH_MODEL = "model_not_found"
"""The code of a refused model, where an endpoint gives one."""

_MENDED_BY_WAITING = frozenset({408, 409, 429})
_NEVER_MENDED = frozenset({501, 505})
"""What the endpoint does not implement now, it will not in a second."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Who was asked for what, for the words of an error."""

    endpoint: str
    """Scheme, host and path, or what else names it."""

    model: str
    """Empty where no model was asked for anything."""

    model_origin: str
    key_origin: str
    timeout: float
    """Seconds."""

    secret: str = field(repr=False)
    password: str = field(default="", repr=False)
    """The one in the base URL."""

    def without_secret(self, text: str) -> str:
        """Return `text` with the key replaced wherever a vendor or a proxy repeated it."""
        return without_secret(without_secret(text, self.secret), self.password)

    def answer_without_secret(self, content: bytes) -> bytes:
        """Return an answer with the key hidden in it; `content` itself where it holds none."""
        return answer_without(answer_without(content, self.secret), self.password)

    def event_without_secret(self, data: str) -> str:
        """Return an event of a stream with the key hidden in it."""
        return event_without(event_without(data, self.secret), self.password)

    def preview(self, content: bytes) -> str:
        """Return the first characters of an answer, on one line."""
        # What is cut first may end with half a key; so much of it is read that this is not shown.
        n_read = _SHOWN_CHARS * (2 * max(len(self.secret), len(self.password)) + 1)
        text = self.without_secret(content[:n_read].decode("utf-8", "replace"))
        return one_line_preview(text[:_SHOWN_CHARS], _SHOWN_CHARS)


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
    said = asked.without_secret(message).strip().rstrip(".")
    is_spent = _is_spent(status, code, said)
    kind = QuotaExceededError if is_spent else _CLASSES.get(status, default)
    is_about_model = not is_spent and _is_about_model(asked, status, said, code=code)
    text = (
        f"{asked.endpoint} answered with status {status}: {said}{_advice(asked, kind)}"
        f"{_wait_advice(status, wait) if kind is not QuotaExceededError else ''}"
        f"{_model_advice(asked, status) if is_about_model else ''}"
    )
    if code is not None:
        code = asked.without_secret(code)
    error = kind(text, endpoint=asked.endpoint, status=status, code=code, retry_after=wait)
    error.model = asked.model if is_about_model else None
    return error


def protocol_error(
    asked: Asked, problem: str, content: bytes, *, status: int | None = None
) -> ProviderProtocolError:
    """Return the error for an answer that its protocol does not allow."""
    begins = f"It begins: {asked.preview(content)!r}" if content else "It is empty"
    with_status = "" if status is None else f" with status {status}"
    return ProviderProtocolError(
        f"{asked.endpoint} answered{with_status}, but {asked.without_secret(problem)}. {begins}. "
        "Check that base_url names an API endpoint of this kind",
        endpoint=asked.endpoint,
        status=status,
    )


def untyped_error(asked: Asked, said: str) -> ProviderProtocolError:
    """Return the error for an answer with status 200 that is nothing but the text of an error.

    So some servers answer where a path is not served at all.
    """
    shown = one_line_preview(asked.without_secret(said), _MAX_MESSAGE)
    return ProviderProtocolError(
        f"{asked.endpoint} answered with status 200, but reports {shown!r}; check base_url and "
        "provider_kind",
        endpoint=asked.endpoint,
        status=200,
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
    except (ValueError, OverflowError):
        return None  # no date, or one so far away that no date can be that
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, (moment - datetime.now(UTC)).total_seconds())


def retry_verdict(error: BaseException) -> float | bool:
    """Tell whether another try may mend `error`, or after how many seconds it may."""
    if isinstance(error, ProviderConnectionError | ProviderTimeout | StreamInterrupted):
        return True
    if not isinstance(error, ProviderError) or error.status is None:
        return False
    status = error.status
    if not _may_pass(status) or isinstance(error, QuotaExceededError | ProviderProtocolError):
        return False
    if _is_spent(status, error.code):
        return False
    return True if error.retry_after is None else error.retry_after


def may_fall_back(error: BaseException) -> bool:
    """Tell whether another provider may answer where one failed with `error`.

    So it is for what another try may mend, and for an account that has nothing left to spend. A
    refused key, request or model is a mistake that a fallback would only hide.
    """
    if isinstance(error, QuotaExceededError) or retry_verdict(error) is not False:
        return True
    return not isinstance(error, RathError) and network_error_class(error) is not ProviderError


def network_error_class(error: BaseException) -> type[ProviderError]:
    """Return the class for what the network did to a client that knows only Python's errors."""
    if isinstance(error, TimeoutError):
        return ProviderTimeout
    if isinstance(error, OSError) and (
        isinstance(error, ConnectionError | socket.gaierror) or error.errno in _UNREACHABLE
    ):
        return ProviderConnectionError
    if isinstance(error, asyncio.IncompleteReadError):
        return ProviderConnectionError
    return ProviderError


def _may_pass(status: int) -> bool:
    return status in _MENDED_BY_WAITING or (status >= 500 and status not in _NEVER_MENDED)


def _is_about_model(asked: Asked, status: int, said: str, *, code: str | None) -> bool:
    if not asked.model or status not in _ABOUT_MODEL:
        return False
    if status == 404 or code == NO_SUCH_MODEL:
        return True
    # A conversation that is too long is said to exceed the model's context.
    words = said.casefold()
    return "model" in words and "context" not in words


def _is_spent(status: int, code: str | None, said: str = "") -> bool:
    """Tell whether an answer says that the account has nothing left, so that waiting is vain."""
    if status == 402 or not 400 <= status < 500:
        return status == 402
    if code is not None and (
        code == _NO_QUOTA or code.startswith(_BILLING) or code.endswith(_SPEND_LIMIT)
    ):
        return True
    words = said.casefold()
    return any(known in words for known in _SPENT_IN_WORDS)


def _advice(asked: Asked, kind: type[ProviderStatusError]) -> str:
    if kind is AuthenticationError:
        return f". The key came from {asked.key_origin}; check it and what it is allowed to do"
    if kind is QuotaExceededError:
        return (
            f". The account behind the key from {asked.key_origin} has nothing left to spend. "
            "Waiting does not help: add credit or raise its limit at the vendor"
        )
    return ""


def _wait_advice(status: int, wait: float | None) -> str:
    """Return why there was no other try, where the endpoint asks for more time than is given."""
    if wait is None or wait <= DEFAULT_LONGEST_WAIT or not _may_pass(status):
        return ""
    return (
        f". It asks to wait {wait:.0f} s, longer than the {DEFAULT_LONGEST_WAIT:g} s that are "
        "waited for"
    )


def _model_advice(asked: Asked, status: int) -> str:
    check = "; check that it and base_url exist there" if status == 404 else ""
    return f". The model {asked.model!r} came from {asked.model_origin}{check}"


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None
