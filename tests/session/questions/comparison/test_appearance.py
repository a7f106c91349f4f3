"""Where a text came from, how sessions differ, and which evidence a question misses."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from msgspec import structs

from rath._core.blobs import Blob
from rath.session import ChunkRow, ChunkTable, Session, assistant_turn_chunk
from rath.session.questions import (
    NEEDS,
    EvidenceKind,
    Question,
    blame,
    compare,
    what_changed,
    what_was_seen,
    where_from,
    where_tools_ran,
    who_answered,
)
from rath.session.questions.encode import encode_answer
from rath.session.record import ModelCall, Operation, ToolRun
from rath.testing import ScriptedClient, tool_call
from tests.support.api import Entry, preview, texts_of
from tests.support.history import KINDS, NOTE, filtered, is_check, long_session, recall, without
from tests.support.session_files import placed, tool_run, with_record, worked, writing
from tests.support.sessions import FunctionTool, cancelled_session, entries_of, run


@pytest.fixture(scope="module")
def session() -> Session:
    return long_session()


def places(session: Session, text: str) -> list[tuple[str, str | None, int | None]]:
    return [(each.place, each.by, each.turn) for each in blame(session, text).appearances]


def test_a_summary_names_the_rows_that_it_replaced(session: Session) -> None:
    *_, summary = blame(session, "hello").appearances
    assert summary.by == "summary"
    assert {source.place for source in summary.seen} == {"row"}
    assert summary.excerpt == "hello was written"


def test_blame_names_a_recalled_note_with_its_score() -> None:
    out = worked(placed(), recall=recall)
    (note,) = blame(out, "drinks tea").appearances
    assert (note.place, note.uri, note.by) == ("note", NOTE.uri, None)
    out = run(["it is tea"], recall=recall)
    note, answer = blame(out, "tea").appearances
    assert [(each.place, each.uri, each.score) for each in answer.seen] == [
        ("note", NOTE.uri, 0.75)
    ]


def test_instructions_were_read_by_the_model() -> None:
    out = run(["a test it is"])
    first, answer = blame(out, "a test").appearances
    assert (first.by, first.place) == ("written", "row")
    assert [each.place for each in answer.seen] == ["instructions"]


def test_what_the_model_read_only_in_part_is_found_in_the_complete_result() -> None:
    complete = tool_run(full=Blob.from_bytes(b"the whole story"))
    assert places(with_record(complete), "whole story") == [("result", "tool", None)]


def test_blanks_do_not_count() -> None:
    out = run(["two\n  words"])
    with pytest.raises(ValueError, match="blank"):
        blame(out, " \n ")
    (found,) = blame(out, " two words ").appearances
    assert found.excerpt == "two words"


def test_a_text_that_stands_nowhere_may_stand_in_what_is_missing() -> None:
    out = worked(placed(), writing("a", "1"))
    bare = filtered(out, lambda entry: not isinstance(entry, ToolRun))
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
    bare = filtered(out, lambda entry: not isinstance(entry, kind))
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


def test_rows_stand_next_to_each_other_from_where_they_part() -> None:
    left, right = branches()
    found = compare(left, right)
    assert found.n_common == 4
    assert [each.index for each in found.rows] == [4, 5, 6]
    assert [each.right is None for each in found.rows] == [False, True, True]
    assert [each.is_same for each in found.rows] == [False, False, False]
    assert [each.is_same for each in compare(right, left.fork()).rows] == [False] * 3


def test_what_each_took_is_counted() -> None:
    session = long_session()
    counts = compare(session, Session.from_user_message("go")).left_counts
    assert (counts.rows, counts.turns, counts.model_calls, counts.retries) == (2, 1, 9, 0)
    assert (counts.tool_runs, counts.failed_tool_runs, counts.branches) == (3, 0, 3)
    assert (counts.checks, counts.failed_checks) == (1, 1)
    assert counts.tokens > 0
    assert not counts.is_priced
    none = compare(Session.from_user_message("go"), session).left_counts
    assert (none.rows, none.model_calls, none.tokens, none.is_priced) == (1, 0, 0, True)


ASK: dict[Question, Callable[[Session], Any]] = {
    "seen": what_was_seen,
    "provider": who_answered,
    "where": where_tools_ran,
    "changed": what_changed,
    "origin": where_from,
}


def kinds_of(answer: Any) -> list[str]:
    return [each.kind for each in answer.missing]


def is_purpose(*purposes: str) -> Callable[[Entry], bool]:
    return lambda entry: isinstance(entry, ModelCall) and entry.purpose in purposes


@pytest.mark.parametrize("question", ASK)
def test_of_a_complete_record_nothing_is_missing(question: Question, session: Session) -> None:
    assert ASK[question](session).missing == ()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("question", ASK)
def test_a_question_names_the_kind_that_it_needs_and_others_answer_as_before(
    question: Question, kind: EvidenceKind, session: Session
) -> None:
    answer = ASK[question](without(session, kind))
    if kind in NEEDS[question]:
        assert kinds_of(answer) == [kind]
    else:
        assert encode_answer(answer) == encode_answer(ASK[question](session))


@pytest.mark.parametrize("question", ASK)
def test_a_session_without_any_record_lacks_all_that_a_question_needs(question: Question) -> None:
    answer = ASK[question](filtered(long_session(), lambda _: False))
    assert kinds_of(answer) == list(NEEDS[question])
    assert "version 1" in answer.missing[0].reason


WRITTEN = ChunkTable([assistant_turn_chunk(tool_calls=None, content="yes")])


@pytest.mark.parametrize(
    "make",
    [
        lambda: Session.from_user_message("hello"),
        lambda: worked(Session(WRITTEN)),
        lambda: worked(cancelled_session()),
        lambda: Session(ChunkTable(), parent_session_ids=(uuid4(),)),
    ],
    ids=["nothing happened", "written answers", "passed on", "a parent known by its id"],
)
def test_what_was_not_to_be_recorded_is_not_missing(make: Callable[[], Session]) -> None:
    assert [ask(make()).missing for ask in ASK.values()] == [()] * len(ASK)


@pytest.mark.parametrize(
    ("left_out", "question", "kind", "reply"),
    [
        (is_check, where_tools_ran, "tool runs", ""),
        (is_purpose("select"), who_answered, "model calls", "a selection"),
        (
            is_purpose("compress"),
            who_answered,
            "model calls",
            r"row 0 of session [0-9a-f-]{36} is the summary of a model without its call",
        ),
        (is_purpose("turn", "select", "compress"), who_answered, "model calls", "more like it"),
    ],
    ids=["check", "selection", "summary", "many"],
)
def test_what_one_kind_of_call_left_is_missed_without_it(
    left_out: Callable[[Entry], bool], question: Callable[[Session], Any], kind: str, reply: str
) -> None:
    (missing,) = question(filtered(long_session(), lambda entry: not left_out(entry))).missing
    assert missing.kind == kind
    assert re.search(reply, missing.reason)


def test_a_decision_that_is_not_there_is_missed() -> None:
    session = long_session()
    allowed = entries_of(session, ToolRun)[0]
    session.add_entry(structs.replace(allowed, id=uuid4(), decision=uuid4()))
    (missing,) = where_from(session).missing
    assert missing.kind == "decisions"


def test_results_that_somebody_gave_for_another_course_need_no_run() -> None:
    client = ScriptedClient([tool_call("f", id="c"), "three", "four"])
    tool = FunctionTool("f", lambda *_: 3)
    out = run([], tool, agent_provider=client.provider)
    other = out.replay(tool_results={"c": 4}, tools=[tool]).synchronize()
    assert other.text() == "four"
    for question in ASK.values():
        assert question(other).missing == ()
    bare = filtered(other, lambda entry: not isinstance(entry, Operation))
    assert kinds_of(where_from(bare)) == ["operations"]
    assert kinds_of(where_tools_ran(bare)) == []
