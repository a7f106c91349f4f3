"""A server, the dialects of vendors and all that is logged, for the tests of secrets."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pytest

from tests.support.canaries import all_logs
from tests.support.chat_server import ChatServer
from tests.support.dialects import DIALECTS, Dialect


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with ChatServer() as running:
        yield running


@pytest.fixture(params=DIALECTS, ids=lambda dialect: dialect.kind)
def dialect(request: pytest.FixtureRequest) -> Dialect:
    found: Dialect = request.param
    return found


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    with all_logs() as stream:
        yield stream
