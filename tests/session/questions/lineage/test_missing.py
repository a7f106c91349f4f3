"""With a kind of entry left out, questions that need it say so; others answer as before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from msgspec import structs

from rath.session import ChunkTable, LineageKind, Session, assistant_turn_chunk
from rath.session.questions import (
    NEEDS,
    EvidenceKind,
    Question,
    what_changed,
    what_was_seen,
    where_from,
    where_tools_ran,
    who_answered,
)
from rath.session.questions.encode import encode_answer
from rath.session.record import ModelCall, Operation, ToolRun
from rath.testing import ScriptedClient, tool_call
from tests.support.session_files import worked
from tests.support.sessions import FunctionTool, cancelled_session, run
from tests.support.told import KINDS, changed, is_check, told, without

ASK: dict[Question, Callable[[Session], Any]] = {
    "seen": what_was_seen,
    "provider": who_answered,
    "where": where_tools_ran,
    "changed": what_changed,
    "origin": where_from,
}


@pytest.fixture(scope="module")
def session() -> Session:
    return told()


def kinds_of(answer: Any) -> list[str]:
    return [each.kind for each in answer.missing]


@pytest.mark.parametrize("question", ASK)
def test_of_a_whole_record_nothing_is_missing(question: Question, session: Session) -> None:
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
    answer = ASK[question](changed(told(), lambda _: False))
    assert kinds_of(answer) == list(NEEDS[question])
    assert "version 1" in answer.missing[0].reason


@pytest.mark.parametrize("question", ASK)
def test_of_a_session_in_which_nothing_happened_nothing_is_missing(question: Question) -> None:
    assert ASK[question](Session.from_user_message("hello")).missing == ()


def test_answers_that_somebody_wrote_need_no_calls() -> None:
    example = [assistant_turn_chunk(tool_calls=None, content="yes")]
    session = worked(Session(ChunkTable(example)))
    assert what_was_seen(session).missing == ()


def test_answers_of_a_session_that_nobody_knows_need_calls() -> None:
    rows = run(["yes"]).chunk_table
    assert kinds_of(who_answered(Session(rows))) == ["model calls"]


def test_a_detached_session_needs_the_calls_of_what_it_came_from() -> None:
    alone = run(["yes"]).detach()
    assert who_answered(alone).missing == ()
    bare = changed(alone, lambda entry: not isinstance(entry, ModelCall))
    assert kinds_of(who_answered(bare)) == ["model calls"]


def test_rows_that_were_named_anew_in_a_derivation_came_from_somewhere() -> None:
    rows = [assistant_turn_chunk(tool_calls=None, content="yes")]
    fork = Session(ChunkTable(rows), lineage_operator="Session.fork")
    fork.add_entry(Operation(operation=uuid4(), kind="check", place=place(), session=fork.id))
    assert kinds_of(who_answered(fork)) == ["model calls"]


def place() -> Any:
    (made,) = [entry for entry in run(["yes"]).record if isinstance(entry, Operation)]
    return made.place


def test_a_session_that_only_passed_on_needs_no_operation() -> None:
    passed = worked(cancelled_session())
    assert where_from(passed).missing == ()


def test_a_parent_known_by_its_id_alone_needs_no_operation() -> None:
    child = Session(ChunkTable(), parent_session_ids=(uuid4(),))
    assert where_from(child).missing == ()


def test_a_check_without_the_run_of_its_command_is_missed() -> None:
    session = told()
    bare = changed(session, lambda entry: not is_check(entry))
    assert kinds_of(where_tools_ran(bare)) == ["tool runs"]


def test_a_verdict_alone_is_missed_without_run_and_operation() -> None:
    session = told()
    lost = {entry.operation for entry in session.record if is_check(entry)}
    bare = changed(
        session,
        lambda entry: not (isinstance(entry, ToolRun | Operation) and entry.operation in lost),
    )
    assert kinds_of(where_tools_ran(bare)) == ["tool runs"]
    assert kinds_of(what_changed(bare)) == ["tool runs", "operations"]


def test_a_selection_without_its_call_is_missed() -> None:
    bare = changed(told(), lambda e: not (isinstance(e, ModelCall) and e.purpose == "select"))
    (missing,) = who_answered(bare).missing
    assert (missing.kind, missing.n_places) == ("model calls", 1)
    assert "a selection" in missing.reason


def test_a_summary_without_its_call_is_missed() -> None:
    bare = changed(told(), lambda e: not (isinstance(e, ModelCall) and e.purpose == "compress"))
    (missing,) = who_answered(bare).missing
    assert "summary" in missing.reason


def test_a_decision_that_is_not_there_is_missed() -> None:
    session = told()
    allowed = next(entry for entry in session.record if isinstance(entry, ToolRun))
    session.add_entry(structs.replace(allowed, id=uuid4(), decision=uuid4()))
    (missing,) = where_from(session).missing
    assert missing.kind == "decisions"


def test_what_is_missing_often_is_counted() -> None:
    (missing,) = who_answered(without(told(), "model calls")).missing
    assert missing.n_places > 2
    assert "more like it" in missing.reason


def test_a_session_of_version_1_is_told_by_its_operator() -> None:
    rows = ChunkTable([assistant_turn_chunk(tool_calls=None, content="yes")])
    old = Session(
        rows, lineage_operator="run_session_loop", lineage_kind=LineageKind.OP_SESSION_LOOP
    )
    assert "version 1" in what_was_seen(old).missing[0].reason


def test_results_that_somebody_gave_for_another_course_need_no_run() -> None:
    client = ScriptedClient([tool_call("f", id="c"), "three", "four"])
    tool = FunctionTool("f", lambda *_: 3)
    out = run([], tool, agent_provider=client.provider)
    other = out.replay(tool_results={"c": 4}, tools=[tool]).synchronize()
    assert other.text() == "four"
    for question in ASK.values():
        assert question(other).missing == ()
    bare = changed(other, lambda entry: not isinstance(entry, Operation))
    assert kinds_of(where_from(bare)) == ["operations"]
    assert kinds_of(where_tools_ran(bare)) == []
