"""With a kind of entry left out, questions that need it say so; others answer as before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from msgspec import structs

from rath.session import ChunkTable, Session, assistant_turn_chunk
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
from tests.support.api import Entry
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


def is_purpose(*purposes: str) -> Callable[[Entry], bool]:
    return lambda entry: isinstance(entry, ModelCall) and entry.purpose in purposes


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


def test_answers_of_a_session_that_nobody_knows_need_calls() -> None:
    rows = run(["yes"]).chunk_table
    assert kinds_of(who_answered(Session(rows))) == ["model calls"]


@pytest.mark.parametrize(
    ("left_out", "question", "kind", "said"),
    [
        (is_check, where_tools_ran, "tool runs", ""),
        (is_purpose("select"), who_answered, "model calls", "a selection"),
        (is_purpose("compress"), who_answered, "model calls", "summary"),
        (is_purpose("turn", "select", "compress"), who_answered, "model calls", "more like it"),
    ],
    ids=["check", "selection", "summary", "many"],
)
def test_what_one_kind_of_call_left_is_missed_without_it(
    left_out: Callable[[Entry], bool], question: Callable[[Session], Any], kind: str, said: str
) -> None:
    (missing,) = question(changed(told(), lambda entry: not left_out(entry))).missing
    assert missing.kind == kind
    assert said in missing.reason


def test_a_verdict_alone_is_missed_without_run_and_operation() -> None:
    session = told()
    lost = {entry.operation for entry in session.record if is_check(entry)}
    bare = changed(
        session,
        lambda entry: not (isinstance(entry, ToolRun | Operation) and entry.operation in lost),
    )
    assert kinds_of(where_tools_ran(bare)) == ["tool runs"]
    assert kinds_of(what_changed(bare)) == ["tool runs", "operations"]


def test_a_decision_that_is_not_there_is_missed() -> None:
    session = told()
    allowed = next(entry for entry in session.record if isinstance(entry, ToolRun))
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
    bare = changed(other, lambda entry: not isinstance(entry, Operation))
    assert kinds_of(where_from(bare)) == ["operations"]
    assert kinds_of(where_tools_ran(bare)) == []
