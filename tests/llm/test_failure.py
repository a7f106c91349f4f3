"""Failed calls as errors."""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import quote

import pytest

from rath.errors import (
    ProviderConnectionError,
    ProviderProtocolError,
    ProviderStatusError,
    ProviderTimeout,
    StreamInterrupted,
)
from rath.llm.failure import Asked, protocol_error, retry_after, retry_verdict, status_error

KEY = "sk-canary/0123456789"
ASKED = Asked("http://h/v1", "m-1", "env OPENAI_DEFAULT_MODEL", "env OPENAI_API_KEY", 300.0, KEY)


def test_the_key_is_hidden_in_every_form() -> None:
    text = f"Bearer {KEY} or {quote(KEY, safe='')}"
    assert ASKED.without_secret(text) == "Bearer *** or ***"
    assert KEY not in repr(ASKED)


def test_a_key_that_is_none_hides_nothing() -> None:
    assert replace(ASKED, secret="x").without_secret("x marks") == "x marks"
    assert replace(ASKED, secret="").without_secret("text") == "text"


def test_a_refused_key_is_traced_to_its_origin() -> None:
    assert "env OPENAI_API_KEY" in str(status_error(ASKED, 401, "no"))


def test_a_missing_model_is_traced_to_its_origin() -> None:
    message = str(status_error(ASKED, 404, "no"))
    assert "'m-1' came from env OPENAI_DEFAULT_MODEL" in message


def test_an_answer_that_is_no_answer_is_shown_shortly() -> None:
    message = str(protocol_error(ASKED, "it is odd", b"x" * 5000, status=200))
    assert "http://h/v1 answered with status 200" in message
    assert len(message) < 500


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 -0000"}, 0.0),
        ({"retry-after-ms": "250"}, 0.25),
        ({"retry-after-ms": "x", "retry-after": "2"}, 2.0),
    ],
)
def test_retry_after_is_read(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers) == seconds


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (ProviderConnectionError("x"), True),
        (ProviderTimeout("x"), True),
        (StreamInterrupted("x"), True),
        (ProviderProtocolError("x", status=502), False),
        (ProviderStatusError("x", status=408), True),
        (ProviderStatusError("x", status=503, retry_after=4.0), 4.0),
        (ProviderStatusError("x", status=429, retry_after=0.0), 0.0),
        (ProviderStatusError("x", status=429, code="insufficient_quota"), False),
        (ProviderStatusError("x", status=418), False),
        (KeyError("x"), False),
    ],
    ids=repr,
)
def test_what_may_be_tried_again(error: BaseException, verdict: float | bool) -> None:
    found = retry_verdict(error)
    assert (found, type(found)) == (verdict, type(verdict))
