"""Where a text came from: rows, notes, instructions and files, from the first one on."""

from __future__ import annotations

import pytest

from rath._core.blobs import Blob
from rath.session import ChunkRow, ChunkTable, Session
from rath.session.questions import blame, compare
from rath.session.record import ModelCall, Operation, RecalledNote, ToolRun
from rath.testing import tool_call
from tests.support.api import Entry, preview, texts_of
from tests.support.session_files import placed, tool_run, with_record, worked, writing
from tests.support.sessions import FunctionTool, run
from tests.support.told import NOTE, changed, recall, told


@pytest.fixture(scope="module")
def session() -> Session:
    return told()


def places(session: Session, text: str) -> list[tuple[str, str | None, int | None]]:
    return [(each.place, each.by, each.turn) for each in blame(session, text).appearances]


def test_a_summary_names_the_rows_that_it_replaced(session: Session) -> None:
    *_, summary = blame(session, "hello").appearances
    assert summary.by == "summary"
    assert {source.place for source in summary.seen} == {"row"}
    assert summary.excerpt == "hello was written"


def test_what_a_note_said_is_told_with_its_score() -> None:
    out = worked(placed(), recall=recall)
    (note,) = blame(out, "drinks tea").appearances
    assert (note.place, note.uri, note.by) == ("note", NOTE.uri, None)
    out = run(["it is tea"], recall=recall)
    note, answer = blame(out, "tea").appearances
    assert [(each.place, each.uri, each.score) for each in answer.seen] == [
        ("note", NOTE.uri, 0.75)
    ]


def test_a_note_that_was_read_twice_appears_once() -> None:
    def two(_: Session) -> list[RecalledNote]:
        return [NOTE]

    out = run([tool_call("f"), "done"], FunctionTool("f", lambda *_: 1), recall=two)
    assert places(out, "tea") == [("note", None, 1)]


def test_instructions_were_read_by_the_model() -> None:
    out = run(["a test it is"])
    first, answer = blame(out, "a test").appearances
    assert (first.by, first.place) == ("written", "row")
    assert [each.place for each in answer.seen] == ["instructions"]


def test_instructions_that_are_no_parent_any_more_are_found_in_the_operation() -> None:
    out = run(["done"]).detach()
    assert places(out, "You are a test") == [("instructions", None, 1)]


def test_what_the_model_read_only_in_part_is_found_in_the_whole_result() -> None:
    whole = tool_run(full=Blob.from_bytes(b"the whole story"))
    assert places(with_record(whole), "whole story") == [("result", "tool", None)]


def test_blanks_do_not_count() -> None:
    out = run(["two\n  words"])
    (found,) = blame(out, " two words ").appearances
    assert found.excerpt == "two words"


def test_a_blank_text_is_refused() -> None:
    with pytest.raises(ValueError, match="blank"):
        blame(run(["done"]), " \n ")


def test_a_text_that_stands_nowhere_may_stand_in_what_is_missing() -> None:
    out = worked(placed(), writing("a", "1"))
    bare = changed(out, lambda entry: not isinstance(entry, ToolRun))
    assert [each.kind for each in blame(bare, "nowhere").missing] == ["tool runs"]


@pytest.mark.parametrize(
    ("kind", "text", "named"),
    [
        (ModelCall, "ok", "model calls"),
        (ToolRun, "result", "tool runs"),
        (Operation, "ok", "operations"),
    ],
)
def test_what_was_found_lacks_the_evidence_that_is_not_there(
    kind: type[Entry], text: str, named: str
) -> None:
    out = run([tool_call("f"), "ok"], FunctionTool("f", lambda *_: "result"))
    bare = changed(out, lambda entry: not isinstance(entry, kind))
    assert [each.kind for each in blame(bare, text).missing] == [named]


def test_what_is_no_text_is_not_searched() -> None:
    binary, unkept = Blob.from_bytes(b"\0needle"), Blob("0" * 64, 9)
    out = with_record(tool_run(full=binary), tool_run(full=unkept))
    assert blame(out, "needle").appearances == ()


def test_rows_of_kinds_that_are_not_known_are_searched() -> None:
    row = ChunkRow("from_the_future", {"x": [{"y": "a needle"}], "n": 1})
    out = Session(ChunkTable([row]))
    (found,) = blame(out, "needle").appearances
    assert found.by == "written"
    assert preview(row, 10) == "a needle"
    assert preview(ChunkRow("from_the_future", {}), 10) == ""
    assert list(texts_of(row)) == ["a needle"]


def branches() -> tuple[Session, Session]:
    base = worked(placed(), writing("a", "1")).synchronize()
    left = worked(base.fork(workspace="copy"), writing("b", "left"))
    right = worked(base.fork(workspace="copy"))
    return left, right


def test_rows_stand_beside_each_other_from_where_they_part() -> None:
    left, right = branches()
    found = compare(left, right)
    assert found.n_common == 4
    assert [each.index for each in found.rows] == [4, 5, 6]
    assert [each.right is None for each in found.rows] == [False, True, True]
    assert [each.is_same for each in found.rows] == [False, False, False]
    assert [each.is_same for each in compare(right, left.fork()).rows] == [False] * 3


def test_rows_that_say_the_same_are_marked() -> None:
    one, other = run(["done"]), run(["done"])
    assert [each.is_same for each in compare(one, other).rows] == [True, True]
    assert compare(one, one.fork()).rows == ()


def test_what_each_took_is_counted() -> None:
    session = told()
    counts = compare(session, Session.from_user_message("go")).left_counts
    assert (counts.rows, counts.turns, counts.model_calls, counts.retries) == (2, 1, 9, 0)
    assert (counts.tool_runs, counts.failed_tool_runs, counts.branches) == (3, 0, 3)
    assert (counts.checks, counts.failed_checks) == (1, 1)
    assert counts.tokens > 0
    assert not counts.is_priced
    none = compare(Session.from_user_message("go"), session).left_counts
    assert (none.rows, none.model_calls, none.tokens, none.is_priced) == (1, 0, 0, True)
