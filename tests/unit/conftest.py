"""A server, the dialects of vendors and all that is logged, for the tests of secrets."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pytest

from tests.support.canaries import all_logs
from tests.support.dialects import dialect, server

__all__ = ["dialect", "server"]


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    with all_logs() as stream:
        yield stream
