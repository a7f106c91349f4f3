"""The five questions, asked of one session with a long way behind it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs
from pydantic import BaseModel

from rath._async.deferred import Deferred
from rath.session import ChunkTable, Session, run_session_compress, user_text_chunk
from rath.session.graph.recording import Provenance
from rath.session.outcome import Completed, OutputValue
from rath.session.questions import (
    what_changed,
    what_was_seen,
    where_from,
    where_tools_ran,
    who_answered,
)
from rath.session.questions.encode import encode_answer
from rath.session.record import Operation
from rath.testing import ScriptedClient, tool_call
from tests.support.api import Body
from tests.support.session_files import created, placed, worked, writing
from tests.support.sessions import FunctionTool, run
from tests.support.told import MENU, NOTE, told

QUESTIONS = [what_was_seen, who_answered, where_tools_ran, what_changed, where_from]


@pytest.fixture(scope="module")
def session() -> Session:
    return told()


def test_each_call_saw_instructions_rows_notes_and_tools(session: Session) -> None:
    answer = what_was_seen(session)
    assert [(each.turn, each.call.purpose) for each in answer.calls] == [
        *[(turn, "turn") for turn in range(1, 7)],
        (7, "compress"),
        (8, "turn"),
        (None, "select"),
    ]
    assert {each.proof for each in answer.calls} == {"same"}
    first, compress, select = answer.calls[0], answer.calls[6], answer.calls[8]
    assert (first.recalled, first.context_at) == ((NOTE,), 0)
    assert [row.content for row in first.head] != []
    assert len(first.tools) == 3
    assert first.rows is not None
    assert [len(one.rows or ()) for one in answer.calls] == [1, 3, 4, 6, 4, 6, 10, 1, 2]
    assert compress.question is not None
    assert select.question is not None
    assert MENU[0] in select.question
    assert select.session == session.id


def test_a_turn_has_only_its_own(session: Session) -> None:
    (call,) = what_was_seen(session, turn=3).calls
    assert call.body is not None
    assert [each.turn for each in who_answered(session, turn=3).calls] == [3]
    assert [each.run.call_id for each in where_tools_ran(session, turn=3).runs] == ["two"]
    assert what_changed(session, turn=1).files == (created("a", b"hello\nworld\n"),)
    assert what_changed(session, turn=1).verdicts == ()
    assert what_changed(session, turn=2).files == ()
    assert [each.by for each in where_from(session, turn=3).rows] == ["model", "tool"]


@pytest.mark.parametrize("turn", [0, 9, -1])
@pytest.mark.parametrize("question", QUESTIONS)
def test_a_turn_that_there_is_not_is_refused(
    question: Callable[..., Any], turn: int, session: Session
) -> None:
    with pytest.raises(ValueError, match="has turns 1 to 8"):
        question(session, turn=turn)


def test_a_session_without_turns_says_so() -> None:
    with pytest.raises(ValueError, match="has no turns"):
        who_answered(Session.from_user_message("hello"), turn=1)


@pytest.mark.parametrize("n_before", [0, 1, 3])
def test_what_an_agent_inside_a_call_began_with_is_counted_in_its_own_session(
    n_before: int,
) -> None:
    longer = worked(placed(), *[writing("x", str(each)) for each in range(n_before)])
    agent = Session.from_agent_prompt("Be short.").fork()

    def ask(_: Session) -> Any:
        return worked(longer, writing("x", "inner"), agent=agent).text()

    turns = [writing("a", "1"), tool_call("ask"), writing("b", "2")]
    out = worked(placed(), *turns, tools=[FunctionTool("ask", ask)])
    assert what_changed(out).files == (created("a", b"1"), created("b", b"2"))


def test_a_merge_of_which_sides_are_missing_is_not_known() -> None:
    base = worked(placed(), writing("a", "1")).synchronize()
    merge = base.fork(workspace="copy").merge(base.fork(workspace="copy"), files="three-way")
    lost = Session(merge.chunk_table, id=merge.id)
    lost.add_entries(
        *(
            structs.replace(entry, theirs=None, n_ours=1)
            if isinstance(entry, Operation) and entry.kind == "merge"
            else entry
            for entry in merge.record
        )
    )
    (reason,) = what_changed(lost).unknown
    assert "both its sides" in reason


def test_a_turn_of_a_branch_names_only_what_leads_there(session: Session) -> None:
    told = where_from(session, turn=3)
    operators = [each.operator for each in told.ancestors]
    assert "Session.merge" not in operators
    assert operators[-1] == "run_session_loop"
    assert {each.operator for each in told.leaves} == {"implicit"}
    assert what_changed(session).unsure == ()


def test_a_detached_session_still_knows_a_summary() -> None:
    model = ScriptedClient(["short"])
    agent = Session.from_agent_prompt("Be short.")
    short = run_session_compress(run(["long"]), agent, agent_provider=model.provider)
    assert [each.by for each in where_from(short.detach()).rows] == ["summary"]


def test_a_request_of_one_turn_stands_in_its_json(session: Session) -> None:
    (one,) = encode_answer(what_was_seen(session, turn=1))["calls"]
    assert one["request"]["messages"][0]["role"] == "system"
    assert one["recalled"][0]["score"] == 0.75
    assert len(one["row_ids"]) == one["n_rows"] == 1
    several = encode_answer(what_was_seen(session))["calls"]
    assert {each["request"] for each in several} == {None}


class Answer(BaseModel):
    celsius: int


@pytest.mark.parametrize(
    ("value", "encoded"),
    [(Answer(celsius=3), {"celsius": 3}), ({"a": (1,)}, {"a": [1]}), (1j, "1j")],
    ids=["model", "mapping", "other"],
)
def test_a_typed_answer_is_json_as_far_as_it_can_be(value: object, encoded: object) -> None:
    out = run(["done"]).synchronize()
    body = replace(out.body.result(), outcome=Completed(OutputValue(value)))
    typed = Session.from_body(Deferred.of(body), out.provenance, id=out.id)
    told = encode_answer(where_from(typed))["ancestors"][-1]["outcome"]
    assert told == {"state": "completed", "output": {"value": encoded}}


def test_rows_without_a_name_have_no_birth() -> None:
    row = user_text_chunk("hello")
    nameless = Session.from_body(Deferred.of(Body(ChunkTable([row]))), Provenance())
    (told,) = where_from(nameless).rows
    assert (told.born, told.by, told.turn) == (None, "written", None)
