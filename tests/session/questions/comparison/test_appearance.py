"""Where a text came from: rows, notes, instructions and files, from the first one on."""

from __future__ import annotations

import json

import pytest
from msgspec import structs

from rath._core.blobs import Blob
from rath.session import ChunkRow, ChunkTable, Session
from rath.session.questions import blame
from rath.session.questions.encode import encode_answer
from rath.session.record import ModelCall, Operation, RecalledNote, ToolRun
from rath.testing import tool_call
from tests.support.api import preview, texts_of
from tests.support.session_files import placed, tool_run, with_record, worked, writing
from tests.support.sessions import FunctionTool, run
from tests.support.told import NOTE, changed, recall, told


@pytest.fixture(scope="module")
def session() -> Session:
    return told()


def places(session: Session, text: str) -> list[tuple[str, str | None, int | None]]:
    return [(each.place, each.by, each.turn) for each in blame(session, text).appearances]


def test_a_line_of_a_file_came_from_the_call_that_wrote_it(session: Session) -> None:
    answer = blame(session, "world")
    assert places(session, "world") == [("row", "model", 1), ("file", "tool", 1)]
    asked, file = answer.appearances
    assert isinstance(asked.entry, ModelCall)
    assert asked.seen == ()
    assert isinstance(file.entry, ToolRun)
    assert (file.path, file.entry.call_id) == ("a", "one")
    assert file.session == asked.session
    assert answer.missing == ()


def test_a_summary_names_the_rows_that_it_replaced(session: Session) -> None:
    *_, summary = blame(session, "hello").appearances
    assert summary.by == "summary"
    assert {source.place for source in summary.seen} == {"row"}
    assert summary.excerpt == "hello was written"


def test_what_the_user_said_first_was_read_by_the_model() -> None:
    out = run(["you said tea"], user=Session.from_user_message("I like tea"))
    assert places(out, "tea") == [("row", "written", None), ("row", "model", 1)]
    said, answer = blame(out, "tea").appearances
    assert said.entry is None
    assert [source.row for source in answer.seen] == [said.row]


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


def test_the_report_of_a_check_is_searched() -> None:
    checked = worked(placed()).synchronize()
    verdict = structs.replace(checked.check("tests", "true"), report="all is well")
    assert places(with_record(verdict), "is well") == [("verdict", None, None)]


def test_a_line_that_was_there_before_is_not_new() -> None:
    out = worked(placed(), writing("a", "old\n"), writing("a", "old\nnew\n"))
    files = [each for each in blame(out, "old").appearances if each.place == "file"]
    assert len(files) == 1


def test_blanks_do_not_count() -> None:
    out = run(["two\n  words"])
    (found,) = blame(out, " two words ").appearances
    assert found.excerpt == "two words"


def test_a_long_text_is_shown_around_the_find() -> None:
    out = run([f"{'a' * 99} needle {'b' * 99}"])
    (found,) = blame(out, "needle").appearances
    assert found.excerpt == f"…{'a' * 39} needle {'b' * 39}…"


def test_texts_in_json_are_found_as_they_were_meant() -> None:
    out = run([tool_call("f", {"x": ['say "hi"']}), "ok"], FunctionTool("f", lambda *_: 1))
    assert places(out, 'say "hi"') == [("row", "model", 1)]


def test_a_blank_text_is_refused() -> None:
    with pytest.raises(ValueError, match="blank"):
        blame(run(["done"]), " \n ")


def test_a_text_that_stands_nowhere_is_not_found() -> None:
    answer = blame(run(["done"]), "nowhere")
    assert (answer.appearances, answer.missing) == ((), ())


def test_a_text_that_stands_nowhere_may_stand_in_what_is_missing() -> None:
    out = worked(placed(), writing("a", "1"))
    bare = changed(out, lambda entry: not isinstance(entry, ToolRun))
    assert [each.kind for each in blame(bare, "nowhere").missing] == ["tool runs"]


def test_an_answer_without_its_call_lacks_evidence() -> None:
    out = changed(run(["done"]), lambda entry: not isinstance(entry, ModelCall))
    assert [each.kind for each in blame(out, "done").missing] == ["model calls"]


def test_a_result_without_its_run_lacks_evidence() -> None:
    out = run([tool_call("f"), "ok"], FunctionTool("f", lambda *_: "result"))
    bare = changed(out, lambda entry: not isinstance(entry, ToolRun))
    assert [each.kind for each in blame(bare, "result").missing] == ["tool runs"]


def test_an_answer_without_its_operation_lacks_evidence() -> None:
    out = changed(run(["done"]), lambda entry: not isinstance(entry, Operation))
    assert [each.kind for each in blame(out, "done").missing] == ["operations"]


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


def test_a_preview_shows_calls_and_results() -> None:
    out = run([tool_call("f", {"x": 1}), "ok"], FunctionTool("f", lambda *_: "res"))
    shown = [preview(row, 40) for row in out.chunk_table]
    assert shown[0] == "go"
    assert shown[1] == 'f({"x": 1})'
    assert shown[2].startswith("f: ")
    assert shown[3] == "ok"


def test_the_answer_is_json(session: Session) -> None:
    encoded = encode_answer(blame(session, "hello"))
    assert json.loads(json.dumps(encoded)) == encoded
    assert encoded["text"] == "hello"
