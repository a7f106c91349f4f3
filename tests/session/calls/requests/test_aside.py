"""Work over many rows does not stall the runtime; over few it is done at once."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from rath._async.runtime import runtime
from rath.llm import RathLLMMessage
from rath.llm.fold import tool_call_part
from rath.session import (
    ChunkRow,
    ChunkTable,
    Session,
    assistant_turn_chunk,
    system_text_chunk,
    tool_feedback_chunk,
    user_text_chunk,
)
from rath.session.calls.requests import BYTES_PER_ROW, MANY_ROWS, encode_cost, offload
from rath.testing import ScriptedClient
from tests.support.images import picture
from tests.support.offline_vendor import OfflineVendor, Says
from tests.support.sessions import run


@pytest.mark.parametrize(("n_rows", "stays"), [(MANY_ROWS, True), (MANY_ROWS + 1, False)])
def test_only_many_rows_are_worth_a_thread(n_rows: int, stays: bool) -> None:
    async def where() -> bool:
        worker = await offload(n_rows, threading.current_thread)
        return worker is threading.current_thread()

    assert runtime().run(where, label="a test") is stays


def test_images_count_like_the_rows_that_take_as_long() -> None:
    large = user_text_chunk("x", images=[picture(bytes(BYTES_PER_ROW * MANY_ROWS))])
    result = tool_feedback_chunk("c", "f", "x", images=large.images)
    plain = user_text_chunk("y")
    assert encode_cost(ChunkTable([plain, plain])) == 2
    assert encode_cost(ChunkTable([plain, large])) == MANY_ROWS + 2
    assert encode_cost(ChunkTable([plain, result])) == MANY_ROWS + 2
    assert encode_cost(ChunkTable([plain] * (MANY_ROWS + 1))) == MANY_ROWS + 1


@pytest.mark.parametrize(
    "row",
    [
        system_text_chunk("x" * BYTES_PER_ROW * 3),
        user_text_chunk("x" * BYTES_PER_ROW * 3),
        tool_feedback_chunk("c", "f", "x" * BYTES_PER_ROW * 3),
        assistant_turn_chunk(
            content="x" * BYTES_PER_ROW,
            tool_calls=(tool_call_part("c", "f", "x" * BYTES_PER_ROW * 2),),
        ),
    ],
    ids=lambda row: row.kind_name,
)
def test_long_texts_count_like_the_rows_that_take_as_long(row: ChunkRow) -> None:
    assert encode_cost([row]) == 4


def test_what_is_not_sent_counts_as_a_row() -> None:
    assert encode_cost([ChunkRow("odd", {"content": "x" * 10_000})]) == 1


@pytest.mark.parametrize("place", ["user", "agent"])
def test_images_are_encoded_beside_the_runtime(place: str) -> None:
    threads: list[threading.Thread] = []

    class Noting(OfflineVendor):
        def encode(self, message: RathLLMMessage) -> dict[str, Any]:
            threads.append(threading.current_thread())
            return super().encode(message)

    async def where() -> threading.Thread:
        return threading.current_thread()

    large = picture(bytes(BYTES_PER_ROW * MANY_ROWS))
    given: dict[str, Any] = {place: Session.from_user_message("look", images=[large])}
    vendor = Noting(lambda _: Says("done"))
    assert run([], agent_provider=vendor.provider, **given).text() == "done"
    assert threads
    assert runtime().run(where, label="a test") not in threads


def test_an_error_comes_through() -> None:
    async def fail() -> None:
        await offload(MANY_ROWS + 1, lambda: int("x"))

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
