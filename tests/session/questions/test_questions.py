"""The five questions, asked of one session with a long way behind it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest
from msgspec import structs
from pydantic import BaseModel

from rath._async.lazy import Deferred
from rath.errors import ProviderServerError
from rath.llm.prices import Cost
from rath.session import ChunkTable, Session, run_session_compress, user_text_chunk
from rath.session.graph.recording import Provenance
from rath.session.outcome import Completed, NeedsApproval, OutputValue
from rath.session.questions import (
    what_changed,
    what_was_seen,
    where_from,
    where_tools_ran,
    who_answered,
)
from rath.session.questions.encode import encode_answer
from rath.session.record import Decision, Interrupt, ModelCall, Operation, ToolRun
from rath.testing import ScriptedClient, tool_call
from tests.support.api import Body
from tests.support.evidence import answer, priced_client, tokens
from tests.support.offline_vendor import OfflineVendor, Says
from tests.support.session_files import created, files_of, placed, worked, writing
from tests.support.sessions import FunctionTool, cancelled_session, run
from tests.support.told import MENU, NOTE, changed, told

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


def test_who_answered_is_told_with_tokens_and_cost() -> None:
    client = priced_client([answer("yes", tokens(100, 10))])
    out = run([], agent_provider=client.provider).synchronize()
    (call,) = [entry for entry in out.record if isinstance(entry, ModelCall)]
    told = who_answered(out)
    assert told.models == (("gpt-5-mini", 1),)
    assert told.tokens == 110
    assert isinstance(call.evidence.cost, Cost)
    assert told.cost.usd == call.evidence.cost.usd
    assert told.calls[0].n_retries == 0


def test_a_failed_call_belongs_to_the_turn_that_its_fallback_answered() -> None:
    def down(_: object) -> Says:
        raise ProviderServerError("down", status=503)

    first, second = OfflineVendor(down), OfflineVendor(lambda _: Says("done"))
    provider = replace(first.provider, retry_max_attempts=1, fallbacks=[second.provider])
    told = who_answered(run([], agent_provider=provider))
    assert [(each.turn, each.call.status) for each in told.calls] == [(1, "failed"), (1, "done")]
    assert told.models == ((second.provider.model, 1),)


def test_a_call_after_which_no_answer_came_has_no_turn() -> None:
    client = ScriptedClient([tool_call("f"), ProviderServerError("down", status=503)])
    tool = FunctionTool("f", lambda *_: 1)
    out = run([], tool, agent_provider=client.provider)
    with pytest.raises(ProviderServerError):
        out.synchronize()
    partial = Session(out.partial_table, id=out.id)
    partial.add_entries(*out.partial_record)
    assert [each.turn for each in who_answered(partial).calls] == [1, None]


def test_what_ran_inside_a_call_belongs_to_the_turn_of_that_call() -> None:
    def ask(session: Session, _: object) -> Any:
        return worked(session, writing("inner", "1")).text()

    out = worked(placed(), tool_call("ask", id="outer"), tools=[FunctionTool("ask", ask)])
    calls = who_answered(out).calls
    assert [each.turn for each in calls] == [1, 1, 1, 2]
    runs = where_tools_ran(out).runs
    assert [(each.turn, each.run.tool) for each in runs] == [
        (1, "write_workspace_file"),
        (1, "ask"),
    ]
    assert what_changed(out, turn=1).files == (created("inner", b"1"),)


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


def test_a_call_that_was_cut_off_belongs_to_its_turn() -> None:
    out = worked(placed(), writing("a", "1", id="one")).synchronize()
    cut = changed(out, lambda entry: not isinstance(entry, ToolRun))
    (made,) = [entry for entry in out.record if isinstance(entry, ToolRun)]
    cut.add_entry(structs.replace(made, rows=(), status="interrupted"))
    assert [each.turn for each in where_tools_ran(cut).runs] == [1]


def test_tools_are_told_with_their_sandbox(session: Session) -> None:
    told = where_tools_ran(session)
    assert [(each.turn, each.run.tool, each.run.status) for each in told.runs] == [
        (1, "write_workspace_file", "done"),
        (None, "run_shell_command", "done"),
        (3, "write_workspace_file", "done"),
        (5, "write_workspace_file", "done"),
    ]
    assert [(place.backend, count) for place, count in told.sandboxes] == [
        ("files", 2),
        ("files", 1),
        ("files", 1),
    ]
    assert told.untold == ()


def test_a_call_without_a_result_is_told() -> None:
    out = run([tool_call("f", {"x": 1}, id="c"), "ok"], FunctionTool("f", lambda *_: 1))
    table = out.chunk_table.prefix(2)
    again = Session(table, id=out.id)
    again.add_entries(*(e for e in out.record if not isinstance(e, ToolRun)))
    (untold,) = where_tools_ran(again).untold
    assert (untold.turn, untold.call.id) == (1, "c")
    assert where_tools_ran(again.fork().merge(worked(again))).untold == (untold,)


def test_a_call_that_waits_for_an_approval_was_not_made() -> None:
    tool = FunctionTool("f", lambda *_: 1)
    tool.approval = "always"
    out = run([tool_call("f", {"x": 1}, id="c"), "ok"], tool)
    (untold,) = where_tools_ran(out).untold
    assert (untold.call.id, untold.state) == ("c", "asked")


def test_files_and_checks_are_told(session: Session) -> None:
    told = what_changed(session)
    assert [(each.path, each.kind) for each in told.files] == [
        ("a", "created"),
        ("b", "created"),
        ("c", "created"),
    ]
    by = [type(each.change.call).__name__ for each in told.steps]
    assert by == ["ToolRun", "ToolRun", "Operation"]
    assert [each.turn for each in told.steps] == [1, 3, None]
    assert "+hello\n" in told.diff
    assert [each.verdict.name for each in told.verdicts] == ["tests"]
    assert (told.gaps, told.conflicts, told.unknown, told.unsure) == ((), (), (), ())
    assert files_of(session) == {"x": b"0\n", "a": b"hello\nworld\n", "b": b"left\n",
                                 "c": b"right\n"}  # fmt: skip


def test_conflicts_of_a_merge_are_told() -> None:
    base = worked(placed(), writing("a", "1")).synchronize()
    sides = [worked(base.fork(workspace="copy"), writing("a", each)) for each in ("2", "3")]
    told = what_changed(sides[0].merge(sides[1], files="three-way"))
    assert [each.path for each in told.conflicts] == ["a"]


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


def test_the_way_to_the_final_state_goes_back_to_the_leaves(session: Session) -> None:
    told = where_from(session)
    assert [each.operator for each in told.ancestors] == [
        "implicit",
        "implicit",
        "run_session_loop",
        "Session.fork",
        "implicit",
        "run_session_loop",
        "Session.fork",
        "implicit",
        "run_session_loop",
        "Session.merge",
        "implicit",
        "run_session_compress",
        "implicit",
        "run_session_loop",
    ]
    assert {each.operator for each in told.leaves} == {"implicit"}
    compressed, last = told.ancestors[-3], told.ancestors[-1]
    assert compressed.summary is not None
    assert len(compressed.summary.replaced) == 10
    assert last.session == session.id
    assert [each.kind for each in last.selections] == ["select"]
    assert [(each.by, each.turn) for each in told.rows] == [("summary", 7), ("model", 8)]


def test_what_a_run_waited_for_and_what_was_decided_is_told() -> None:
    out = run(["done"]).synchronize()
    begun = next(entry for entry in out.record if isinstance(entry, Operation))
    wait = Interrupt(operation=begun.operation, reason="decision", calls=("c",))
    said = Decision(
        operation=begun.operation, interrupt=wait.id, choice="skip", by="me", call_id="c",
        arguments=None,
    )  # fmt: skip
    lost = structs.replace(wait, operation=uuid4())
    out.add_entries(wait, said, lost)
    assert where_from(out).ancestors[-1].waits == (wait, said)


def test_an_undo_names_the_call(session: Session) -> None:
    out = worked(placed(), writing("a", "1", id="one")).synchronize()
    undone = out.undo("one")
    told = where_from(undone).ancestors[-1]
    assert told.operator == "Session.undo"
    assert told.operation is not None
    assert told.operation.undone is not None
    assert told.undone is None or told.undone.call_id == "one"
    assert what_changed(undone).files == ()


def test_a_parent_that_is_known_by_its_id_alone_is_told() -> None:
    parent = uuid4()
    told = where_from(Session(ChunkTable(), parent_session_ids=(parent,)))
    assert told.ancestors[0].session == parent
    assert told.ancestors[0].outcome is None


def test_a_turn_of_a_branch_names_only_what_leads_there(session: Session) -> None:
    operators = [each.operator for each in where_from(session, turn=3).ancestors]
    assert "Session.merge" not in operators
    assert operators[-1] == "run_session_loop"


def test_a_detached_session_still_knows_a_summary() -> None:
    model = ScriptedClient(["short"])
    agent = Session.from_agent_prompt("Be short.")
    short = run_session_compress(run(["long"]), agent, agent_provider=model.provider)
    assert [each.by for each in where_from(short.detach()).rows] == ["summary"]


def test_a_suspended_session_is_told() -> None:
    passed = worked(cancelled_session())
    assert not isinstance(where_from(passed).ancestors[-1].outcome, NeedsApproval)
    assert where_tools_ran(passed).runs == ()


@pytest.mark.parametrize("turn", [None, 1, 7])
@pytest.mark.parametrize("question", QUESTIONS)
def test_answers_are_json(question: Callable[..., Any], turn: int | None, session: Session) -> None:
    answer = question(session, turn=turn)
    encoded = encode_answer(answer)
    assert json.loads(json.dumps(encoded)) == encoded
    assert encoded["session"] == str(session.id)
    assert encoded["missing"] == []


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


def test_a_tool_that_needs_no_sandbox_ran_in_none() -> None:
    out = run([tool_call("f"), "ok"], FunctionTool("f", lambda *_: 1))
    told = where_tools_ran(out)
    assert len(told.runs) == 1
    assert told.sandboxes == ()
