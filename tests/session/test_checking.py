"""Checks: a command judges, and its verdict holds until files change."""

from __future__ import annotations

from typing import Any

import pytest

from rath._async.runtime import runtime
from rath.backend import BackendToolFilesRead, CommandResult, FileContent, ToolExecutionFailure
from rath.backend.effects import note_gap
from rath.errors import BackendError, SelfWaitError
from rath.session import Session
from rath.session.checking import MAX_REPORT_CHARS
from rath.session.record import Operation, ToolRun, Verdict
from rath.testing import FakeBackend, FakeSandbox, tool_call
from tests.support.session_files import (
    FilesBackend,
    files_of,
    placed,
    running,
    worked,
    write,
    writing,
)
from tests.support.sessions import FunctionTool


def checked(answer: Any) -> tuple[Session, Verdict]:
    """Return a session and the verdict of a check that answers so."""
    backend = FakeBackend({"make test": answer})
    session = Session.from_user_message("go").bind_sandbox(backend.lazy())
    return session, session.check("tests", "make test")


def test_a_command_that_succeeds_is_a_verdict_that_passed() -> None:
    session, verdict = checked("12 passed\n")
    assert (verdict.name, verdict.judge, verdict.passed) == ("tests", "make test", True)
    assert verdict.report == "12 passed\n"
    assert verdict.workspace_digest is not None
    operation, call, last = session.record
    assert isinstance(operation, Operation)
    assert (operation.kind, operation.session) == ("check", session.id)
    assert isinstance(call, ToolRun)
    assert (call.origin, call.status, call.exit_code) == ("Session.check", "done", 0)
    assert call.sandbox is not None
    assert call.sandbox.sandbox_id == "fake-1"
    assert last == verdict
    assert {entry.operation for entry in session.record} == {operation.operation}


@pytest.mark.parametrize(
    ("answer", "report", "status"),
    [
        (CommandResult(1, b"out\n", b"err\n", 1.0), "out\nerr\n", "done"),
        (CommandResult(-9, b"", b"", 1.0), "", "done"),
        (FileContent("odd"), "FileContent(data='odd', next_offset=None, total=None)", "done"),
        (ToolExecutionFailure("timeout", "too slow", "half"), "too slow\nhalf", "failed"),
    ],
)
def test_a_command_that_fails_is_a_verdict_too(answer: Any, report: str, status: str) -> None:
    session, verdict = checked(answer)
    assert (verdict.passed, verdict.report) == (False, report)
    call = session.record[1]
    assert isinstance(call, ToolRun)
    assert call.status == status
    assert call.signal == (9 if "-9" in str(answer) else None)


def test_a_long_report_is_cut_and_recorded_in_full() -> None:
    session, verdict = checked("x" * 100_000)
    call = session.record[1]
    assert isinstance(call, ToolRun)
    assert len(verdict.report) <= MAX_REPORT_CHARS
    assert call.full is not None
    assert call.full.size > 100_000


def test_a_backend_without_commands_is_an_error() -> None:
    class Quiet(FakeBackend):
        @classmethod
        def supported_calls(cls) -> Any:
            return frozenset({BackendToolFilesRead})

    session = Session.from_user_message("go").bind_sandbox(Quiet().lazy())
    with pytest.raises(BackendError, match="check 'tests' needs a backend that runs commands"):
        session.check("tests", "true")


def test_a_check_is_refused_on_the_runtime_thread() -> None:
    session = placed()

    async def check() -> None:
        session.check("tests", "true")

    with pytest.raises(SelfWaitError, match="check 'tests' was called on rath's own event loop"):
        runtime().run(check, label="a test")


def stale(session: Session) -> list[str | None]:
    """Return why each verdict is stale."""
    assert all((one.why is not None) == one.is_stale for one in session.verdicts)
    return [one.why for one in session.verdicts]


def test_a_verdict_holds_for_what_changes_nothing() -> None:
    session = placed({"a": "1"})
    verdict = session.check("tests", "cat a")
    later = worked(session, running("cat a"))
    session.check("again", "cat a")
    assert (stale(later), stale(session)) == ([None], [None, None])
    assert later.is_current(verdict)
    assert session.is_current(verdict)


def test_a_verdict_is_stale_once_a_call_changed_a_file() -> None:
    session = placed({"a": "1"})
    verdict = session.check("tests", "cat a")
    later = worked(session, writing("a", "2", id="w"))
    assert stale(later) == ["write_workspace_file (w) changed 'a'"]
    assert not later.is_current(verdict)


def test_what_a_check_changes_itself_stales_only_the_verdicts_before() -> None:
    session = placed({"a": "1"})
    first, second = session.check("one", "cat a"), session.check("two", "rm a")
    (why, fine) = stale(session)
    assert why is not None
    assert "deleted 'a'" in why
    assert fine is None
    assert [session.is_current(each) for each in (first, second)] == [False, True]


def test_a_verdict_is_stale_where_changes_may_be_missing() -> None:
    session = placed()
    session.check("tests", "true")
    tool = FunctionTool("f", lambda *_: note_gap("too many files"))
    later = worked(session, tool_call("f", id="c"), tools=[tool])
    assert stale(later) == ["f (c) may have changed files: too many files"]


def test_what_somebody_else_changes_is_seen_by_a_look_at_the_files() -> None:
    session = placed({"a": "1"})
    verdict = session.check("tests", "cat a")
    write(session, {"a": "2"})
    assert stale(session) == [None]
    assert not session.is_current(verdict)
    write(session, {"a": "1"})
    assert session.is_current(verdict)


def test_a_backend_without_digests_leaves_the_record_as_witness() -> None:
    class Blind(FilesBackend):
        async def aworkspace_digest(self, native: FakeSandbox) -> None:
            return None

    session = Session.from_user_message("go").bind_sandbox(Blind().lazy())
    verdict = session.check("tests", "true")
    write(session, {"a": "1"})
    assert verdict.workspace_digest is None
    assert session.is_current(verdict)


def test_forks_inherit_a_verdict_until_their_own_files_change() -> None:
    session = placed({"a": "1"})
    verdict = session.check("tests", "cat a")
    same, other = session.fork(workspace="copy"), session.fork(workspace="copy")
    changed = worked(other, writing("a", "2"))
    assert [stale(each) == [None] for each in (session, same, changed)] == [True, True, False]
    assert same.is_current(verdict)
    assert not changed.is_current(verdict)


def test_an_undo_makes_a_verdict_hold_again() -> None:
    session = placed({"a": "1"})
    early = session.check("early", "cat a")
    later = worked(session, writing("a", "2", id="w"))
    late = later.check("late", "cat a")
    undone = later.undo("w")
    assert stale(undone) == [
        None,
        "it judged other files: in another sandbox, or before an undo or a merge",
    ]
    assert [undone.is_current(each) for each in (early, late)] == [True, False]


def test_a_verdict_of_the_other_side_of_a_merge_does_not_hold() -> None:
    base = placed({"a": "1"})
    ours, theirs = base.fork(workspace="copy"), base.fork(workspace="copy")
    ours.check("ours", "cat a")
    theirs.check("theirs", "cat a")
    assert [why is None for why in stale(ours.merge(theirs))] == [True, False]
    assert [why is None for why in stale(ours.merge(theirs, files="three-way"))] == [False, False]


def test_a_verdict_of_another_session_is_no_question_for_this_one() -> None:
    verdict = placed().check("tests", "true")
    session = placed()
    with pytest.raises(ValueError, match="verdict 'tests' is not in the record of session"):
        session.is_current(verdict)


def test_a_check_inside_a_tool_is_known_to_the_run() -> None:
    def check(session: Session, _: object) -> str:
        verdict = session.check("tests", "rm a")
        return f"{verdict.passed} {len(session.verdicts)}"

    done = worked(placed({"a": "1"}), tool_call("check"), tools=[FunctionTool("check", check)])
    assert '"True 1"' in str(done.chunk_table[2].payload)
    assert stale(done) == [None]
    assert [each.effect.kind for each in done.files.effects()] == ["deleted"]
    assert files_of(done) == {}


@pytest.mark.parametrize(
    ("name", "cmd", "message"),
    [
        (5, "true", "the name of a check is a str, not int: 5"),
        ("x", 5, "cmd of check 'x' is a line for the shell or a list of str, not 5"),
        ("x", ["a", 5], "is a line for the shell or a list of str"),
        ("x", [], "is a line for the shell or a list of str"),
    ],
)
def test_what_is_no_text_is_refused_in_words(name: Any, cmd: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        placed().check(name, cmd)


def test_the_record_tells_how_a_command_was_run_without_secrets() -> None:
    session = placed()
    session.check("plain", "true")
    session.check("full", "true", timeout=3, env={"TOKEN": "hidden"}, cwd=".")
    plain, full = (entry.arguments for entry in session.record if isinstance(entry, ToolRun))
    assert plain == {"cmd": "true"}
    assert full == {"cmd": "true", "timeout": 3, "env": ["TOKEN"], "cwd": "."}
    assert "hidden" not in repr(session.record)
