"""Sessions whose workspaces are on a server: forks of their own, undo and merge."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rath.backend import BackendError, BackendSandboxSpec
from rath.backend.opensandbox import OpenSandboxBackend
from rath.session import Session
from tests.support.opensandbox_server import OpenSandboxServer
from tests.support.session_files import running, worked, writing

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.fixture
def session(backend: OpenSandboxBackend) -> Iterator[Session]:
    start = Session.from_user_message("go").bind_sandbox(backend.lazy())
    done = worked(start, running("printf '1\\n2\\n3\\n4\\n' > a.txt; echo b > b.txt"))
    start.close_sandbox()
    yield done.synchronize()
    done.close_sandbox()


def printed(session: Session, line: str) -> str:
    """Return what a command prints in the sandbox of a session."""
    return session.check("look", line).report


def test_a_fork_works_on_files_of_its_own(session: Session) -> None:
    fork = session.fork(workspace="copy")
    done = worked(fork, running("echo x > c.txt; rm b.txt"))
    assert printed(done, "ls") == "a.txt\nc.txt\n"
    assert printed(session, "ls") == "a.txt\nb.txt\n"
    place = done.require_sandbox().describe()
    assert (place.backend, place.layer) == ("opensandbox", "snapshot")


def test_its_parent_may_go_on_before_the_fork_is_used(session: Session) -> None:
    fork = session.fork(workspace="copy")
    worked(session, writing("a.txt", "changed\n"), running("rm b.txt")).synchronize()
    assert printed(fork, "cat a.txt b.txt") == "1\n2\n3\n4\nb\n"


def test_a_fork_of_a_run_that_has_not_ended_has_what_it_leaves(
    backend: OpenSandboxBackend,
) -> None:
    start = Session.from_user_message("go").bind_sandbox(backend.lazy())
    fork = worked(start, writing("a.txt", "left")).fork(workspace="copy")
    assert printed(fork, "cat a.txt") == "left"


def test_a_fork_of_a_session_without_files_begins_empty(
    backend: OpenSandboxBackend, opensandbox_server: OpenSandboxServer
) -> None:
    session = Session.from_user_message("go").bind_sandbox(backend.lazy())
    fork = session.fork(workspace="copy")
    assert opensandbox_server.requests == []
    printed(session, "echo x > a.txt")
    assert printed(fork, "ls") == ""


def test_a_call_is_undone(session: Session) -> None:
    line = "rm a.txt; ln -s b.txt a.txt; echo x > c; chmod +x b.txt"
    done = worked(session, writing("b.txt", "B\n"), running(line, id="mess"), writing("d", "d"))
    undone = done.undo("mess")
    assert printed(undone, "cat a.txt b.txt; ls; stat -c %a b.txt") == (
        "1\n2\n3\n4\nB\na.txt\nb.txt\n644\n"
    )
    assert printed(done, "ls") == "a.txt\nb.txt\nc\nd\n"


def test_what_somebody_else_changed_is_not_lost_by_an_undo(session: Session) -> None:
    done = worked(session, writing("b.txt", "B\n", id="w")).synchronize()
    printed(session, "echo mine > b.txt")
    with pytest.raises(BackendError, match=r"somebody else changed 'b\.txt'"):
        done.undo("w").require_sandbox()


def test_forks_are_merged_line_by_line(session: Session) -> None:
    ours = worked(session.fork(workspace="copy"), writing("a.txt", "one\n2\n3\n4\n"))
    line = "sed -i s/4/four/ a.txt && chmod +x a.txt && ln -s a.txt link && rm b.txt"
    theirs = worked(session.fork(workspace="copy"), running(line))
    merged = ours.merge(theirs, files="three-way")
    assert printed(merged, "cat link; ls; stat -c %a a.txt") == (
        "one\n2\n3\nfour\na.txt\nlink\n755\n"
    )
    assert merged.files.conflicts == ()
    assert printed(ours, "cat a.txt b.txt") == "one\n2\n3\n4\nb\n"


def test_conflicts_of_a_merge_are_values(session: Session) -> None:
    ours = worked(session.fork(workspace="copy"), writing("a.txt", "ours\n"))
    theirs = worked(session.fork(workspace="copy"), writing("a.txt", "theirs\n"))
    merged = ours.merge(theirs, files="three-way")
    assert printed(merged, "cat a.txt") == "ours\n"
    (conflict,) = merged.files.conflicts
    assert (conflict.path, conflict.kind) == ("a.txt", "content")
    assert conflict.base is not None
    assert conflict.base.content.data == b"1\n2\n3\n4\n"


@pytest.mark.parametrize(("files", "expected"), [("ours", "ours\n"), ("theirs", "theirs\n")])
def test_one_side_of_a_merge_is_taken(session: Session, files: str, expected: str) -> None:
    sides = [worked(session.fork(workspace="copy"), writing("a.txt", f"{each}\n"))
             for each in ("ours", "theirs")]  # fmt: skip
    choices = {
        "ours": lambda: sides[0].merge(sides[1], files="ours"),
        "theirs": lambda: sides[0].merge(sides[1], files="theirs"),
    }
    assert printed(choices[files](), "cat a.txt") == expected


def test_a_mounted_workspace_is_refused_in_the_callers_thread(
    backend: OpenSandboxBackend, tmp_path: Path
) -> None:
    spec = BackendSandboxSpec(working_dir=str(tmp_path))
    session = Session.from_user_message("go").bind_sandbox(backend.lazy(spec))
    with pytest.raises(BackendError, match="use a sandbox without working_dir"):
        session.fork(workspace="copy")


def test_nothing_is_left_on_the_server(
    session: Session, opensandbox_server: OpenSandboxServer
) -> None:
    fork = session.fork(workspace="copy")
    printed(session, "echo x > a.txt")
    printed(fork, "echo y > a.txt")
    for each in (session, fork):
        each.close_sandbox()
    opensandbox_server.wait_for("DELETE", "/v1/sandboxes/*", n_requests=2)
    assert len(opensandbox_server.matching("POST", "/v1/sandboxes/*/snapshots")) == 1
