"""Sessions that are stored go on in the same log, in this process or in another one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from rath import autosave
from rath._async.deferred import Deferred
from rath.errors import ResumeMismatch
from rath.flow import Agent, Workflow
from rath.session import Session, resume_differences
from rath.session.outcome import Completed, NeedsDecision
from rath.session.persistence.store import default_store
from rath.session.record import ModelCall
from rath.session.run.differences import FileDiffers, ProviderDiffers, ToolDiffers, WorkspaceUnknown
from rath.testing import ScriptedClient, Turn, tool_call
from tests.session.programs.test_going_on import AGENT, SCRIPT, Counting, f_calls, rows_of
from tests.support.api import partial_path_of
from tests.support.cut_off import cut_off
from tests.support.sessions import FunctionTool, run

GONE = RuntimeError("the endpoint is gone")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OPENRATH_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


def test_a_call_is_not_repeated_by_what_its_tool_declared_once() -> None:
    complete = run([f_calls(1), "done"], Counting(effects="idempotent"), agent=AGENT).synchronize()
    cut_off(complete, 0, begun=[0]).save()
    tool = Counting()
    with pytest.raises(ResumeMismatch, match="may have taken effect") as caught:
        run(["done"], tool, user=Session.load(complete.id), agent=AGENT)
    assert (caught.value.expected, caught.value.found) == (
        "tool 'f' with effects 'idempotent'",
        "'non_idempotent'",
    )
    Session.load(complete.id).decide("call_1", "retry")
    out = run(["done"], tool, user=Session.load(complete.id), agent=AGENT)
    assert (out.outcome, tool.calls) == (Completed(), [1])


def _waits(session: object) -> bool:
    return isinstance(Session.load(str(session)).outcome, NeedsDecision)


def asking(helper: ScriptedClient) -> FunctionTool:
    """A tool that asks another agent, and that may be called again."""
    agent = Agent("helper", helper.provider, system_tools=False)

    def ask(session: Session, _: object) -> str | None:
        return agent(session).text()

    tool = FunctionTool("ask", ask)
    tool.effects = "idempotent"
    return tool


@pytest.mark.parametrize("is_alone", [False, True], ids=["in the store", "in a file of its own"])
def test_an_agent_inside_a_call_that_is_made_again_is_served(is_alone: bool) -> None:
    path = Path("main.jsonl").absolute() if is_alone else None
    begun = tool_call("ask", id="a")
    with autosave():
        tool = asking(ScriptedClient(["helped"]))
        complete = run([begun, "done"], tool, agent=AGENT, persist_path=path).synchronize()
        # The log of the agent inside is there, and of the call itself only that it was begun.
        if path is None:
            default_store().delete(complete.id)
        else:
            path.unlink()
        cut_off(complete, 0, begun=[0]).save(path=path)
        partial = None if path is None else partial_path_of(path)
        waiting = Session.load(complete.id if partial is None else partial)
        out = run(["done"], asking(ScriptedClient([])), user=waiting, agent=AGENT)
        assert rows_of(out) == rows_of(complete)
    assert out.cumulative_usage == complete.cumulative_usage


@pytest.mark.parametrize("is_alone", [False, True], ids=["in the store", "in a file of its own"])
def test_a_run_goes_on_in_the_log_that_it_was_loaded_from(is_alone: bool) -> None:
    path = Path("main.jsonl").absolute()
    complete = run(SCRIPT, Counting(), agent=AGENT).synchronize()
    cut = cut_off(complete, 0, begun=[1], known=[0])
    cut.save()
    cut.save(path=path)
    loaded = Session.load(partial_path_of(path) if is_alone else complete.id)
    out = run(SCRIPT[1:], Counting(), user=loaded.decide("call_2", "skip"), agent=AGENT)
    assert out.outcome == Completed()
    in_store, of_its_own = default_store().read(complete.id), path.exists()
    assert in_store is not None
    assert (in_store.is_finished, of_its_own) == (not is_alone, is_alone)


class Apart(Workflow):
    """Begins with a copy that knows nothing of its origin."""

    def __init__(self, client: ScriptedClient) -> None:
        super().__init__()
        self.first = Agent("first", client.provider, system_tools=False)
        self.second = Agent("second", client.provider, system_tools=False)

    def forward(self, session: Session) -> Session:
        return self.second(self.first(session.detach()).detach())


def test_what_is_made_when_a_program_goes_on_is_stored_with_the_rest() -> None:
    with autosave():
        out = Apart(ScriptedClient([GONE]))(Session.from_user_message("go"))
        with pytest.raises(RuntimeError):
            out.synchronize()
    (first,) = [each for each in default_store().stamps() if _waits(each)]
    again = Apart(ScriptedClient(["one", "two"])).resume(Session.load(first)).synchronize()
    assert Session.load(again.id).text() == "two"


# ---- what is not as it was


def writing(path: str) -> list[Turn]:
    return [tool_call("write_workspace_file", {"path": path, "content": "new"}), "done"]


def commands(*lines: str) -> list[Turn]:
    return [*(tool_call("run_shell_command", {"cmd": line}) for line in lines), "done"]


def worked(tmp_path: Path, script: list[Turn] | None = None) -> Session:
    (tmp_path / "work").mkdir(exist_ok=True)
    user = Session.from_user_message("go").to("local", spec=str(tmp_path / "work"))
    return run(script or writing("a.txt"), user=user, agent=AGENT, system_tools=True).synchronize()


def test_files_as_the_session_left_them_are_no_difference(tmp_path: Path) -> None:
    assert resume_differences(worked(tmp_path)) == ()


@pytest.mark.parametrize(
    ("text", "reply"), [("other", "file 'a.txt' is"), (None, "is not there")], ids=["other", "gone"]
)
def test_a_file_that_somebody_changed_is_a_difference(
    text: str | None, reply: str, tmp_path: Path
) -> None:
    session, path = worked(tmp_path), tmp_path / "work" / "a.txt"
    path.unlink() if text is None else path.write_text(text)
    (found,) = resume_differences(session)
    assert isinstance(found, FileDiffers)
    assert (found.path, found.found is None) == ("a.txt", text is None)
    assert reply in str(found)


def test_a_file_that_was_made_and_removed_is_no_difference(tmp_path: Path) -> None:
    assert resume_differences(worked(tmp_path, commands("echo 1 > a.txt", "rm a.txt"))) == ()


def test_a_file_that_stands_again_where_it_was_moved_from_is_a_difference(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "old.txt").write_text("a long enough text")
    session = worked(tmp_path, commands("mv old.txt new.txt"))
    (tmp_path / "work" / "old.txt").write_text("back again")
    assert {each.path for each in resume_differences(session) if isinstance(each, FileDiffers)} == {
        "old.txt"
    }


def test_files_that_cannot_be_looked_at_are_a_difference(tmp_path: Path) -> None:
    session = worked(tmp_path)
    nowhere = Session.from_body(session.core.body, session.provenance, id=session.id)
    (found,) = resume_differences(nowhere)
    assert isinstance(found, WorkspaceUnknown)
    assert "cannot be looked at" in str(found)


def test_tools_and_provider_are_compared_where_they_are_given() -> None:
    client, other = ScriptedClient(["done"]), ScriptedClient([])
    session = run([], Counting(), agent=AGENT, agent_provider=client.provider)
    changed = FunctionTool("f", lambda *_: None, schema={"type": "object", "required": []})
    found = resume_differences(
        session, tools=[changed], system_tools=False, provider=other.provider
    )
    tool, provider = found
    assert isinstance(tool, ToolDiffers)
    assert isinstance(provider, ProviderDiffers)
    assert provider.what == "provider_kind"
    assert "tool 'f' is another one than before: " in str(tool)
    more = [changed, FunctionTool("g", lambda *_: None, schema={"type": "object"})]
    (*_, new) = resume_differences(session, tools=more, system_tools=False)
    assert str(new) == "tool 'g' is there now, and was not before"
    assert (
        resume_differences(
            session, tools=[Counting()], system_tools=False, provider=client.provider
        )
        == ()
    )


def test_an_endpoint_that_is_not_known_yet_is_no_difference() -> None:
    client = ScriptedClient(["done"])
    session = run([], Counting(), agent=AGENT, agent_provider=client.provider)
    body = session.core.body.result()
    ((at, call),) = ((at, one) for at, one in enumerate(body.record) if isinstance(one, ModelCall))
    here = structs.replace(
        call, evidence=structs.replace(call.evidence, endpoint="http://127.0.0.1:1/v1")
    )
    record = body.record.prefix(at).extend([here])
    local = Session.from_body(
        Deferred.of(replace(body, record=record)), session.provenance, id=session.id
    )
    assert resume_differences(local, provider=client.provider) == ()


def test_differences_are_logged_once_when_a_run_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    complete = run(SCRIPT, Counting(), agent=AGENT).synchronize()
    run(SCRIPT[1:], Counting(), user=cut_off(complete, 0), agent=AGENT).synchronize()
    (record,) = [each for each in caplog.records if "goes on" in each.message]
    assert "provider_kind is" in record.message


@pytest.mark.parametrize("name", ["f", "g"], ids=["another schema", "gone"])
def test_an_open_call_of_a_tool_that_is_another_one_is_refused(name: str) -> None:
    complete = run(SCRIPT, Counting(), agent=AGENT).synchronize()
    other = FunctionTool(name, lambda *_: None, schema={"type": "object", "required": []})
    with pytest.raises(ResumeMismatch, match="its tool is another one"):
        run(SCRIPT[1:], other, user=cut_off(complete, 0), agent=AGENT)
