"""The five questions, asked of one session with a long way behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs
from pydantic import BaseModel

from rath._async.deferred import Deferred
from rath._core.vector import Vector
from rath.llm import Provider
from rath.session import ChunkTable, Session, user_text_chunk
from rath.session.graph.recording import Provenance
from rath.session.outcome import Completed, OutputValue
from rath.session.questions import (
    WhatWasSeen,
    what_changed,
    what_was_seen,
    where_from,
    where_tools_ran,
    who_answered,
)
from rath.session.questions.encode import encode_answer
from rath.session.record import ModelCall, Operation, Seen
from rath.testing import ScriptedClient, tool_call
from tests.support import chat_replies
from tests.support.api import Body, Entry
from tests.support.asking import KEY
from tests.support.chat_server import ChatServer
from tests.support.history import long_session
from tests.support.images import picture
from tests.support.rendering import rerender_call
from tests.support.session_files import created, placed, worked, writing
from tests.support.sessions import FunctionTool, entries_of, run

QUESTIONS = [what_was_seen, who_answered, where_tools_ran, what_changed, where_from]


@pytest.fixture(scope="module")
def session() -> Session:
    return long_session()


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
    lost.add_entry(
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
    reports = where_from(session, turn=3)
    operators = [each.operator for each in reports.ancestors]
    assert "Session.merge" not in operators
    assert operators[-1] == "run_session_loop"
    assert {each.operator for each in reports.leaves} == {"implicit"}
    assert what_changed(session).unsure == ()


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
    body = replace(out.core.body.result(), outcome=Completed(OutputValue(value)))
    typed = Session.from_body(Deferred.of(body), out.provenance, id=out.id)
    reports = encode_answer(where_from(typed))["ancestors"][-1]["outcome"]
    assert reports == {"state": "completed", "output": {"value": encoded}}


def test_rows_without_a_name_have_no_birth() -> None:
    row = user_text_chunk("hello")
    nameless = Session.from_body(Deferred.of(Body(ChunkTable([row]))), Provenance())
    (reports,) = where_from(nameless).rows
    assert (reports.born, reports.by, reports.turn) == (None, "written", None)


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with ChatServer() as running:
        yield running


def test_an_image_whose_bytes_are_gone_proves_nothing(server: ChatServer) -> None:
    server.queue(chat_replies.completion("a cat"))
    provider = Provider(base_url=server.base_url, api_key=KEY, model="m")
    user = Session.from_user_message("what is it?", images=[picture(b"1")])
    out = run([], user=user, agent_provider=provider)
    bare = Session(ChunkTable(replace(row) for row in out.chunk_table), id=out.id)
    for entry in out.record:
        bare.add_entry(entry)
    (call,) = what_was_seen(bare).calls
    assert call.proof == "none"
    assert call.rows is not None


def with_entries(session: Session, change: Callable[[Entry], Entry]) -> Session:
    """Return a session whose entries are others."""
    made = Session(session.chunk_table, id=session.id)
    made.add_entry(*Vector(change(entry) for entry in session.record))
    return made


def call_with(seen: Callable[[Seen], Seen | None]) -> WhatWasSeen:
    def change(entry: Entry) -> Entry:
        if isinstance(entry, ModelCall):
            assert entry.seen is not None
            return structs.replace(entry, seen=seen(entry.seen))
        return entry

    return what_was_seen(with_entries(run(["done"]), change))


@pytest.mark.parametrize(
    ("changes", "proof", "problem"),
    [
        ({"head_digest": "0"}, "none", "the agent's rows"),
        ({"request_digest": "0"}, "different", "another sha256"),
        ({"n_rows": 9}, "none", "neither in session"),
        ({"renderer": "old/1 x"}, "none", "written by 'old/1 x'"),
    ],
    ids=["head", "digest", "rows", "renderer"],
)
def test_what_does_not_fit_is_not_proved(changes: dict[str, Any], proof: str, problem: str) -> None:
    (call,) = call_with(lambda seen: structs.replace(seen, **changes)).calls
    assert call.proof == proof
    assert problem in call.problem


def test_a_call_that_tells_nothing_of_what_it_saw_is_not_proved() -> None:
    (call,) = call_with(lambda _: None).calls
    assert (call.proof, call.rows, call.recalled) == ("none", None, ())


def test_without_its_rows_or_its_operation_a_call_is_not_proved() -> None:
    out = run(["done"])
    other, bare = Session.from_user_message("something else"), Session(out.chunk_table)
    other.add_entry(*out.record)
    bare.add_entry(*(entry for entry in out.record if not isinstance(entry, Operation)))
    (call,) = what_was_seen(other).calls
    assert (call.proof, call.rows) == ("none", None)
    (call,) = what_was_seen(bare).calls
    assert (call.proof, call.head, call.session) == ("none", (), None)


CLIENT = ScriptedClient(["done"])


def session_and_call() -> tuple[Session, ModelCall]:
    client = ScriptedClient(["done"])
    out = run([], agent_provider=client.provider).synchronize()
    (call,) = entries_of(out, ModelCall)
    return out, call


def test_rows_that_are_nowhere_any_more_are_refused() -> None:
    session, call = session_and_call()
    elsewhere = Session.create("user", "other rows")
    for entry in session.record:
        elsewhere.add_entry(entry)
    orphan = Session(ChunkTable(), parent_session_ids=(session.id,))
    for entry in session.record:
        orphan.add_entry(entry)
    diamond = elsewhere.fork().merge(elsewhere.fork())
    for lost in (elsewhere, orphan, diamond):
        with pytest.raises(ValueError, match="neither in session"):
            rerender_call(lost, call, client=CLIENT, provider=CLIENT.provider)
