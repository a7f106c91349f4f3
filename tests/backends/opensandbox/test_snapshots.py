"""Frozen files, copies of sandboxes, and forks of sessions that use them."""

from __future__ import annotations

import gc
import stat
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from rath._async.runtime import runtime
from rath.backend import (
    BackendError,
    BackendSandbox,
    BackendSandboxSpec,
    BackendToolCommandRun,
    BackendToolFilesExists,
    BackendToolFilesRead,
    BackendToolFilesWrite,
    FileContent,
    NewFile,
)
from rath.backend.changes import manifest_digest
from rath.backend.opensandbox import OpenSandboxBackend
from rath.session import Session
from tests.support.opensandbox_calls import (
    FILE,
    Remote,
    Service,
    failed,
    lazy_copy,
    opened_copy,
    printed,
    settle,
)
from tests.support.opensandbox_server import Answer, Drop, Gate, OpenSandboxServer
from tests.support.session_files import running, worked, writing
from tests.support.workspaces import content_of, put, text_of, wait_for

pytestmark = pytest.mark.usefixtures("nothing_left")


SNAP = ("POST", "/v1/sandboxes/*/snapshots")


def test_a_copy_begins_without_many_files_of_long_names(remote: Remote) -> None:
    above = "/".join(["d" * 250] * 3)
    names = [f"{above}/{number}{'n' * 240}" for number in range(150)]
    line = f"mkdir -p {above}; cd {above}; for i in $(seq 0 149); do echo > $i{'n' * 240}; done"
    printed(remote.sandbox, line)
    with opened_copy(remote.sandbox, dict.fromkeys(names)) as copy:
        assert printed(copy, "find . -type f") == ""


def test_frozen_files_are_reported_as_they_were_in_the_sandbox(sandbox: BackendSandbox) -> None:
    printed(sandbox, "mkdir d; printf x > d/a; chmod 755 d/a; ln -s d/a link; : > empty")
    frozen = sandbox.freeze()
    here = wait_for(frozen.amanifest)
    assert manifest_digest(here) == sandbox.workspace_digest()
    assert {path: oct(state.mode) for path, state in here.items()} == {
        "d/a": "0o100755", "empty": "0o100644", "link": "0o120777",
    }  # fmt: skip
    printed(sandbox, "rm -r d link empty")
    assert [content_of(frozen, path) for path in ("d/a", "link", "empty")] == [b"x", b"d/a", b""]


def test_they_are_looked_at_in_a_snapshot_once_the_source_has_changed(
    sandbox: BackendSandbox,
) -> None:
    printed(sandbox, "printf x > a; printf y > b; chmod 700 b")
    digest = sandbox.workspace_digest()
    frozen = sandbox.freeze()
    printed(sandbox, "rm a")
    assert manifest_digest(wait_for(frozen.amanifest)) == digest
    assert manifest_digest(wait_for(frozen.amanifest)) == digest


def test_a_reader_that_has_expired_is_opened_again(remote: Remote) -> None:
    put(remote.sandbox, "a.txt", "before")
    frozen = remote.sandbox.freeze()
    put(remote.sandbox, "a.txt", "after")
    assert content_of(frozen, "a.txt") == b"before"
    remote.server.advance(601)
    assert content_of(frozen, "a.txt") == b"before"


def test_a_source_that_expired_is_read_in_its_snapshot(service: Service) -> None:
    source = service.backend.open()
    put(source, "a.txt", "kept")
    frozen = source.freeze()
    copy = lazy_copy(service.backend, frozen).ensure_open()
    service.server.advance(601)
    assert content_of(frozen, "a.txt") == b"kept"
    for each in (source, copy):
        service.backend.close(each)


def test_two_looks_at_once_open_one_reader(remote: Remote) -> None:
    put(remote.sandbox, "a.txt", "x")
    frozen = remote.sandbox.freeze()
    put(remote.sandbox, "a.txt", "y")
    reading = [runtime().submit(partial(frozen.aread, "a.txt"), label="r") for _ in range(3)]
    assert [each.future.result(50) for each in reading] == [b"x"] * 3
    assert len(remote.server.matching("POST", "/v1/sandboxes")) == 2


def test_writers_wait_for_one_snapshot_and_for_those_who_read(remote: Remote) -> None:
    put(remote.sandbox, "a.txt", "before")
    frozen = remote.sandbox.freeze()
    gate = Gate()
    remote.server.inject(*SNAP, gate)
    calls = [BackendToolFilesWrite(f"{n}.txt", "x") for n in range(3)]
    writing = [
        runtime().submit(partial(remote.sandbox.adispatch, each), label="w") for each in calls
    ]
    assert gate.reached.wait(50)
    assert not remote.sandbox.dispatch(BackendToolFilesExists("0.txt"))
    gate.release()
    for each in writing:
        each.future.result(50)
    assert len(remote.server.matching(*SNAP)) == 1
    assert sorted(wait_for(frozen.amanifest)) == ["a.txt"]


def test_frozen_files_that_cannot_be_looked_at_say_so(remote: Remote) -> None:
    put(remote.sandbox, "a.txt", "x")
    frozen = remote.sandbox.freeze()
    refused = Answer(500, {"code": "RUNTIME_ERROR", "message": "no more processes"})
    remote.server.inject("POST", "/command", refused)
    with pytest.raises(BackendError, match=r"cannot be told apart.*no more processes"):
        wait_for(frozen.amanifest)
    remote.server.inject("GET", "/files/info", refused)
    with pytest.raises(BackendError, match=r"could not be used: .*no more processes"):
        content_of(frozen, "a.txt")
    put(remote.sandbox, "a.txt", "y")
    remote.server.inject("GET", "/files/info", refused)
    with pytest.raises(BackendError, match=r"cannot be read from the server: .*no more processes"):
        content_of(frozen, "a.txt")


def test_a_copy_says_what_it_began_with(sandbox: BackendSandbox) -> None:
    with opened_copy(sandbox) as copy:
        assert copy.describe().layer == "snapshot"
        assert copy.describe().sandbox_id != sandbox.handle
    assert sandbox.describe().layer is None


def test_a_copy_begins_with_the_changes_that_are_asked_for(sandbox: BackendSandbox) -> None:
    printed(sandbox, "mkdir -p gone-d there; echo x > gone-d/f; echo x > -gone; ln -s /etc out")
    changes = {
        "gone-d/f": None, "gone-d": NewFile(b"a file now", FILE), "-gone": None, "missing": None,
        "deep/it's new": NewFile(b"new\xff", stat.S_IFREG | 0o755),
        "deep/link": NewFile(b"it's new", stat.S_IFLNK | 0o777),
        "out": NewFile(b"no link any more", FILE), "empty": NewFile(b"", FILE),
    }  # fmt: skip
    with opened_copy(sandbox, changes) as copy:
        assert printed(copy, "ls -A; readlink deep/link; cat gone-d out") == (
            "deep\nempty\ngone-d\nout\nthere\nit's new\na file nowno link any more"
        )
        assert printed(copy, 'stat -c %a deep/link "deep/it\'s new" out') == "777\n755\n644\n"
        assert copy.dispatch(BackendToolFilesRead("deep/link", encoding=None)) == FileContent(
            b"new\xff"
        )
    assert printed(sandbox, "ls -A; cat ./-gone") == "-gone\ngone-d\nout\nthere\nx\n"


def test_a_copy_of_a_copy_of_a_copy(remote: Remote) -> None:
    put(remote.sandbox, "a.txt", "1")
    with opened_copy(remote.sandbox) as second:
        put(second, "a.txt", "2")
        with opened_copy(second) as third:
            put(third, "b.txt", "3")
            base = remote.sandbox.freeze().base_with(third.freeze())
            assert base is not None
            assert content_of(base, "a.txt") == b"1"
            assert (text_of(second, "a.txt"), text_of(third, "a.txt")) == ("2", "2")
            base = second.freeze().base_with(third.freeze())
            assert base is not None
            assert content_of(base, "a.txt") == b"2"
            del base
    assert remote.server.sandbox_ids == [remote.sandbox.handle]


def test_what_was_never_opened_begins_as_its_image(service: Service) -> None:
    source = service.backend.lazy(
        BackendSandboxSpec(image="python:3.11", entrypoint=["sleep", "inf"])
    )
    frozen = source.freeze()
    copy = lazy_copy(service.backend, frozen).ensure_open()
    assert (wait_for(frozen.amanifest), copy.describe().layer) == ({}, None)
    put(source, "a.txt", "x")
    put(copy, "b.txt", "x")
    assert source.freeze().base_with(copy.freeze()) is frozen
    assert {each.json()["image"]["uri"] for each in service.server.matching(
        "POST", "/v1/sandboxes")} == {"python:3.11"}  # fmt: skip
    for each in (copy, source):
        service.backend.close(each)


def test_nothing_is_left_on_the_server(service: Service) -> None:
    source = service.backend.open()
    frozen = source.freeze()
    copy = lazy_copy(service.backend, frozen).ensure_open()
    put(source, "a.txt", "x")
    assert wait_for(frozen.amanifest) == {}
    assert len(service.server.sandbox_ids) == 3
    assert service.backend.sandbox_count() == 2
    service.backend.close(source)
    service.backend.close(copy)
    assert len(service.server.sandbox_ids) == 1
    del source, copy, frozen
    settle(service.server, 1)
    paths = [each.path for each in service.server.matching("DELETE", "/v1/*")]
    assert [path.split("/")[2] for path in paths] == ["sandboxes"] * 3 + ["snapshots"]


def test_a_snapshot_is_there_as_long_as_a_copy_of_it(remote: Remote) -> None:
    copy = lazy_copy(remote.backend, remote.sandbox.freeze()).ensure_open()
    gc.collect()
    remote.backend.close(remote.backend.open())
    assert remote.server.matching("DELETE", "/v1/snapshots/*") == []
    remote.backend.close(copy)
    del copy
    settle(remote.server, 1)


def test_letting_go_of_the_source_keeps_what_somebody_holds(service: Service) -> None:
    source = service.backend.open()
    put(source, "a.txt", "kept")
    frozen = source.freeze()
    again = service.backend.attach(service.backend.detach(source))
    put(again, "a.txt", "later")
    assert content_of(frozen, "a.txt") == b"kept"
    service.backend.close(again)


def test_two_handles_on_one_sandbox_have_the_same_files(remote: Remote) -> None:
    put(remote.sandbox, "a.txt", "before")
    other = remote.backend.attach(remote.sandbox.handle)
    frozen = remote.sandbox.freeze()
    assert other.freeze() is frozen
    put(other, "a.txt", "after")
    assert content_of(frozen, "a.txt") == b"before"
    remote.backend.detach(other)


STATE = ("GET", "/v1/snapshots/*")


NONE = Answer(501, {"code": "SNAPSHOT::UNSUPPORTED", "message": "this runtime has no snapshots"})


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(NONE, id="501"),
        pytest.param(Answer(404, {"detail": "Not Found"}), id="404"),
        pytest.param(Answer(500, {"code": "DOCKER::ERROR", "message": "disk full"}), id="500"),
    ],
)
def test_where_there_is_no_snapshot_nothing_is_done_and_that_is_reported(
    remote: Remote, answer: Answer
) -> None:
    put(remote.sandbox, "a.txt", "before")
    remote.server.inject(*SNAP, answer, times=None)
    frozen = remote.sandbox.freeze()
    for call in (BackendToolFilesWrite("a.txt", "x"), BackendToolCommandRun("echo x > a.txt")):
        failure = failed(remote.sandbox, call)
        assert failure.kind == "workspace_copy_failed"
        assert "made no snapshot" in failure.message
    assert text_of(remote.sandbox, "a.txt") == "before"
    assert content_of(frozen, "a.txt") == b"before"
    del frozen
    gc.collect()
    put(remote.sandbox, "a.txt", "after")


def test_a_copy_that_needs_a_snapshot_names_the_reason(remote: Remote) -> None:
    remote.server.inject(*SNAP, NONE)
    copy = lazy_copy(remote.backend, remote.sandbox.freeze())
    with pytest.raises(BackendError, match="this runtime has no snapshots"):
        copy.ensure_open()
    assert remote.server.sandbox_ids == [remote.sandbox.handle]
    # The failure is not kept.
    copy.ensure_open()
    remote.backend.close(copy)


@pytest.mark.parametrize("state", ["Failed", "Deleting"])
def test_a_snapshot_that_fails_later_is_a_failure_and_is_deleted(
    remote: Remote, state: str
) -> None:
    frozen = remote.sandbox.freeze()
    body = {
        "id": "x", "sandboxId": remote.sandbox.handle, "createdAt": "2026-01-01T00:00:00Z",
        "status": {"state": state, "reason": "snapshot_capture_failed", "message": "disk full"},
    }  # fmt: skip
    remote.server.inject(*STATE, Answer(200, body))
    failure = failed(remote.sandbox, BackendToolFilesWrite("a.txt", "x"))
    assert "disk full" in failure.message
    settle(remote.server, 1)
    assert wait_for(frozen.amanifest) == {}


def test_a_snapshot_is_waited_for(remote: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rath.backend.opensandbox.snapshots.SNAPSHOT_WAITS", (0.0,))
    body = {
        "id": "x", "sandboxId": remote.sandbox.handle, "createdAt": "2026-01-01T00:00:00Z",
        "status": {"state": "Creating"},
    }  # fmt: skip
    remote.server.inject(*STATE, Answer(200, body), times=3)
    put(remote.sandbox, "a.txt", "before")
    frozen = remote.sandbox.freeze()
    put(remote.sandbox, "a.txt", "after")
    assert len(remote.server.matching(*STATE)) == 4
    assert content_of(frozen, "a.txt") == b"before"


def test_a_snapshot_that_takes_too_long_is_a_failure(
    remote: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rath.backend.opensandbox.snapshots.SNAPSHOT_SECONDS", 0.05)
    gate = Gate()
    remote.server.inject(*STATE, gate)
    frozen = remote.sandbox.freeze()
    failure = failed(remote.sandbox, BackendToolFilesWrite("a.txt", "x"))
    gate.release()
    assert "was not ready within" in failure.message
    assert wait_for(frozen.amanifest) == {}


def test_a_snapshot_whose_answer_was_lost_is_found_and_not_made_again(remote: Remote) -> None:
    put(remote.sandbox, "a.txt", "before")
    frozen = remote.sandbox.freeze()
    remote.server.inject(*SNAP, Drop("after"))
    put(remote.sandbox, "a.txt", "after")
    assert content_of(frozen, "a.txt") == b"before"
    assert len(remote.server.matching(*SNAP)) == 1


def test_a_snapshot_that_was_never_asked_for_is_a_failure(remote: Remote) -> None:
    frozen = remote.sandbox.freeze()
    remote.server.inject(*SNAP, Drop("before"))
    failure = failed(remote.sandbox, BackendToolFilesWrite("a.txt", "x"))
    assert failure.kind == "workspace_copy_failed"
    assert wait_for(frozen.amanifest) == {}


def test_closing_without_a_snapshot_ends_the_sandbox_and_says_what_is_lost(
    service: Service,
) -> None:
    source = service.backend.open()
    frozen = source.freeze()
    service.server.inject(*SNAP, NONE, times=None)
    with pytest.raises(BackendError, match="are lost: the server made no snapshot"):
        service.backend.close(source)
    assert service.server.sandbox_ids == []
    with pytest.raises(BackendError, match="is not on the server any more"):
        wait_for(frozen.amanifest)


def test_letting_go_without_a_snapshot_is_refused(remote: Remote) -> None:
    frozen = remote.sandbox.freeze()
    remote.server.inject(*SNAP, NONE)
    with pytest.raises(BackendError, match="was not let go"):
        remote.backend.detach(remote.sandbox)
    put(remote.sandbox, "a.txt", "x")
    assert wait_for(frozen.amanifest) == {}


def test_a_source_that_expired_takes_its_frozen_files_with_it(service: Service) -> None:
    source = service.backend.open()
    frozen = source.freeze()
    service.server.advance(601)
    failure = failed(source, BackendToolFilesWrite("a.txt", "x"))
    assert failure.kind == "sandbox_closed"
    with pytest.raises(BackendError, match="is not on the server any more"):
        wait_for(frozen.amanifest)
    with pytest.raises(BackendError, match="a copy of a workspace cannot be opened"):
        lazy_copy(service.backend, frozen).ensure_open()
    service.backend.close(source)


def test_a_mounted_workspace_is_refused_at_the_call(
    backend: OpenSandboxBackend, tmp_path: Path
) -> None:
    spec = BackendSandboxSpec(working_dir=str(tmp_path))
    opened = backend.open(spec)
    for sandbox in (opened, backend.lazy(spec)):
        with pytest.raises(BackendError, match="use a sandbox without working_dir"):
            sandbox.freeze()
    backend.close(opened)


def test_a_mount_that_nobody_reported_of_is_found(
    backend: OpenSandboxBackend, tmp_path: Path
) -> None:
    opened = backend.open(BackendSandboxSpec(working_dir=str(tmp_path)))
    attached = backend.attach(opened.handle)
    frozen = attached.freeze()
    failure = failed(attached, BackendToolFilesWrite("a.txt", "x"))
    assert failure.kind == "workspace_copy_failed"
    assert "is mounted" in failure.message
    del frozen
    gc.collect()
    backend.detach(attached)
    backend.close(opened)


@pytest.mark.parametrize("path", ["../out", "a/b/c"])
def test_a_copy_that_cannot_be_made_is_not_left_behind(remote: Remote, path: str) -> None:
    printed(remote.sandbox, "mkdir -p a/b/c/full")
    copy = lazy_copy(remote.backend, remote.sandbox.freeze(), {path: NewFile(b"x", FILE)})
    with pytest.raises(BackendError, match="no sandbox could be opened"):
        copy.ensure_open()
    assert remote.server.sandbox_ids == [remote.sandbox.handle]


@pytest.mark.parametrize("where", [SNAP, ("POST", "/v1/sandboxes"), ("POST", "/directories")])
def test_a_cancelled_opening_leaves_nothing_behind(remote: Remote, where: tuple[str, str]) -> None:
    gate = Gate()
    remote.server.inject(*where, gate)
    copy = lazy_copy(remote.backend, remote.sandbox.freeze())
    running = runtime().submit(copy.aopened, label="opening")
    assert gate.reached.wait(50)
    runtime().cancel(running)
    with pytest.raises(BaseException):  # noqa: B017, PT011  # CancelledError is none of Exception
        running.future.result(50)
    gate.release()
    del copy, running
    settle(remote.server, 1)
    remote.backend.close(remote.backend.open())
    assert remote.server.sandbox_ids == [remote.sandbox.handle]


@pytest.fixture
def session(backend: OpenSandboxBackend) -> Iterator[Session]:
    start = Session.from_user_message("go").bind_sandbox(backend.lazy())
    done = worked(start, running("printf '1\\n2\\n3\\n4\\n' > a.txt; echo b > b.txt"))
    start.close_sandbox()
    yield done.synchronize()
    done.close_sandbox()


def session_output(session: Session, line: str) -> str:
    """Return what a command prints in the sandbox of a session."""
    return session.check("look", line).report


def test_a_fork_works_on_files_of_its_own(session: Session) -> None:
    fork = session.fork(workspace="copy")
    done = worked(fork, running("echo x > c.txt; rm b.txt"))
    assert session_output(done, "ls") == "a.txt\nc.txt\n"
    assert session_output(session, "ls") == "a.txt\nb.txt\n"
    place = done.require_sandbox().describe()
    assert (place.backend, place.layer) == ("opensandbox", "snapshot")


def test_its_parent_may_go_on_before_the_fork_is_used(session: Session) -> None:
    fork = session.fork(workspace="copy")
    worked(session, writing("a.txt", "changed\n"), running("rm b.txt")).synchronize()
    assert session_output(fork, "cat a.txt b.txt") == "1\n2\n3\n4\nb\n"


def test_a_fork_of_a_run_that_has_not_ended_has_what_it_leaves(
    backend: OpenSandboxBackend,
) -> None:
    start = Session.from_user_message("go").bind_sandbox(backend.lazy())
    fork = worked(start, writing("a.txt", "left")).fork(workspace="copy")
    assert session_output(fork, "cat a.txt") == "left"


def test_a_fork_of_a_session_without_files_begins_empty(service: Service) -> None:
    session = Session.from_user_message("go").bind_sandbox(service.backend.lazy())
    fork = session.fork(workspace="copy")
    assert service.server.requests == []
    session_output(session, "echo x > a.txt")
    assert session_output(fork, "ls") == ""


def test_a_call_is_undone(session: Session) -> None:
    line = "rm a.txt; ln -s b.txt a.txt; echo x > c; chmod +x b.txt"
    done = worked(session, writing("b.txt", "B\n"), running(line, id="mess"), writing("d", "d"))
    undone = done.undo("mess")
    assert session_output(undone, "cat a.txt b.txt; ls; stat -c %a b.txt") == (
        "1\n2\n3\n4\nB\na.txt\nb.txt\n644\n"
    )
    assert session_output(done, "ls") == "a.txt\nb.txt\nc\nd\n"


def test_what_somebody_else_changed_is_not_lost_by_an_undo(session: Session) -> None:
    done = worked(session, writing("b.txt", "B\n", id="w")).synchronize()
    session_output(session, "echo mine > b.txt")
    with pytest.raises(BackendError, match=r"somebody else changed 'b\.txt'"):
        done.undo("w").require_sandbox()


def test_forks_are_merged_line_by_line(session: Session) -> None:
    ours = worked(session.fork(workspace="copy"), writing("a.txt", "one\n2\n3\n4\n"))
    line = "sed -i s/4/four/ a.txt && chmod +x a.txt && ln -s a.txt link && rm b.txt"
    theirs = worked(session.fork(workspace="copy"), running(line))
    merged = ours.merge(theirs, files="three-way")
    assert session_output(merged, "cat link; ls; stat -c %a a.txt") == (
        "one\n2\n3\nfour\na.txt\nlink\n755\n"
    )
    assert merged.files.conflicts == ()
    assert session_output(ours, "cat a.txt b.txt") == "one\n2\n3\n4\nb\n"


def test_a_mounted_workspace_is_refused_in_the_callers_thread(
    backend: OpenSandboxBackend, tmp_path: Path
) -> None:
    spec = BackendSandboxSpec(working_dir=str(tmp_path))
    session = Session.from_user_message("go").bind_sandbox(backend.lazy(spec))
    with pytest.raises(BackendError, match="use a sandbox without working_dir"):
        session.fork(workspace="copy")


def test_sessions_leave_nothing_on_the_server(
    session: Session, opensandbox_server: OpenSandboxServer
) -> None:
    fork = session.fork(workspace="copy")
    session_output(session, "echo x > a.txt")
    session_output(fork, "echo y > a.txt")
    for each in (session, fork):
        each.close_sandbox()
    opensandbox_server.wait_for("DELETE", "/v1/sandboxes/*", n_requests=2)
    assert len(opensandbox_server.matching("POST", "/v1/sandboxes/*/snapshots")) == 1
