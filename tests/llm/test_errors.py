"""Failed calls as errors: class, words, retry and fallback."""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath.errors import (
    AuthenticationError,
    InvalidRequestError,
    ModelNotFoundError,
    ProviderConnectionError,
    ProviderProtocolError,
    ProviderServerError,
    ProviderStatusError,
    ProviderTimeout,
    QuotaExceededError,
    RateLimitError,
    StreamInterrupted,
)
from rath.llm.errors import may_fall_back, protocol_error, retry_after, retry_verdict, status_error
from tests.support.targets import request_target

KEY = "sk-canary/0123456789"
ASKED = request_target(
    model="m-1", model_from="env OPENAI_DEFAULT_MODEL", key_from="env OPENAI_API_KEY", secret=KEY
)


def test_the_key_is_hidden_in_every_form() -> None:
    text = f"Bearer {KEY} or {quote(KEY, safe='')}"
    assert ASKED.redactor.text(text) == "Bearer *** or ***"
    assert KEY not in repr(ASKED)


def test_a_key_that_is_none_hides_nothing() -> None:
    assert replace(ASKED, secret="x").redactor.text("x marks") == "x marks"
    assert replace(ASKED, secret="").redactor.text("text") == "text"


@pytest.mark.parametrize(
    ("status", "origin"),
    [(401, "env OPENAI_API_KEY"), (404, "'m-1' came from env OPENAI_DEFAULT_MODEL")],
)
def test_what_is_refused_is_traced_to_its_origin(status: int, origin: str) -> None:
    assert origin in str(status_error(ASKED, status, "no"))


@pytest.mark.parametrize(
    ("error", "verdict", "falls_back"),
    [
        (ProviderConnectionError("x"), True, True),
        (ProviderTimeout("x"), True, True),
        (StreamInterrupted("x"), True, True),
        (ProviderProtocolError("x", status=502), False, False),
        (ProviderStatusError("x", status=408), True, True),
        (ProviderStatusError("x", status=503, retry_after=4.0), 4.0, True),
        (RateLimitError("x", status=429, retry_after=0.0), 0.0, True),
        (RateLimitError("x", status=429, retry_after=86_400.0), 86_400.0, True),
        (ProviderStatusError("x", status=429, code="insufficient_quota"), False, False),
        (ProviderStatusError("x", status=429, code="billing_not_active"), False, False),
        (QuotaExceededError("x", status=429, code="insufficient_quota"), False, True),
        (QuotaExceededError("x", status=402), False, True),
        (ProviderServerError("x", status=529), True, True),
        (ProviderServerError("x", status=501), False, False),
        (ProviderServerError("x", status=505), False, False),
        (ProviderStatusError("x", status=418), False, False),
        (AuthenticationError("x", status=401), False, False),
        (InvalidRequestError("x", status=400), False, False),
        (ModelNotFoundError("x", status=404), False, False),
        (KeyError("x"), False, False),
    ],
    ids=repr,
)
def test_what_may_be_tried_again_or_elsewhere(
    error: BaseException, verdict: float | bool, falls_back: bool
) -> None:
    found = retry_verdict(error)
    assert (found, type(found)) == (verdict, type(verdict))
    assert may_fall_back(error) is falls_back


@pytest.mark.parametrize(
    ("status", "message", "code", "model"),
    [
        (404, "no", None, "m-1"),
        (400, "no", "model_not_found", "m-1"),
        (400, "Unknown Model", None, "m-1"),
        (403, "not for this model", None, "m-1"),
        (400, "too hot", None, None),
        (400, "longer than this model's context", None, None),
        (429, "the model is busy", None, None),
    ],
)
def test_an_error_knows_whether_it_is_about_the_model(
    status: int, message: str, code: str | None, model: str | None
) -> None:
    error = status_error(ASKED, status, message, code=code)
    assert error.model == model
    assert ("'m-1' came from" in str(error)) is (model is not None)


def test_what_asked_for_no_model_is_not_about_one() -> None:
    error = status_error(replace(ASKED, model=""), 404, "no such model")
    assert error.model is None
    assert str(error) == "http://h/v1 answered with status 404: no such model"


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (402, None, QuotaExceededError),
        (429, None, RateLimitError),
        (429, "rate_limit_exceeded", RateLimitError),
        (429, "insufficient_quota", QuotaExceededError),
        (429, "billing_hard_limit_reached", QuotaExceededError),
        (400, "billing_not_active", QuotaExceededError),
        (403, "billing_error", QuotaExceededError),
        (403, "insufficient_quota", QuotaExceededError),
        (403, "permission_error", AuthenticationError),
        (400, "contract_spend_limit_reached", QuotaExceededError),
        (500, "billing_error", ProviderServerError),
        (529, "overloaded_error", ProviderServerError),
    ],
)
def test_an_empty_account_is_reported_from_a_busy_endpoint(
    status: int, code: str | None, kind: type[ProviderStatusError]
) -> None:
    error = status_error(ASKED, status, "no", code=code)
    assert type(error) is kind
    assert ("nothing left to spend" in str(error)) is (kind is QuotaExceededError)
    assert may_fall_back(error) is issubclass(kind, RateLimitError | ProviderServerError)


SPENT = [
    "Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing.",
    "You have reached your specified API usage limits. You will regain access on 2026-01-01.",
]


@pytest.mark.parametrize("words", SPENT)
@pytest.mark.parametrize("status", [400, 403, 429])
def test_an_empty_account_is_known_by_what_is_reported_of_it(status: int, words: str) -> None:
    error = status_error(ASKED, status, words, code="invalid_request_error")
    assert type(error) is QuotaExceededError
    assert "The account behind the key from env OPENAI_API_KEY" in str(error)
    assert (retry_verdict(error), may_fall_back(error)) == (False, True)


def test_an_empty_account_is_no_trouble_with_the_model() -> None:
    error = status_error(ASKED, 403, "no credit for this model", code="billing_error")
    assert error.model is None
    assert "came from env OPENAI_DEFAULT_MODEL" not in str(error)


def test_an_answer_that_is_no_answer_is_displayed_shortly() -> None:
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
        ({"retry-after": "Wed, 21 Oct 99999999999999999999 07:28:00 GMT"}, None),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 +99999999"}, None),
        ({"retry-after-ms": "250"}, 0.25),
        ({"retry-after-ms": "x", "retry-after": "2"}, 2.0),
    ],
)
def test_retry_after_is_read(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers) == seconds


@given(st.text() | st.builds("Wed, 21 Oct {} 07:28:00 {}".format, st.integers(), st.integers()))
def test_retry_after_is_a_wait_or_nothing(value: str) -> None:
    wait = retry_after({"retry-after": value, "retry-after-ms": value})
    assert wait is None or wait >= 0


@pytest.mark.parametrize(
    ("status", "wait", "is_told"),
    [(429, 3600.0, True), (503, 121.0, True), (429, 120.0, False), (429, None, False),
     (501, 3600.0, False), (402, 3600.0, False)],
)  # fmt: skip
def test_a_wait_that_is_too_long_is_reported(
    status: int, wait: float | None, is_told: bool
) -> None:
    text = str(status_error(ASKED, status, "slow", wait=wait))
    words = f". It asks to wait {wait or 0:.0f} s, longer than the 120 s that are waited for"
    assert (words in text) is is_told
