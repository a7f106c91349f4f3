"""Workspaces of one's own with real files and real commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from rath.backend import BackendSandboxSpec
from rath.errors import BackendError
from rath.session import Session
from tests.support.session_files import running, worked, writing
from tests.support.trees import laid_out, lay_out

FILES = {"a.txt": b"1\n2\n3\n4\n", "b.txt": b"b\n"}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    lay_out(root, FILES)
    return root


@pytest.fixture
def session(project: Path) -> Session:
    return Session.from_user_message("go").to("local", spec=str(project))


def printed(session: Session, line: str) -> str:
    """Return what a command prints in the sandbox of a session."""
    return session.check("look", line).report


def test_a_fork_works_on_files_of_its_own(session: Session, project: Path) -> None:
    fork = session.fork(workspace="copy")
    done = worked(fork, running("echo x > c.txt; rm b.txt; mv a.txt d.txt"))
    assert printed(done, "ls") == "c.txt\nd.txt\n"
    assert [(each.kind, each.path) for each in done.files.changes()] == [
        ("deleted", "b.txt"), ("created", "c.txt"), ("renamed", "d.txt"),
    ]  # fmt: skip
    assert laid_out(project) == FILES


def test_its_parent_may_go_on_before_the_fork_is_used(session: Session, project: Path) -> None:
    fork = session.fork(workspace="copy")
    worked(session, writing("a.txt", "changed\n"), running("rm b.txt")).synchronize()
    assert printed(fork, "cat a.txt b.txt") == "1\n2\n3\n4\nb\n"
    assert laid_out(project) == {"a.txt": b"changed\n"}


def test_forks_are_merged_and_brought_home(session: Session, project: Path) -> None:
    ours = worked(session.fork(workspace="copy"), writing("a.txt", "one\n2\n3\n4\n"))
    line = "sed -i s/4/four/ a.txt && chmod +x a.txt && ln -s a.txt link && rm b.txt"
    theirs = worked(session.fork(workspace="copy"), running(line))
    merged = ours.merge(theirs, files="three-way")
    assert printed(merged, "cat link; ls") == "one\n2\n3\nfour\na.txt\nlink\n"
    assert merged.files.conflicts == ()
    assert laid_out(project) == FILES
    assert merged.files.apply_to(project) == ["a.txt", "b.txt", "link"]
    assert laid_out(project) == {"a.txt": b"one\n2\n3\nfour\n"}
    assert (project / "link").readlink() == Path("a.txt")
    assert (project / "a.txt").stat().st_mode & 0o100


def test_a_command_is_undone_with_all_that_it_changed(session: Session, project: Path) -> None:
    line = "rm a.txt; ln -s b.txt a.txt; mkdir new; echo x > new/c; chmod +x b.txt"
    done = worked(session, writing("b.txt", "B\n"), running(line, id="mess"), writing("d", "d"))
    undone = done.undo("mess")
    # A directory is no file: the new one stays, empty.
    assert printed(undone, "cat a.txt b.txt; find . -type f -o -type l | sort; test -x b.txt") == (
        "1\n2\n3\n4\nB\n./a.txt\n./b.txt\n"
    )
    assert not undone.verdicts[-1].verdict.passed
    assert laid_out(project).keys() == {"b.txt", "d", "new/c"}


def test_what_somebody_else_changed_is_not_lost_by_an_undo(session: Session, project: Path) -> None:
    done = worked(session, writing("b.txt", "B\n", id="w")).synchronize()
    (project / "b.txt").write_text("mine\n")
    with pytest.raises(BackendError, match=r"somebody else changed 'b\.txt'"):
        done.undo("w").require_sandbox()


def test_a_verdict_holds_until_files_change(session: Session, project: Path) -> None:
    verdict = session.check("tests", "grep -q 1 a.txt")
    copy = session.fork(workspace="copy")
    assert verdict.passed
    assert session.is_current(verdict)
    assert copy.is_current(verdict)
    (project / "a.txt").write_text("2\n")
    assert not session.is_current(verdict)


def test_a_check_that_takes_too_long_did_not_pass(session: Session) -> None:
    verdict = session.check("tests", "sleep 30", timeout=0.1)
    assert not verdict.passed
    assert "did not end within 0.1 s" in verdict.report


def test_a_fork_that_was_closed_begins_again_with_the_same_files(
    session: Session, project: Path
) -> None:
    fork = session.fork(workspace="copy")
    printed(fork, "rm a.txt")
    (project / "a.txt").write_text("changed behind its back\n")
    fork.close_sandbox()
    worked(session, running("rm b.txt")).synchronize()
    assert printed(fork, "cat b.txt") == "b\n"
    assert fork.sandbox_spec == BackendSandboxSpec()
