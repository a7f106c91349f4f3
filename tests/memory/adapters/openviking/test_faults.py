"""What is said of the errors of the SDK and of its connection."""

from __future__ import annotations

import httpx
import pytest
from openviking_sdk import errors

from rath.memory.adapters.openviking.client import translate_error

KEY = "secret-key-0123456789"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (errors.NotFoundError("x"), "not_found"),
        (errors.InvalidURIError("x"), "invalid_uri"),
        (errors.InvalidArgumentError("x"), "invalid_uri"),
        (errors.FailedPreconditionError("x"), "invalid_uri"),
        (errors.PermissionDeniedError("x"), "unauthorized"),
        (errors.UnauthenticatedError("x"), "unauthorized"),
        (errors.UnimplementedError("x"), "unsupported"),
        (errors.NotInitializedError("x"), "unsupported"),
        (errors.DeadlineExceededError("x"), "timeout"),
        (TimeoutError("x"), "timeout"),
        (httpx.ReadTimeout("x"), "timeout"),
        (httpx.ConnectTimeout("x"), "timeout"),
        (errors.UnavailableError("x"), "transport"),
        (errors.AbortedError("x"), "transport"),
        (errors.ResourceExhaustedError("x"), "transport"),
        (ConnectionResetError("x"), "transport"),
        (httpx.ConnectError("x"), "transport"),
        (httpx.RemoteProtocolError("x"), "transport"),
        (errors.ProcessingError("x"), "extraction_failed"),
        (errors.EmbeddingFailedError("x"), "extraction_failed"),
        (errors.VLMFailedError("x"), "extraction_failed"),
        (errors.SessionExpiredError("x"), "store_closed"),
        (errors.AlreadyExistsError("x"), "internal"),
        (errors.ConflictError("x"), "internal"),
        (errors.InternalError("x"), "internal"),
        (errors.OpenVikingError("x"), "internal"),
        (KeyError("x"), "internal"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else value,
)
def test_each_error_has_its_kind(error: Exception, kind: str) -> None:
    failure = translate_error(error).failure
    assert failure.kind == kind
    assert failure.detail == type(error).__name__
    assert failure.message


def test_the_key_is_not_repeated() -> None:
    fault = translate_error(errors.UnauthenticatedError(f"the key {KEY} is wrong"), KEY)
    assert KEY not in str(fault)
    assert KEY not in fault.failure.message


@pytest.mark.parametrize(
    ("error", "is_busy"),
    [
        (errors.ConflictError("x"), True),
        (errors.AlreadyExistsError("x"), False),
        (errors.NotFoundError("x"), False),
    ],
    ids=["conflict", "exists", "missing"],
)
def test_only_conflicts_are_worth_a_wait(error: Exception, is_busy: bool) -> None:
    assert translate_error(error).is_busy is is_busy


def test_a_conflict_that_will_last_is_not_waited_for() -> None:
    lasting = errors.ConflictError("x")
    vars(lasting)["details"] = {"retryable": False}
    assert not translate_error(lasting).is_busy
