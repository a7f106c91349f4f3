"""What the errors of an SDK show of the request that they came from."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from traceback import TracebackException

import httpx2
import pytest

from rath.llm.sdk_transport import map_error, without_locals
from tests.support.asking import KEY
from tests.support.error_table import assert_is, documented
from tests.support.targets import request_target

ASKED = request_target("https://h/v1", timeout=600.0, secret=KEY)
REQUEST = httpx2.Request("POST", "https://h/v1")
STATUSES = {
    "BadRequestError": 400,
    "AuthenticationError": 401,
    "PermissionDeniedError": 403,
    "NotFoundError": 404,
    "ConflictError": 409,
    "UnprocessableEntityError": 422,
    "RateLimitError": 429,
    "InternalServerError": 500,
}
"""What the SDKs document for their classes."""


def error_of(library: str, name: str) -> Exception:
    """Make an error as the SDK, or its HTTP client, raises it."""
    kind = getattr(importlib.import_module(library), name)
    if library == "httpx2":
        return kind("it failed", request=REQUEST)  # type: ignore[no-any-return]  # by its name
    if name in STATUSES:
        response = httpx2.Response(STATUSES[name], request=REQUEST, json={"error": "it failed"})
        return kind("it failed", response=response, body=None)  # type: ignore[no-any-return]
    return kind(request=REQUEST)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("library", "name", "ours", "base"), documented("openai", "anthropic", "httpx2")
)
def test_an_error_of_a_vendor_is_what_the_documents_say(
    library: str, name: str, ours: str, base: str
) -> None:
    sdk = importlib.import_module("openai" if library == "httpx2" else library)
    assert_is(map_error(error_of(library, name), sdk, ASKED), ours, base)


@pytest.mark.parametrize("library", ["openai", "anthropic"])
def test_the_documents_name_every_status_class_of_an_sdk(library: str) -> None:
    assert {name for _, name, _, _ in documented(library)} >= STATUSES.keys()


def send() -> None:
    headers = [(b"authorization", f"Bearer {KEY}".encode())]
    raise OSError(f"{len(headers)} headers were not sent")


def raised_while_sending() -> Exception:
    with pytest.raises(OSError, match="not sent") as caught:
        send()
    return caught.value


def with_a_cause() -> Exception:
    error = ValueError("lost")
    error.__cause__ = raised_while_sending()
    return error


def with_a_context() -> Exception:
    error = ValueError("lost")
    error.__context__ = raised_while_sending()
    return error


def in_a_group() -> Exception:
    return ExceptionGroup("tried twice", [raised_while_sending(), ValueError("refused")])


def of_itself() -> Exception:
    error = raised_while_sending()
    error.__context__ = with_a_cause()
    error.__context__.__context__ = error
    return error


def shown(error: Exception) -> str:
    return "".join(TracebackException.from_exception(error, capture_locals=True).format())


@pytest.mark.parametrize(
    "make", [raised_while_sending, with_a_cause, with_a_context, in_a_group, of_itself]
)
def test_no_frame_keeps_the_key_of_a_request(make: Callable[[], Exception]) -> None:
    error = make()
    assert KEY in shown(error)
    assert without_locals(error) is error
    assert KEY not in shown(error)
    assert "in send" in shown(error)
