"""Rows and tables: values that never change, with names that stay."""

from __future__ import annotations

import json
import pickle
from uuid import uuid4

import pytest
from hypothesis import given

from rath.session import (
    ChunkKind,
    ChunkRow,
    ChunkTable,
    RowId,
    Session,
    assistant_turn_chunk,
    format_chunk_row_brief,
    system_text_chunk,
    tool_feedback_chunk,
    user_text_chunk,
)
from rath.session.content import AssistantTurn, ToolCall
from rath.session.encode import encode_content
from tests.support.sessions import any_texts, row_lists, rows


@given(row=rows)
def test_content_round_trips(row: ChunkRow) -> None:
    known = {key: row.payload[key] for key in row.payload if key != "unicode_replaced"}
    assert encode_content(row.content) == known


@given(text=any_texts)
def test_text_is_valid_unicode_from_the_moment_it_enters(text: str) -> None:
    row = user_text_chunk(text)
    content = row.payload["content"]
    content.encode()
    assert (content != text) == row.payload.get("unicode_replaced", False)


def test_calls_with_surrogates_are_made_valid_too() -> None:
    turn = ChunkRow(
        ChunkKind.ASSISTANT, encode_content(AssistantTurn("x", (ToolCall("1", "f", "\ud800"),)))
    )
    assert turn.payload["tool_calls"][0]["function"]["arguments"] == "\ud800"
    entered = tool_feedback_chunk("1", "f", "\ud800")
    assert entered.payload["content"] == "\ufffd"


@given(made=row_lists)
def test_table_equals_the_tuple_of_its_rows(made: list[ChunkRow]) -> None:
    table = ChunkTable(made)
    assert table.rows == tuple(made)
    assert list(table) == made
    assert len(table) == len(made)
    assert table[1:3] == tuple(made[1:3])
    assert table == ChunkTable(tuple(made))


def test_extend_leaves_the_original_alone() -> None:
    table = ChunkTable((user_text_chunk("a"),))
    longer = table.extend(user_text_chunk("b"), user_text_chunk("c"))
    assert len(table) == 1
    assert [row.payload["content"] for row in longer] == ["a", "b", "c"]


def test_payload_is_read_only_and_detached_from_the_callers_dict() -> None:
    payload = {"content": "a"}
    row = ChunkRow(ChunkKind.USER, payload)
    payload["content"] = "b"
    assert row.payload["content"] == "a"
    with pytest.raises(TypeError):
        row.payload["content"] = "c"  # type: ignore[index]  # the error is what is tested


def test_unknown_kind_is_kept() -> None:
    row = ChunkRow("from_the_future", {"x": 1})
    assert row.kind == "from_the_future"
    assert not isinstance(row.kind, ChunkKind)


def test_known_kind_as_text_becomes_the_enum() -> None:
    assert ChunkRow("user", {"content": "a"}).kind is ChunkKind.USER


def test_rows_are_named_at_append_and_the_name_does_not_count_in_equality() -> None:
    session = Session.from_user_message("a")
    row = session.chunk_table[0]
    assert row.id is not None
    assert (row.id.session, row.id.index) == (session.id, 0)
    assert row == user_text_chunk("a")


def test_a_named_row_keeps_its_name() -> None:
    row = Session.from_user_message("a").chunk_table[0]
    assert ChunkTable().born_in(uuid4(), [row])[0].id == row.id


@given(made=row_lists)
def test_tables_can_be_pickled(made: list[ChunkRow]) -> None:
    table = Session(ChunkTable(made)).chunk_table
    copy = pickle.loads(pickle.dumps(table))
    assert copy == table
    assert [row.id for row in copy] == [row.id for row in table]


def test_common_prefix_is_found_by_row_id_without_shared_memory() -> None:
    table = Session(ChunkTable((user_text_chunk("a"), user_text_chunk("b")))).chunk_table
    loaded = pickle.loads(pickle.dumps(table)).extend(user_text_chunk("c"))
    assert table.common_prefix(loaded) == 2


def test_equal_rows_of_other_sessions_are_no_common_prefix() -> None:
    one, other = (Session.from_user_message("a").chunk_table for _ in range(2))
    assert one == other
    assert one.common_prefix(other) == 0


def test_assistant_row_keeps_the_raw_arguments_only() -> None:
    row = assistant_turn_chunk(tool_calls=(), content="hi")
    assert dict(row.payload) == {"content": "hi", "tool_calls": None}


@pytest.mark.parametrize(
    ("row", "line"),
    [
        (user_text_chunk("hi\nyou"), "[0] user: 'hi\\\\nyou'"),
        (system_text_chunk("s"), "[0] system: 's'"),
        (assistant_turn_chunk(tool_calls=None, content=None), "[0] assistant: (empty)"),
        (
            tool_feedback_chunk("1", "n", '{"a": "\\u2500"}'),
            '[0] tool_result: name=\'n\' body={"a":"─"}',
        ),
    ],
    ids=["user", "system", "empty assistant", "tool result"],
)
def test_brief_line(row: ChunkRow, line: str) -> None:
    assert format_chunk_row_brief(0, row) == line


def test_brief_line_names_the_tools_of_a_turn() -> None:
    payload = encode_content(
        AssistantTurn("t", (ToolCall("1", "f", "{}"), ToolCall("2", "g", "{}")))
    )
    line = format_chunk_row_brief(3, ChunkRow(ChunkKind.ASSISTANT, payload))
    assert line == "[3] assistant: text='t', tools=[f, g]"


def test_brief_line_of_an_unknown_kind_shows_its_payload() -> None:
    assert format_chunk_row_brief(0, ChunkRow("new", {"x": 1})).startswith("[0] new: ")


def test_payloads_are_json() -> None:
    assert json.loads(json.dumps(dict(user_text_chunk("a").payload))) == {"content": "a"}


def test_a_row_is_decoded_and_digested_once() -> None:
    row = user_text_chunk("hi")
    assert row.content is row.content
    assert row.digest is row.digest


@given(row=rows)
def test_what_a_row_has_worked_out_does_not_count(row: ChunkRow) -> None:
    fresh = row.with_id(RowId(uuid4(), 0))
    assert (row.content, row.digest) == (fresh.content, fresh.digest)
    again = pickle.loads(pickle.dumps(row))
    assert again == row == fresh
    assert repr(again) == repr(row)


@given(made=row_lists)
def test_equal_tables_have_equal_hashes_and_pictures(made: list[ChunkRow]) -> None:
    one, other = ChunkTable(made), ChunkTable().extend(*made)
    assert hash(one) == hash(other)
    assert repr(one) == repr(other) == f"ChunkTable(rows={tuple(made)!r})"
