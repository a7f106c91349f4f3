"""Failed model calls as errors of rath: class, words, retry and fallback."""

from __future__ import annotations

import asyncio
import errno
import json
import math
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from rath import errors
from rath._async.retry import DEFAULT_LONGEST_WAIT
from rath._core.text import one_line_preview
from rath.errors import (
    ModelNotFoundError,
    ProviderConnectionError,
    ProviderError,
    ProviderProtocolError,
    ProviderServerError,
    ProviderStatusError,
    ProviderTimeout,
    QuotaExceededError,
    RathError,
    StreamInterrupted,
)
from rath.llm.chat_response import fields_of, text_of
from rath.llm.credentials import RequestTarget

MAX_MESSAGE = 500
"""Characters of a vendor's words in one error."""

NO_SUCH_MODEL = "model_not_found"
"""The code of a refused model, where an endpoint gives one."""

_SHOWN_CHARS = 200
_UNREACHABLE = frozenset(
    {errno.ENETDOWN, errno.ENETUNREACH, errno.ENETRESET, errno.EHOSTDOWN, errno.EHOSTUNREACH}
)
"""Numbers of the errors of sockets for which Python has no class."""


@dataclass(frozen=True, slots=True)
class _StatusRow:
    """The meaning of one HTTP status."""

    error: type[ProviderStatusError]
    passes: bool = False
    """Whether waiting may mend it."""

    names_model: bool = False
    """Whether endpoints refuse a model with it."""


_STATUSES: Mapping[int, _StatusRow] = {
    400: _StatusRow(errors.InvalidRequestError, names_model=True),
    401: _StatusRow(errors.AuthenticationError),
    402: _StatusRow(QuotaExceededError),
    403: _StatusRow(errors.AuthenticationError, names_model=True),
    404: _StatusRow(ModelNotFoundError, names_model=True),
    408: _StatusRow(ProviderStatusError, passes=True),
    409: _StatusRow(errors.InvalidRequestError, passes=True),
    413: _StatusRow(errors.InvalidRequestError),
    422: _StatusRow(errors.InvalidRequestError, names_model=True),
    429: _StatusRow(errors.RateLimitError, passes=True),
    # What the endpoint does not implement now, it will not in a second.
    501: _StatusRow(ProviderServerError),
    505: _StatusRow(ProviderServerError),
}
_OTHER = _StatusRow(ProviderStatusError)
_OTHER_OF_SERVER = _StatusRow(ProviderServerError, passes=True)

_STATUS_OF_TYPE: Mapping[str, int] = {
    "api_error": 500,
    "authentication_error": 401,
    "billing_error": 402,
    "conflict_error": 409,
    "insufficient_quota": 429,
    "internal_server_error": 500,
    "invalid_request_error": 400,
    "not_found_error": 404,
    "overloaded_error": 529,
    "permission_error": 403,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "request_too_large": 413,
    "server_error": 500,
    "timeout_error": 504,
}
"""Statuses of the types, or codes, of errors that come in an answer with status 200: those of
OpenAI and of Anthropic, of which no two differ."""

_SPENT_CODES = re.compile(r"insufficient_quota|billing_.*|.*_spend_limit_reached")
"""Codes of an account with nothing left, such as `billing_hard_limit_reached` of OpenAI and
`contract_spend_limit_reached` of Anthropic."""

_SPENT_WORDS = ("credit balance is too low", "reached your specified api usage limits")
"""Anthropic's words for it in an answer to a bad request, with status 400 and no such code:
https://platform.claude.com/docs/en/api/errors"""


def status_error(
    target: RequestTarget,
    status: int,
    message: str,
    *,
    code: str | None = None,
    wait: float | None = None,
) -> ProviderStatusError:
    """Return the error for an answer with an error status.

    Args:
        target: Who was asked.
        status: HTTP status, or the one that a body of status 200 names.
        message: The endpoint's words.
        code: The vendor's code for it.
        wait: Seconds that the endpoint asks to wait.
    """
    row = _row(status)
    words = target.redactor.text(message).strip().rstrip(".")
    is_spent = _is_spent(status, code, words)
    kind = QuotaExceededError if is_spent else row.error
    # A conversation that is too long is said to exceed the model's context.
    folded = words.casefold()
    is_about_model = (
        bool(target.model)
        and row.names_model
        and not is_spent
        and (
            status == 404
            or code == NO_SUCH_MODEL
            or ("model" in folded and "context" not in folded)
        )
    )
    text = f"{target.name} answered with status {status}: {words}"
    key_origin = target.origin_of("api_key")
    if kind is errors.AuthenticationError:
        text += f". The key came from {key_origin}; check it and what it is allowed to do"
    elif kind is QuotaExceededError:
        text += (
            f". The account behind the key from {key_origin} has nothing left to spend. "
            "Waiting does not help: add credit or raise its limit at the vendor"
        )
    elif wait is not None and wait > DEFAULT_LONGEST_WAIT and row.passes:
        text += (
            f". It asks to wait {wait:.0f} s, longer than the {DEFAULT_LONGEST_WAIT:g} s that are "
            "waited for"
        )
    if is_about_model:
        text += f". The model {target.model!r} came from {target.origin_of('model')}"
        text += "; check that it and base_url exist there" if status == 404 else ""
    if code is not None:
        code = target.redactor.text(code)
    error = kind(text, endpoint=target.name, status=status, code=code, retry_after=wait)
    error.model = target.model if is_about_model else None
    return error


def response_error(
    target: RequestTarget, status: int, content: bytes, *, reason: str, headers: Mapping[str, str]
) -> ProviderStatusError:
    """Return the error for an answer with an error status, by its body and headers.

    Args:
        target: Who was asked.
        status: HTTP status.
        content: The body.
        reason: Words where the body has none.
        headers: May ask to wait.
    """
    message, code = decode_error_body(content)
    if message is None:
        message = f"{reason}; the body begins: {preview(target, content)!r}"
    words = one_line_preview(target.redactor.text(message), MAX_MESSAGE)
    return status_error(target, status, words, code=code, wait=retry_after(headers))


def decode_error_body(content: bytes) -> tuple[str | None, str | None]:
    """Return the message and the code of an error, as far as its body holds them.

    The error stands under `error` or alone; its details or its type stand in for a code.
    """
    try:
        fields = fields_of(json.loads(content))
    except (ValueError, RecursionError):
        return None, None
    inner = fields.get("error")
    if isinstance(inner, str):
        return inner.strip() or None, None
    fields = fields_of(inner) or fields
    message = fields.get("message") or fields.get("detail")
    code = _code(fields)
    code = fields.get("type") if code is None else code
    return None if message is None else str(message), None if code is None else str(code)


def answer_error(payload: Mapping[str, object], target: RequestTarget) -> ProviderError | None:
    """Return the error that an answer with status 200 is, if it is one."""
    error, is_typed = payload.get("error"), payload.get("type") == "error"
    if not error and not is_typed:
        return None
    if not isinstance(error, str) or is_typed:
        return reported_error(error, target)
    # So some servers answer where a path is not served at all.
    words = one_line_preview(target.redactor.text(error), MAX_MESSAGE)
    return ProviderProtocolError(
        f"{target.name} answered with status 200, but reports {words!r}; check base_url and "
        "provider_kind",
        endpoint=target.name,
        status=200,
    )


def reported_error(error: object, target: RequestTarget) -> ProviderError:
    """Return the error that stands in an answer, or in an event, whose status is 200."""
    fields = fields_of(error)
    code, kind = _code(fields), text_of(fields.get("type"))
    status = _STATUS_OF_TYPE.get(kind or str(code), 500)
    if isinstance(code, int) and 400 <= code < 600:
        status = code
    words = text_of(fields.get("message")) or (kind if len(fields) == 1 else None)
    words = words or (str(error) if error else "an error that it does not name")
    return status_error(target, status, words, code=kind if code is None else str(code))


def incomplete_error(
    target: RequestTarget, missing: str, payload: Mapping[str, object]
) -> ProviderProtocolError:
    """Return the error for an answer that lacks its essential part, such as "any choices"."""
    content = json.dumps(payload, ensure_ascii=False).encode(errors="replace")
    return protocol_error(target, f"without {missing}", content)


def protocol_error(
    target: RequestTarget, problem: str, content: bytes, *, status: int | None = None
) -> ProviderProtocolError:
    """Return the error for an answer that its protocol does not allow."""
    begins = f"It begins: {preview(target, content)!r}" if content else "It is empty"
    with_status = "" if status is None else f" with status {status}"
    return ProviderProtocolError(
        f"{target.name} answered{with_status}, but {target.redactor.text(problem)}. {begins}. "
        "Check that base_url names an API endpoint of this kind",
        endpoint=target.name,
        status=status,
    )


def timeout_error(target: RequestTarget) -> ProviderTimeout:
    """Return the error for an answer that did not come in time."""
    return ProviderTimeout(
        f"{target.name} gave no answer within {target.timeout:g} s; "
        "Provider(timeout=...) gives it more",
        endpoint=target.name,
    )


def connection_error(target: RequestTarget, reason: str) -> ProviderConnectionError:
    """Return the error for a connection that failed."""
    return ProviderConnectionError(
        f"the connection to {target.name} failed: {reason}. Check that base_url is right and "
        "the server is up",
        endpoint=target.name,
    )


def preview(target: RequestTarget, content: bytes) -> str:
    """Return the first characters of an answer, on one line and without the key."""
    # What is cut first may end with half a key; so much of it is read that this is not shown.
    n_read = _SHOWN_CHARS * (2 * max(len(target.secret), len(target.password)) + 1)
    text = target.redactor.text(content[:n_read].decode("utf-8", "replace"))
    return one_line_preview(text[:_SHOWN_CHARS], _SHOWN_CHARS)


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
    if not _row(status).passes or isinstance(error, QuotaExceededError | ProviderProtocolError):
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


def _row(status: int) -> _StatusRow:
    return _STATUSES.get(status, _OTHER_OF_SERVER if status >= 500 else _OTHER)


def _is_spent(status: int, code: str | None, words: str = "") -> bool:
    """Tell whether an answer says that the account has nothing left, so that waiting is vain."""
    if status == 402 or not 400 <= status < 500:
        return status == 402
    if code is not None and _SPENT_CODES.fullmatch(code):
        return True
    folded = words.casefold()
    return any(known in folded for known in _SPENT_WORDS)


def _code(fields: Mapping[str, object]) -> object:
    """Return the code of an error, which may stand among its details."""
    code = fields.get("code")
    return fields_of(fields.get("details")).get("error_code") if code is None else code


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None
