"""Logs of the libraries below."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from urllib.parse import quote

import pytest

from rath.config.redaction import guard_logs
from tests.support.canaries import all_logs

KEY = "sk-cNry/0123456789abcdef"


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    with all_logs() as stream:
        yield stream


@pytest.fixture
def library() -> logging.Logger:
    found = logging.getLogger("some_library.http")
    guard_logs(["some_library"], KEY, "short")
    return found


@pytest.mark.parametrize("args", [(KEY,), (f"https://h/?key={quote(KEY, safe='')}",), ([KEY],)])
def test_arguments_of_a_record_show_no_key(
    library: logging.Logger, logged: io.StringIO, args: tuple[object]
) -> None:
    library.debug("got %s", *args)
    assert logged.getvalue().startswith("got ")
    assert "***" in logged.getvalue()
    assert "cNry" not in logged.getvalue()


def test_a_traceback_in_a_log_shows_no_key(library: logging.Logger, logged: io.StringIO) -> None:
    try:
        raise ValueError(f"bad {KEY}")
    except ValueError:
        library.exception("failed")
    assert "ValueError: bad ***" in logged.getvalue()
    assert "ValueError: bad sk" not in logged.getvalue()


def test_other_records_stay_as_they_are(library: logging.Logger, logged: io.StringIO) -> None:
    library.debug("%d short words", 2)
    logging.getLogger("some_library_too").debug(KEY)
    assert logged.getvalue() == f"2 short words\n{KEY}\n"


def test_a_library_is_guarded_once(library: logging.Logger) -> None:
    before = len(library.filters)
    guard_logs(["some_library"], f"{KEY}-too")
    assert len(library.filters) == before
