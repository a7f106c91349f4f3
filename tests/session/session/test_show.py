"""How a session looks in a terminal: ids in short, long things cut, nothing that waits."""

from __future__ import annotations

import threading
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath._core.text import short_id
from rath.session import (
    ChunkRow,
    ChunkTable,
    Session,
    assistant_turn_chunk,
    system_text_chunk,
    tool_feedback_chunk,
    user_text_chunk,
)
from rath.session.session import EDGE_ROWS, MAX_ARGUMENTS, MAX_TEXT, show_session
from rath.testing import tool_call
from tests.support.images import picture
from tests.support.sessions import FunctionTool, row_lists, run
from tests.support.waiting import PATIENCE

ID = UUID("12345678-0000-4000-8000-000000000000")


def show(*rows: ChunkRow) -> str:
    return show_session(ID, ChunkTable(rows), "implicit")


def line_of(row: ChunkRow) -> str:
    return show(row).splitlines()[2].strip()


def test_a_short_session_is_shown_whole() -> None:
    assert show(user_text_chunk("hi"), assistant_turn_chunk(tool_calls=None, content="ho")) == (
        "Session(id=12345678,\n"
        "  chunks=[\n"
        "    [0] user: 'hi',\n"
        "    [1] assistant: text='ho'\n"
        "  ],\n"
        "  operator='implicit',\n"
        ")"
    )


def test_images_are_named_before_the_text_of_their_row() -> None:
    row = user_text_chunk(
        "[image/png]", images=[picture(), picture(b"\n" * 2000, mime="image/gif")]
    )
    assert line_of(row) == (
        "[0] user: [image/png 8 B sha256:4c4b6a3b] [image/gif 2.0 kB sha256:"
        f"{row.images[1].blob.digest[:8]}] '[image/png]'"
    )


def test_a_crowd_of_images_is_cut() -> None:
    row = user_text_chunk("x", images=[picture()] * 100)
    assert MAX_TEXT < len(line_of(row)) < MAX_TEXT + 30


def test_a_session_without_rows_says_so() -> None:
    assert show() == "Session(id=12345678,\n  chunks=[],\n  operator='implicit',\n)"


def test_repr_and_str_are_the_picture() -> None:
    session = Session.from_user_message("hi")
    assert (
        repr(session) == str(session) == show_session(session.id, session.chunk_table, "implicit")
    )


def test_a_pending_session_is_shown_without_waiting() -> None:
    go = threading.Event()
    out = run([tool_call("hold"), "done"], FunctionTool("hold", lambda *_: go.wait(PATIENCE)))
    shown = repr(out)
    go.set()
    assert shown == f"Session(id={short_id(out.id)}, pending …, operator='run_session_loop')"
    assert out.text() == "done"


@given(n_rows=st.integers(0, 30))
def test_a_long_table_shows_its_edges_and_counts_the_rest(n_rows: int) -> None:
    lines = show(*[user_text_chunk(str(index)) for index in range(n_rows)])
    shown = [index for index in range(n_rows) if f"[{index}] user:" in lines]
    if n_rows <= 2 * EDGE_ROWS + 1:
        assert shown == list(range(n_rows))
        assert "omitted" not in lines
    else:
        edge = EDGE_ROWS
        assert shown == [*range(edge), *range(n_rows - edge, n_rows)]
        assert f"    ... ({n_rows - 2 * edge} chunks omitted) ...,\n" in lines


@pytest.mark.parametrize(
    ("row", "line"),
    [
        (system_text_chunk("You\nare"), r"[0] system: 'You\\nare'"),
        (assistant_turn_chunk(tool_calls=None, content=None), "[0] assistant: (empty)"),
        (
            assistant_turn_chunk(
                tool_calls=tool_call("f", {"x": 1}, tool_call("g", "")).tool_calls, content="hm"
            ),
            """[0] assistant: text='hm', tools=[f('{"x": 1}'), g('')]""",
        ),
        (
            tool_feedback_chunk("c1", "f", '{"line": "\\u2500"}'),
            """[0] tool_result: name='f', id='c1', body='{"line":"─"}'""",
        ),
        (
            tool_feedback_chunk("c1", "f", "plain text"),
            "[0] tool_result: name='f', id='c1', body='plain text'",
        ),
        (ChunkRow("from_later", {"x": 1}), """[0] from_later: "{'x': 1}\""""),
    ],
    ids=["system", "empty turn", "calls", "json result", "text result", "unknown kind"],
)
def test_each_kind_of_row_has_its_line(row: ChunkRow, line: str) -> None:
    assert line_of(row) == line


@pytest.mark.parametrize(
    ("row", "limit"),
    [
        (user_text_chunk("x" * 9000), MAX_TEXT),
        (assistant_turn_chunk(tool_calls=None, content="x" * 9000), MAX_TEXT),
        (assistant_turn_chunk(tool_calls=tool_call("f", "x" * 9000).tool_calls), MAX_ARGUMENTS),
        (tool_feedback_chunk("c", "f", "x" * 9000), MAX_TEXT),
        (ChunkRow("from_later", {"content": "x" * 9000}), MAX_TEXT),
    ],
    ids=["user", "assistant", "arguments", "result", "unknown kind"],
)
def test_long_text_is_cut_in_its_middle(row: ChunkRow, limit: int) -> None:
    line = line_of(row)
    assert " ... " in line
    assert limit - 20 < len(line) < limit + 60


@given(rows=row_lists)
def test_any_row_is_one_line(rows: list[ChunkRow]) -> None:
    n_lines = min(len(rows), 2 * EDGE_ROWS + 1)
    assert len(show(*rows).split("\n")) == (4 if not rows else 5 + n_lines)
