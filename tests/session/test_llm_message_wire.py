"""Rows as messages, exactly as they stand."""

from __future__ import annotations

from rath.session import (
    ChunkTable,
    assistant_turn_chunk,
    chunk_table_to_messages,
    system_text_chunk,
    tool_feedback_chunk,
    user_text_chunk,
)
from rath.testing import tool_call
from tests.support.images import picture


def test_one_message_per_row_in_order() -> None:
    call = tool_call("f", {"x": 1}, id="c1", content="let me see")
    table = ChunkTable(
        (
            system_text_chunk("s"),
            user_text_chunk("u"),
            assistant_turn_chunk(tool_calls=call.tool_calls, content=call.content),
            tool_feedback_chunk("c1", "f", "result"),
            assistant_turn_chunk(tool_calls=None, content="done"),
        )
    )
    messages = chunk_table_to_messages(table)
    assert [message.role for message in messages] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert messages[2].tool_calls == (
        {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}},
    )
    assert (messages[3].tool_call_id, messages[3].name) == ("c1", None)
    assert messages[4].tool_calls is None


def test_the_images_of_a_row_come_with_its_message() -> None:
    shown, plain = user_text_chunk("u", images=[picture()]), user_text_chunk("v")
    one, other = chunk_table_to_messages(ChunkTable((shown, plain)))
    assert one.images == shown.images
    assert other.images is None
