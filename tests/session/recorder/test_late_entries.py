"""What comes to a stored session late is added to its log, or nowhere."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from uuid import UUID

import pytest

from rath.errors import PersistenceError
from rath.session import Session, delete_session, select_session
from rath.session.events import OutcomeChange
from rath.session.outcome import Completed
from rath.session.persistence.store import FileStore
from rath.session.record import Verdict
from rath.testing import ScriptedClient, tool_call
from tests.support.api import add_late, partial_beside
from tests.support.sessions import FunctionTool, run
from tests.support.waiting import PATIENCE


def verdict(name: str = "good") -> Verdict:
    return Verdict(
        operation=UUID(int=1),
        name=name,
        judge="me",
        passed=True,
        score=None,
        report="",
        workspace_digest=None,
    )


def log_of(session: Session) -> Path:
    return FileStore().path(session.id)


def names(session: Session) -> list[str]:
    return [entry.name for entry in session.record if isinstance(entry, Verdict)]


def test_an_entry_is_in_the_log_when_it_was_added() -> None:
    out = run(["done"], persist=True)
    out.add_entry(verdict())
    last = json.loads(log_of(out).read_bytes().split(b"\n")[-2])
    assert (last["event"], last["name"]) == ("verdict", "good")
    assert list(Session.load(out.id).record) == list(out.record)


def test_an_entry_of_a_session_that_is_not_stored_is_kept_in_memory() -> None:
    out = run(["done"])
    out.add_entry(verdict())
    assert names(out) == ["good"]
    assert not log_of(out).exists()


def test_entries_are_added_to_every_place_where_a_session_is(tmp_path: Path) -> None:
    out = run(["done"], persist=True).synchronize()
    out.save(path=tmp_path / "copy.jsonl")
    out.save(store=str(tmp_path / "other"))
    out.add_entry(verdict())
    assert names(Session.load(tmp_path / "copy.jsonl")) == ["good"]
    assert names(Session.load(out.id, store=str(tmp_path / "other"))) == ["good"]
    assert names(Session.load(out.id)) == ["good"]


def test_entries_of_a_loaded_session_are_added_to_its_log(tmp_path: Path) -> None:
    out = run(["done"], persist=True, persist_path=tmp_path / "run.jsonl").synchronize()
    for _ in range(2):
        Session.load(tmp_path / "run.jsonl").add_entry(verdict())
    assert names(Session.load(tmp_path / "run.jsonl")) == ["good", "good"]
    assert names(out) == []


def test_a_log_that_somebody_else_changed_takes_nothing() -> None:
    out = run(["done"], persist=True).synchronize()
    other = Session.load(out.id)
    other.add_entries(verdict("theirs"), verdict("too"))
    before = log_of(out).read_bytes()
    for _ in range(2):
        with pytest.raises(PersistenceError, match=r"changed by somebody else.*Load the session"):
            out.add_entry(verdict("mine"))
    assert names(out) == []
    assert log_of(out).read_bytes() == before
    other.add_entry(verdict("again"))
    assert names(Session.load(out.id)) == ["theirs", "too", "again"]


def test_a_log_with_another_entry_in_the_same_place_takes_nothing() -> None:
    out = run(["done"], persist=True).synchronize()
    other, third = Session.load(out.id), Session.load(out.id)
    other.add_entry(verdict("theirs"))
    with pytest.raises(PersistenceError, match="changed by somebody else"):
        third.add_entry(verdict("mine"))
    assert names(third) == []


def test_an_entry_is_added_to_a_log_that_was_written_anew_as_its_parent_was_deleted() -> None:
    parent = run(["first"], persist=True)
    out = run(["done"], user=parent, persist=True).synchronize()
    assert delete_session(parent.id)
    out.add_entry(verdict("late"))
    loaded = Session.load(out.id)
    assert names(loaded) == names(out) == ["late"]
    assert loaded.chunk_table == out.chunk_table


def _is_refused(*_: object, **__: object) -> bool:
    return False


def test_a_log_that_changes_all_the_time_takes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    out = run(["done"], persist=True).synchronize()
    monkeypatch.setattr(FileStore, "append_to_finished", _is_refused)
    with pytest.raises(PersistenceError, match="changed by somebody else"):
        out.add_entry(verdict("mine"))
    assert names(out) == []


def test_a_log_that_is_gone_takes_nothing() -> None:
    Session.load(run(["done"], persist=True).synchronize().id)
    out = Session.load(run(["done"], persist=True).synchronize().id)
    FileStore().delete(out.id)
    with pytest.raises(PersistenceError, match=r"is not in .* any more"):
        out.add_entry(verdict())


def test_a_full_disk_takes_nothing_and_a_later_entry_is_added(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = run(["done"], persist=True).synchronize()
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", _fail)
        with pytest.raises(PersistenceError, match="No space left"):
            out.add_entry(verdict("lost"))
    out.add_entry(verdict("kept"))
    assert names(Session.load(out.id)) == names(out) == ["kept"]


def _fail(_: int) -> None:
    raise OSError(28, "No space left on device")


def test_entries_of_a_cancelled_session_stand_after_its_failure() -> None:
    begun, go = threading.Event(), threading.Event()

    def hold(*_: object) -> None:
        begun.set()
        go.wait(PATIENCE)

    out = run([tool_call("hold"), "never"], FunctionTool("hold", hold), persist=True)
    begun.wait(PATIENCE)
    out.cancel()
    out.add_entry(verdict("one"))
    Session.load(out.id).add_entry(verdict("two"))
    go.set()
    assert partial_beside(log_of(out)).exists()
    loaded = Session.load(out.id)
    assert names(loaded) == ["one", "two"]
    assert loaded.outcome == out.outcome


def test_a_torn_line_at_the_end_is_cut_off_before_an_entry_is_added() -> None:
    out = run([ValueError("no")], persist=True)
    with pytest.raises(ValueError, match="no"):
        out.synchronize()
    partial = partial_beside(log_of(out))
    with partial.open("ab") as file:
        file.write(b'{"event":"ro')
    loaded = Session.load(out.id)
    loaded.add_entry(verdict())
    assert names(Session.load(out.id)) == ["good"]


def test_an_entry_that_json_cannot_hold_is_refused() -> None:
    out = run(["done"], persist=True).synchronize()
    strange: object = object()
    with pytest.raises(PersistenceError, match="cannot hold what it is given"):
        out.add_entry(verdict(strange))  # type: ignore[arg-type]  # what a program may do
    out.add_entry(verdict())
    assert names(Session.load(out.id)) == ["good"]


def test_two_threads_add_all_of_their_entries() -> None:
    out = run(["done"], persist=True).synchronize()

    def add() -> None:
        for _ in range(20):
            out.add_entry(verdict())

    threads = [threading.Thread(target=add) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert list(Session.load(out.id).record) == list(out.record)
    assert len(names(out)) == 60


def test_a_selection_is_added_to_the_log() -> None:
    out = run(["done"], persist=True).synchronize()
    client = ScriptedClient(["0"])
    agent = Session.from_agent_prompt("Choose.")
    assert select_session(out, agent, "this", agent_provider=client.provider) == (0, "this")
    assert list(Session.load(out.id).record) == list(out.record)


def test_a_line_may_stand_with_the_entries() -> None:
    out = run(["done"], persist=True).synchronize()
    record = out.record.append(verdict())
    add_late(out.body, record, OutcomeChange(Completed()))
    add_late(out.body, record, OutcomeChange(Completed()))
    kinds = [json.loads(line).get("event") for line in log_of(out).read_bytes().splitlines()]
    assert kinds[-2:] == ["verdict", "outcome"]
    assert kinds.count("outcome") == 1
