"""What the errors of an SDK show of the request that they came from."""

from __future__ import annotations

from collections.abc import Callable
from traceback import TracebackException

import pytest

from rath.llm.sdk.errors import without_locals
from tests.support.asking import KEY


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
