"""Conversations: the user says the next thing, and the session goes on as one line."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import rath
from rath.errors import ReplayDifference, ResumeMismatch
from rath.flow import Agent, Workflow
from rath.session import LineageKind, Session
from rath.session.log.verify import verify
from rath.session.outcome import Cancelled, Completed, NeedsApproval, RoundLimit
from rath.session.persistence.store import FileStore
from rath.session.questions import where_from
from rath.session.record import ModelCall, Operation
from rath.testing import ScriptedClient, tool_call
from tests.support.images import picture
from tests.support.sessions import FunctionTool, cancelled_session, run
from tests.support.waiting import PATIENCE


def chat(*turns: Any, **options: Any) -> tuple[Agent, ScriptedClient]:
    client = ScriptedClient(turns)
    return Agent("You answer.", client.provider, system_tools=False, **options), client


def test_a_chat_of_three_turns_is_one_line() -> None:
    agent, client = chat("one", "two", "three")
    first = agent(Session.from_user_message("go"))
    second = agent(first, "and now?")
    third = agent(second, "and then?")
    assert [row.payload["content"] for row in third.chunk_table] == [
        "go",
        "one",
        "and now?",
        "two",
        "and then?",
        "three",
    ]
    assert [str(message.content) for message in client.requests[-1].messages] == [
        "You answer.",
        *(str(row.payload["content"]) for row in third.chunk_table.rows[:-1]),
    ]
    origins = where_from(third).ancestors
    line = " ".join(each.operator for each in origins if each.n_born)
    assert line == (
        "implicit implicit run_session_loop input run_session_loop input run_session_loop"
    )
    assert sum(isinstance(entry, ModelCall) for entry in third.record) == 3


def test_what_is_said_is_an_operation_with_one_parent() -> None:
    session = run(["done"]).synchronize()
    said = session.say("and now?")
    assert (said.lineage_operator, said.lineage_kind) == ("input", LineageKind.OP_INPUT)
    assert said.parent_session_ids == (session.id,)
    assert (said.outcome, said.cumulative_usage) == (Completed(), session.cumulative_usage)
    made = said.record[-1]
    assert isinstance(made, Operation)
    assert (made.kind, made.session, made.workspace) == ("input", said.id, "share")
    with pytest.raises(TypeError, match="what the user says is text, not int"):
        session.say(7)  # type: ignore[arg-type]  # the point


def test_pictures_are_shown(tmp_path: Path) -> None:
    path = tmp_path / "shown.png"
    path.write_bytes(picture())
    said = run(["done"]).say("look", images=[path, picture()])
    assert len(said.chunk_table[-1].images) == 2


def test_it_does_not_wait_for_the_run_before() -> None:
    is_open = threading.Event()
    tool = FunctionTool("gate", lambda *_: is_open.wait(PATIENCE))
    session = run([tool_call("gate"), "done"], tool)
    said = session.say("and now?")
    assert (session.is_pending, said.is_pending) == (True, True)
    is_open.set()
    assert [row.kind_name for row in said.chunk_table][-2:] == ["assistant", "user"]


def test_a_limit_that_was_reached_is_past_and_what_waits_is_passed_on() -> None:
    stopped = run([tool_call("f")], FunctionTool("f", lambda *_: "x"), max_tool_rounds=1)
    assert (stopped.outcome, stopped.say("go on").outcome) == (RoundLimit(1), Completed())
    agent, client = chat("never")
    cancelled = cancelled_session()
    assert agent(cancelled, "go on").outcome == Cancelled(cancelled.id)
    waiting = run([tool_call("f", id="c")], FunctionTool("f", lambda *_: "x"), approval="always")
    assert agent(waiting, "go on").outcome == NeedsApproval(waiting.id, ("c",))
    assert client.n_left == 1


def test_it_goes_on_in_the_same_place() -> None:
    session = Session.from_user_message("go").to("local", provider=chat()[0].agent.provider)
    said = session.say("and now?")
    assert said.provider is session.provider
    with session.require_sandbox() as sandbox:
        assert said.require_sandbox() is sandbox


def test_a_stored_conversation_is_what_it_was(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    agent, _ = chat("one", "two", "three", store=store)
    out = agent(agent(agent(Session.from_user_message("go")), "and now?"), "and then?")
    loaded = Session.load(out.synchronize().id, store=store)
    assert (loaded.chunk_table, list(loaded.record)) == (out.chunk_table, list(out.record))
    assert verify(store, out.id).is_sound
    assert loaded.replay().text() == "three"
    assert where_from(loaded).missing == ()
    said = loaded.provenance.parents[0].provenance
    assert said is not None
    assert (said.operator, said.kind) == ("input", LineageKind.OP_INPUT)


def test_no_part_of_a_conversation_is_written_twice(tmp_path: Path) -> None:
    said = [f"said {n} " * 500 for n in range(8)]
    agent, _ = chat(*(text.upper() for text in said), store=FileStore(tmp_path))
    session = agent(Session.from_user_message(said[0]))
    for text in said[1:]:
        session = agent(session, text)
    session.synchronize()
    logs = b"".join(path.read_bytes() for path in tmp_path.glob("*.jsonl"))
    assert [logs.count(text.encode()) for text in said] == [1] * 8
    assert [logs.count(text.upper().encode()) for text in said] == [1] * 8


class Interview(Workflow):
    """Asks its agent twice."""

    def __init__(self, text: str, *turns: Any) -> None:
        self.text = text
        self.agent, self.client = chat(*turns)

    def forward(self, session: Session) -> Session:
        return self.agent(self.agent(session), self.text)


def failed() -> Session:
    out = Interview("and now?", "one", RuntimeError("gone"))(Session.from_user_message("go"))
    with pytest.raises(Exception, match="gone"):
        out.synchronize()
    return out


def test_a_program_that_runs_again_says_the_same(tmp_path: Path) -> None:
    resumed = Interview("and now?", "two").resume(failed())
    assert [row.payload["content"] for row in resumed.chunk_table] == [
        "go",
        "one",
        "and now?",
        "two",
    ]
    with pytest.raises(ResumeMismatch, match="what the user says is another one"):
        Interview("or else?", "two").resume(failed())
    key, store = "interview", FileStore(tmp_path)
    start = Session.from_user_message("go")
    out = Interview("and now?", "one", "two").run(start, run=key, store=store).synchronize()
    again = Interview("and now?").run(start, run=key, store=store)
    assert (again.id, again.text()) == (out.id, "two")


def test_a_cassette_serves_a_conversation(tmp_path: Path) -> None:
    tape = tmp_path / "chat.rath"
    for turns in (("one", "two"), ()):
        with rath.cassette(tape):
            out = Interview("and now?", *turns)(Session.from_user_message("go"))
            assert out.text() == "two"
    with pytest.raises(ReplayDifference), rath.cassette(tape):
        Interview("or else?")(Session.from_user_message("go")).synchronize()


def test_a_workflow_and_a_compiled_one_take_the_text() -> None:
    flow = Interview("second", "one", "two", "three", "four")
    out = flow.compile()(flow(Session.from_user_message("go")), "again")
    said = [row.payload["content"] for row in out.chunk_table if row.kind_name == "user"]
    assert said == ["go", "second", "again", "second"]
    with pytest.raises(TypeError, match="what the user says is text, not Session"):
        flow(out, out)  # type: ignore[arg-type]  # the point
    with pytest.raises(TypeError, match="takes a Session, got str"):
        flow.compile()("go", "again")  # type: ignore[arg-type]  # the point
