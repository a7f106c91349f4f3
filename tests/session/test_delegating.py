"""A session in which somebody else gets a task: a child with one row, and the record so far."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from rath.errors import ResumeMismatch
from rath.flow import Agent, Workflow
from rath.session import Session
from rath.session.graph.kind import LineageKind
from rath.session.log.verify import verify
from rath.session.outcome import Cancelled, Completed, RoundLimit
from rath.session.persistence.store import FileStore
from rath.session.questions import where_from
from rath.session.record import Operation
from rath.testing import ScriptedClient, tool_call
from tests.support.api import recording_scope
from tests.support.sessions import FunctionTool, any_texts, cancelled_session, run


@given(any_texts)
def test_the_task_is_the_only_row(task: str) -> None:
    with pytest.raises(TypeError, match="a task is text, not int"):
        Session.from_user_message("go").delegate(7)  # type: ignore[arg-type]  # the point
    user = run(["much was said"])
    (row,) = user.delegate(task).chunk_table
    assert row.kind_name == "user"
    assert (
        row.payload["content"] == Session.from_user_message(task).chunk_table[0].payload["content"]
    )


def test_it_is_a_child_that_goes_on_counting() -> None:
    user = run(["much was said"]).synchronize()
    child = user.delegate("look")
    assert child.parent_session_ids == (user.id,)
    assert (child.lineage_operator, child.lineage_kind) == (
        "Session.delegate",
        LineageKind.OP_DELEGATE,
    )
    assert child.cumulative_usage == user.cumulative_usage
    assert child.outcome == Completed()
    assert child.lineage_extras == (("parent_rows", 2),)
    made = child.record[-1]
    assert isinstance(made, Operation)
    assert (made.kind, made.session, made.workspace) == ("delegate", child.id, "share")


def test_it_works_in_the_same_sandbox_with_the_same_provider() -> None:
    provider = ScriptedClient([]).provider
    user = Session.from_user_message("go").to("local", provider=provider)
    child = user.delegate("look")
    assert child.provider is provider
    with user.core.placement.held() as sandbox:
        assert child.core.placement.held() is sandbox


def test_a_parent_that_waits_is_passed_on_and_one_that_was_stopped_is_not() -> None:
    waiting = cancelled_session()
    assert waiting.delegate("look").outcome == Cancelled(waiting.id)
    stopped = run([tool_call("f")], FunctionTool("f", lambda *_: "x"), max_tool_rounds=1)
    assert stopped.outcome == RoundLimit(1)
    assert stopped.delegate("look").outcome == Completed()


def test_a_stored_one_is_what_it_was(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    user = run(["much was said"]).synchronize()
    child = run(["found"], user=user.delegate("look")).synchronize()
    child.save(store=store)
    loaded = Session.load(child.id, store=store)
    assert (loaded.chunk_table, list(loaded.record)) == (child.chunk_table, list(child.record))
    assert loaded.replay().text() == "found"
    assert verify(store, child.id).is_sound
    started = loaded.provenance.parents[0]
    assert started.provenance is not None
    assert started.provenance.kind is LineageKind.OP_DELEGATE
    (origin,) = [each for each in where_from(loaded).ancestors if each.session == started.id]
    assert (origin.n_rows, origin.n_born, origin.operator) == (1, 1, "Session.delegate")
    assert where_from(loaded).missing == ()


def test_one_made_in_a_call_knows_its_parent_up_to_there(tmp_path: Path) -> None:
    store, made = FileStore(tmp_path), list[Session]()

    def ask(session: Session, _: object) -> str | None:
        made.append(run(["found"], user=session.delegate("look")))
        return made[-1].text()

    with recording_scope(store):
        out = run([tool_call("ask"), "done"], FunctionTool("ask", ask)).synchronize()
    loaded = Session.load(made[0].id, store=store)
    started = loaded.provenance.parents[0].provenance
    assert started is not None
    (edge,) = started.parents
    assert (edge.id, edge.n_rows, len(out.chunk_table)) == (out.id, 2, 4)
    assert loaded.replay().text() == "found"


class Handing(Workflow):
    """Hands a task to an agent, without a tool."""

    def __init__(self, task: str, *turns: Any) -> None:
        self.task = task
        self.agent = Agent("x", ScriptedClient(turns).provider, system_tools=False)

    def forward(self, session: Session) -> Session:
        return self.agent(session.delegate(self.task))


def failed() -> Session:
    out = Handing("look", RuntimeError("gone"))(Session.from_user_message("go"))
    with pytest.raises(Exception, match="gone"):
        out.synchronize()
    return out


def test_another_task_at_the_same_place_is_refused() -> None:
    with pytest.raises(ResumeMismatch, match="the task is another one"):
        Handing("look elsewhere", "found").resume(failed())
