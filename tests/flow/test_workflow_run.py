"""A run with a key is done once, whoever asks for it and how often."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from uuid import UUID, uuid5

import pytest

from rath.errors import ResumeMismatch, SessionBusy, SessionChanged
from rath.flow import Agent, Workflow
from rath.session import Session
from rath.session.log.verify import verify
from rath.session.outcome import Completed, NeedsApproval
from rath.session.persistence.store import FileStore, StoredLog
from rath.testing import ScriptedClient, Turn, tool_call
from tests.support.crash_program import CrashProgram
from tests.support.logs import session_in_a_call
from tests.support.sessions import FunctionTool
from tests.support.waiting import wait_until


class Team(Workflow):
    """Two agents of one client, one after the other."""

    def __init__(self, client: ScriptedClient, *tools: FunctionTool) -> None:
        super().__init__()
        self.first = Agent("first", client.provider, list(tools), system_tools=False)
        self.second = Agent("second", client.provider, system_tools=False)

    def forward(self, session: Session) -> Session:
        return self.second(self.first(session))


def go(text: str = "go") -> Session:
    return Session.from_user_message(text)


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "store")


@pytest.mark.parametrize("key", ["nightly 7", UUID(int=7)])
def test_a_second_call_serves_the_record_of_the_first(store: FileStore, key: str | UUID) -> None:
    first = Team(ScriptedClient(["one", "two"])).run(go(), run=key, store=store).synchronize()
    again = Team(ScriptedClient([])).run(go(), run=key, store=store).synchronize()
    assert (again.id, again.text(), again.outcome) == (first.id, "two", Completed())
    assert again.record == first.record


def test_another_key_is_another_run(store: FileStore) -> None:
    first = Team(ScriptedClient(["one", "two"])).run(go(), run="a", store=store).synchronize()
    other = Team(ScriptedClient(["1", "2"])).run(go(), run="b", store=store).synchronize()
    assert (first.id != other.id, other.text()) == (True, "2")


def test_the_store_of_the_home_is_the_default() -> None:
    first = Team(ScriptedClient(["one", "two"])).run(go(), run="a").synchronize()
    assert Session.load(first.id).text() == "two"


def test_an_agent_has_runs_with_keys_too(store: FileStore) -> None:
    def agent(*answers: str) -> Agent:
        return Agent("You answer.", ScriptedClient(answers).provider, system_tools=False)

    first = agent("one").run(go(), run="a", store=str(store.directory)).synchronize()
    assert agent().run(go(), run="a", store=store).synchronize().id == first.id


def test_a_failed_run_goes_on_and_repeats_no_answered_call(store: FileStore) -> None:
    failing = Team(ScriptedClient(["one", RuntimeError("the endpoint is gone")]))
    with pytest.raises(RuntimeError):
        failing.run(go(), run="a", store=store).synchronize()
    client = ScriptedClient(["two"])
    again = Team(client).run(go(), run="a", store=store).synchronize()
    assert (again.text(), client.n_left) == ("two", 0)


def test_a_key_is_not_taken_for_other_rows(store: FileStore) -> None:
    Team(ScriptedClient(["one", "two"])).run(go(), run="a", store=store).synchronize()
    with pytest.raises(ResumeMismatch, match="the rows of the input"):
        Team(ScriptedClient([])).run(go("go away"), run="a", store=store)


def test_a_run_with_a_key_inside_another_call_is_refused(store: FileStore) -> None:
    class Outer(Workflow):
        def forward(self, session: Session) -> Session:
            return Team(ScriptedClient([])).run(session, run="a", store=store)

    with pytest.raises(RuntimeError, match="inside of another call"):
        Outer()(go())


def test_a_waiting_run_goes_on_after_its_approval(store: FileStore) -> None:
    def team(*script: Turn) -> Team:
        tool = FunctionTool("f", lambda *_: "done")
        tool.approval = "always"
        return Team(ScriptedClient(script), tool)

    waiting = team(tool_call("f", {}, id="1")).run(go(), run="a", store=store).synchronize()
    assert isinstance(waiting.outcome, NeedsApproval)
    Session.load(waiting.outcome.session, store=store).approve("1")
    again = team("one", "two").run(go(), run="a", store=store)
    assert again.synchronize().text() == "two"


CHILD = """
import sys
from pathlib import Path
from rath.session import Session
from tests.support.crash_program import PAUSE, CrashProgram
log, store = map(Path, sys.argv[1:])
program = CrashProgram(log, pause=PAUSE)
program.run(Session.from_user_message("go"), run="k", store=str(store)).synchronize()
"""


def calls(log: Path) -> list[str]:
    return log.read_text().split() if log.exists() else []


@pytest.mark.parametrize("n_calls", [1, 4, 7])
def test_a_second_process_goes_on_after_a_kill(
    store: FileStore, tmp_path: Path, n_calls: int
) -> None:
    log = tmp_path / "calls"
    command = [sys.executable, "-c", CHILD, str(log), str(store.directory)]
    child = subprocess.Popen(command, cwd=Path(__file__).parents[2])
    try:
        wait_until(lambda: len(calls(log)) >= n_calls, "the child makes no calls")
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
    out = CrashProgram(log).run(go(), run="k", store=store).synchronize()
    assert (out.outcome, out.text()) == (Completed(), "finisher is done")
    again = CrashProgram(log).run(go(), run="k", store=store).synchronize()
    assert again.id == out.id
    # A call that was cut off may be made again, once, and all are made.
    assert set(calls(log)) == {"p1", "p2", "p3", "p4", "l1", "l2", "r1", "r2", "h1", "f1"}
    assert max(Counter(calls(log)).values()) <= 2


def test_a_second_call_joins_the_run_in_this_process(store: FileStore, tmp_path: Path) -> None:
    release = tmp_path / "release"

    def hold(*_: object) -> str:
        wait_until(release.exists, "nobody lets the tool end")
        return "done"

    tool = FunctionTool("f", hold)
    script: list[Turn] = [tool_call("f", {}, id="1"), "one", "two"]
    running = Team(ScriptedClient(script), tool).run(go(), run="a", store=store)
    joined = [
        Team(ScriptedClient([]), tool).run(go(), run="a", store=store),
        Team(ScriptedClient([]), tool).run(go(), run="a", store=store),
    ]
    release.touch()
    assert [each.text() for each in (running, *joined)] == ["two"] * 3
    assert {each.id for each in (running, *joined)} == {running.id}


def test_many_that_go_on_with_a_run_at_once_are_one(store: FileStore) -> None:
    failing = Team(ScriptedClient(["one", RuntimeError("the endpoint is gone")]))
    with pytest.raises(RuntimeError):
        failing.run(go(), run="a", store=store).synchronize()
    client = ScriptedClient(["two"])
    again = [Team(client).run(go(), run="a", store=store) for _ in range(5)]
    assert {each.text() for each in again} == {"two"}
    assert client.n_left == 0


HOLDING = """
import sys
from pathlib import Path
from rath.session import Session
from rath.testing import ScriptedClient, tool_call
from tests.flow.test_workflow_run import Team
from tests.support.sessions import FunctionTool
from tests.support.waiting import wait_until
release, store = map(Path, sys.argv[1:])
tool = FunctionTool("f", lambda *_: wait_until(release.exists, "nobody lets the tool end"))
client = ScriptedClient([tool_call("f", {}, id="1"), "one", "two"])
Team(client, tool).run(Session.from_user_message("go"), run="a", store=str(store)).synchronize()
"""


def test_a_run_in_another_process_raises_session_busy_with_its_holder(
    store: FileStore, tmp_path: Path
) -> None:
    release = tmp_path / "release"
    command = [sys.executable, "-c", HOLDING, str(release), str(store.directory)]
    child = subprocess.Popen(command, cwd=Path(__file__).parents[2])

    try:
        wait_until(
            lambda: session_in_a_call(store.directory) is not None,
            "the other process does not begin",
        )
        with pytest.raises(SessionBusy) as caught:
            Team(ScriptedClient([])).run(go(), run="a", store=store).synchronize()
        assert caught.value.holder in ("", f"process {child.pid} of this machine")
    finally:
        release.touch()
        child.wait()
    assert Team(ScriptedClient([])).run(go(), run="a", store=store).text() == "two"


class Overtaken(FileStore):
    """A store whose sessions another process has written to their ends when one looks for it."""

    def __init__(self, folder: Path, ended: FileStore) -> None:
        super().__init__(folder)
        self._ended = ended

    def require_free(self, session: UUID, **options: str) -> None:
        for path in self.directory.glob("*partial__"):
            path.unlink()
        shutil.copytree(self._ended.directory, self.directory, dirs_exist_ok=True)
        super().require_free(session, **options)


def test_what_ends_between_the_look_at_its_log_and_at_its_writer_is_served(
    store: FileStore, tmp_path: Path
) -> None:
    effects: list[str] = []

    def note(*_: object) -> str:
        effects.append("noted")
        return "noted"

    def team(*turns: Turn) -> Team:
        return Team(ScriptedClient(turns), FunctionTool("note", note))

    key = UUID(int=7)
    team(tool_call("note"), "one", "two").run(go(), run=key, store=store).synchronize()
    logs = {each: log for each in store.stamps() if (log := store.read(each)) is not None}
    (first,) = (each for each, log in logs.items() if b'"intent"' in log.data)
    behind = Overtaken(tmp_path / "behind", store)
    # What is there while the tool runs.
    given, data = uuid5(key, "input"), logs[first].data
    for session, so_far in (
        (given, logs[given].data),
        (first, data[: data.index(b"\n", data.index(b'"intent"')) + 1]),
    ):
        written = behind.create(session)
        written.append(so_far)
        if session == given:
            written.finish()
        else:
            written.abandon()
    out = team().run(go(), run=key, store=behind).synchronize()
    assert (out.outcome, out.text(), effects) == (Completed(), "two", ["noted"])


class LateFirst(FileStore):
    """A store that shows one session only from the second look on."""

    hidden: UUID | None = None

    def read(self, session: UUID) -> StoredLog | None:
        if session == self.hidden:
            self.hidden = None
            return None
        return super().read(session)


def test_a_step_that_another_process_makes_meanwhile_is_no_damage(store: FileStore) -> None:
    def team(*turns: Turn) -> Team:
        return Team(ScriptedClient(turns))

    done = team("one", "two").run(go(), run="a", store=store).synchronize()
    late = LateFirst(store.directory)
    late.hidden = done.parent_session_ids[0]
    with pytest.raises(SessionChanged):
        team().run(go(), run="a", store=late).synchronize()
    assert team().run(go(), run="a", store=late).text() == "two"


@pytest.mark.parametrize("share", [0.3, 0.7, 0.9])
def test_an_input_whose_writer_was_cut_off_is_written_anew(
    store: FileStore, tmp_path: Path, share: float
) -> None:
    key = UUID(int=7)
    Team(ScriptedClient(["one", "two"])).run(go(), run=key, store=store).synchronize()
    stored = store.read(uuid5(key, "input"))
    assert stored is not None
    other = FileStore(tmp_path / "other")
    log = other.create(stored.session)
    log.append(stored.data[: int(share * len(stored.data))])
    log.abandon()
    out = Team(ScriptedClient(["one", "two"])).run(go(), run=key, store=other).synchronize()
    assert (out.outcome, out.text()) == (Completed(), "two")
    assert all(verify(other, each).is_sound for each in other.stamps())
