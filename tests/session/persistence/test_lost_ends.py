"""A log that was finished and has lost its end is damage, and is never gone on with."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from rath import autosave
from rath.errors import SessionDamaged
from rath.flow import Agent
from rath.session import Session
from rath.session.log.index import StoreIndex
from rath.session.outcome import Completed, NeedsApproval
from rath.session.persistence import SESSION_PARTIAL_SUFFIX, load_session, session_file
from rath.session.persistence.store import FileStore
from rath.testing import ScriptedClient, Turn, tool_call
from tests.support.approvals import Noting
from tests.support.waiting_program import allow, problems


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OPENRATH_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


def agent_of(tool: Noting) -> Agent:
    turns: list[Turn] = [tool_call("f", {"n": 1}, id="c1"), "done", "done again"]
    return Agent("test", ScriptedClient(turns).provider, [tool], system_tools=False)


def done(tool: Noting) -> Session:
    """A finished run that has called a tool whose calls must not be repeated."""
    with autosave():
        return agent_of(tool)(Session.from_user_message("go")).synchronize()


def done_after_an_approval(tool: Noting) -> tuple[Session, bytes]:
    """A finished run, and its log as it was while it waited."""
    with autosave():
        agent = agent_of(tool)
        out = agent(Session.from_user_message("go")).synchronize()
        assert isinstance(out.outcome, NeedsApproval)
        allow(out)
        before = session_file(out.id).read_bytes()
        out = agent(Session.load(out.id)).synchronize()
        assert out.outcome == Completed()
        return out, before


def beginnings(session: UUID) -> list[bytes]:
    """The log of a session, cut off after each of its lines that has others behind it."""
    lines = session_file(session).read_bytes().splitlines(keepends=True)
    return [b"".join(lines[:n]) for n in range(1, len(lines))]


def goes_on(session: UUID, tool: Noting) -> Session:
    with autosave():
        return agent_of(tool)(Session.load(session)).synchronize()


def test_a_finished_log_that_is_cut_at_any_line_is_damage_and_nothing_is_repeated() -> None:
    tool = Noting(approval="never")
    out = done(tool)
    for cut in beginnings(out.id):
        session_file(out.id).write_bytes(cut)
        with pytest.raises(SessionDamaged, match="was finished, and its last line is not the end"):
            goes_on(out.id, tool)
        (problem,) = problems(FileStore(), out.id)
        assert "was finished" in problem
        (listed,) = [each for each in StoreIndex(FileStore()).summaries() if each.id == out.id]
        assert (listed.state, "was finished" in listed.problem) == ("damaged", True)
        rows = load_session(out.id, recover=True).chunk_table
        assert tuple(rows) == tuple(out.chunk_table)[: len(rows)]
    assert tool.calls == [1]


def test_the_same_log_without_its_name_is_of_a_run_that_was_cut_off() -> None:
    tool = Noting(approval="never", effects="idempotent")
    out = done(tool)
    cut = next(each for each in beginnings(out.id) if b'"intent"' in each)
    session_file(out.id).unlink()
    partial = session_file(out.id).with_name(f"{out.id}{SESSION_PARTIAL_SUFFIX}")
    partial.write_bytes(cut)
    assert problems(FileStore(), out.id) == []
    with autosave():
        agent = Agent("test", ScriptedClient(["done"]).provider, [tool], system_tools=False)
        assert agent(Session.load(out.id)).outcome == Completed()
    assert tool.calls == [1, 1]


@pytest.mark.parametrize("is_looked_at", [False, True], ids=["at once", "after a listing"])
def test_what_the_index_has_seen_of_a_log_is_missed(is_looked_at: bool) -> None:
    tool = Noting()
    out, before = done_after_an_approval(tool)
    with StoreIndex(FileStore()) as index:
        index.refresh()
    session_file(out.id).write_bytes(before)
    if is_looked_at:
        with StoreIndex(FileStore()) as index:
            found = index.summary(out.id)
        assert found is not None
        assert (found.state, "its end was cut off" in found.problem) == ("damaged", True)
    assert [each for each in problems(FileStore(), out.id) if "its end was cut off" in each]
    with pytest.raises(SessionDamaged, match="when the index read it"):
        goes_on(out.id, tool)
    assert tool.calls == [1]


def test_a_log_that_lost_its_end_takes_no_decision() -> None:
    tool = Noting()
    with autosave():
        waiting = agent_of(tool)(Session.from_user_message("go")).synchronize()
        before = session_file(waiting.id).read_bytes()
        allow(waiting)
        goes_on(waiting.id, tool)
    with StoreIndex(FileStore()) as index:
        index.refresh()
    session_file(waiting.id).write_bytes(before)
    with pytest.raises(SessionDamaged, match="when the index read it"):
        allow(Session.load(waiting.id))
    assert session_file(waiting.id).read_bytes() == before
    assert tool.calls == [1]


def test_what_came_from_a_log_knows_what_it_had() -> None:
    tool = Noting()
    out, before = done_after_an_approval(tool)
    fork = out.fork()
    fork.save()
    session_file(out.id).write_bytes(before)
    (problem,) = problems(FileStore(), out.id)
    assert f"session {fork.id} begins with rows of it up to 4, and it has only 2" in problem
    with pytest.raises(SessionDamaged, match=f"session {fork.id} begins with rows"):
        goes_on(out.id, tool)
    assert tool.calls == [1]


def test_a_log_that_is_brought_back_is_sound_again() -> None:
    tool = Noting()
    out, before = done_after_an_approval(tool)
    whole = session_file(out.id).read_bytes()
    for data in (whole, before, whole):
        session_file(out.id).write_bytes(data)
        with StoreIndex(FileStore()) as index:
            found = index.summary(out.id)
            assert found is not None
            assert found.state == ("completed" if data == whole else "damaged")
    assert problems(FileStore(), out.id) == []
