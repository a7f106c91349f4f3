"""Work over many rows does not stall the runtime; over few it is done at once."""

from __future__ import annotations

import threading

import pytest

from rath._async.runtime import runtime
from rath.session import ChunkTable, Session, user_text_chunk
from rath.session.aside import MANY_ROWS, aside
from rath.testing import ScriptedClient
from tests.support.sessions import run


@pytest.mark.parametrize(("n_rows", "stays"), [(MANY_ROWS, True), (MANY_ROWS + 1, False)])
def test_only_many_rows_are_worth_a_thread(n_rows: int, stays: bool) -> None:
    async def where() -> bool:
        worker = await aside(n_rows, threading.current_thread)
        return worker is threading.current_thread()

    assert runtime().run(where, label="a test") is stays


def test_an_error_comes_through() -> None:
    async def fail() -> None:
        await aside(MANY_ROWS + 1, lambda: int("x"))

    with pytest.raises(ValueError, match="invalid literal"):
        runtime().run(fail, label="a test")


def test_a_long_session_sends_all_its_rows() -> None:
    client = ScriptedClient(["done"])
    user = Session(ChunkTable(user_text_chunk(str(n)) for n in range(MANY_ROWS + 5)))
    run([], user=user, agent_provider=client.provider).synchronize()
    (request,) = client.requests
    assert [message.content for message in request.messages[1:]] == [
        str(n) for n in range(MANY_ROWS + 5)
    ]
