"""Forks and merges with a workspace of their own, and sessions that are saved."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from rath._async.runtime import runtime
from rath.backend import Backend, BackendSandboxSpec, registry
from rath.backend.capabilities import Capabilities, IsolationLevel
from rath.errors import BackendError, PersistenceError
from rath.llm import Provider
from rath.session import Session
from rath.session.derive import MergedFiles
from rath.session.outcome import NeedsDecision
from rath.session.record import Operation
from rath.testing import FakeBackend, tool_call
from rath.testing.store import FakeSessionStore
from tests.support.api import partial_path_of, provider_without_secrets
from tests.support.session_files import (
    FilesBackend,
    files_of,
    placed,
    running,
    worked,
    write,
    writing,
)
from tests.support.sessions import FunctionTool, run
from tests.support.waiting import PATIENCE


class SharingBackend(FakeBackend):
    """A backend that cannot copy a workspace."""

    name = "sharing"

    @classmethod
    def capabilities(cls) -> Capabilities:
        return Capabilities(IsolationLevel.PROCESS, True, True, False)

    freeze = Backend.freeze


def operation_of(session: Session) -> Operation:
    """Return the entry of the operation that made a session."""
    made = [entry for entry in session.record if entry.id == session.id]
    assert isinstance(made[0], Operation)
    return made[0]


@pytest.mark.parametrize("has_ended", [False, True])
def test_a_fork_of_a_failed_run_fails_as_it_did(has_ended: bool) -> None:
    failed = run([RuntimeError("no answer")], user=placed({"a": "1"}))
    if has_ended:
        with pytest.raises(RuntimeError, match="no answer"):
            failed.synchronize()
    fork = failed.fork(workspace="copy")
    for read_it in (fork.synchronize, fork.require_sandbox, failed.synchronize):
        with pytest.raises(RuntimeError, match="no answer"):
            read_it()


def test_a_fork_without_a_place_or_of_an_unknown_kind_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="has no sandbox to copy them from; place it first"):
        Session.from_user_message("go").fork(workspace="copy")
    with pytest.raises(ValueError, match="unknown workspace 'clone': expected 'share' or 'copy'"):
        placed().fork(workspace="clone")  # type: ignore[arg-type]  # what a caller gets wrong


@pytest.mark.parametrize("turns", [pytest.param([], id="settled"), pytest.param(["x"], id="run")])
def test_a_backend_that_cannot_copy_says_so_at_once(turns: list[Any]) -> None:
    session = Session.from_user_message("go").bind_sandbox(SharingBackend().lazy())
    done = run(turns, user=session) if turns else session
    with pytest.raises(BackendError, match="the sharing backend cannot copy a workspace"):
        done.fork(workspace="copy")
    done.synchronize()


def test_a_fork_is_not_bound_to_the_directory_of_its_parent() -> None:
    backend = FilesBackend()
    spec = BackendSandboxSpec(working_dir="project", image="python")
    session = Session.from_user_message("go").bind_sandbox(backend.lazy(spec))
    assert session.fork(workspace="copy").sandbox_spec == BackendSandboxSpec(image="python")


@pytest.fixture
def files_backend() -> Iterator[None]:
    registry.register("files")(FilesBackend)
    yield
    registry.unregister("files")


@pytest.mark.usefixtures("files_backend")
def test_a_fork_that_was_closed_opens_with_the_same_files_again() -> None:
    parent = Session.from_user_message("go").to("files")
    write(parent, {"a": "1"})
    fork = parent.fork(workspace="copy")
    write(fork, {"a": "2"})
    child = fork.fork()
    write(parent, {"a": "3"})
    fork.close_sandbox()
    child.close_sandbox()
    assert (files_of(fork), files_of(child)) == ({"a": b"1"}, {"a": b"1"})
    assert files_of(parent) == {"a": b"3"}


def test_a_share_of_a_copy_that_was_closed_stays_a_copy() -> None:
    fork = placed({"a": "1"}).fork(workspace="copy")
    sandbox = fork.require_sandbox()
    sandbox.backend.close(sandbox)
    assert fork.fork().core.placement.origin is fork.core.placement.origin
    with pytest.raises(RuntimeError, match="session sandbox is closed"):
        fork.fork(workspace="copy")


def test_a_fork_that_was_cut_off_says_that_it_has_no_files() -> None:
    parent = run(["x"], user=placed({"a": "1"}))
    fork = parent.fork(workspace="copy")
    origin: Any = fork.core.placement.origin
    parent.synchronize()
    cut_off = type(origin)(origin.frozen.of(None), origin.session)
    with pytest.raises(BackendError, match="were not copied: the fork was cancelled"):
        runtime().run(cut_off, label="an origin")


def branches(base: Session, ours: list[Any], theirs: list[Any]) -> tuple[Session, Session]:
    """Return two runs on forks with a workspace of their own."""
    return (
        worked(base.fork(workspace="copy"), *ours),
        worked(base.fork(workspace="copy"), *theirs),
    )


FILES = {"a": "1\n2\n3\n4\n", "b": "b"}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ("ours", {"a": b"one\n2\n3\n4\n", "b": b"b"}),
        ("theirs", {"a": b"1\n2\n3\nfour\n", "c": b"c"}),
        ("three-way", {"a": b"one\n2\n3\nfour\n", "c": b"c"}),
    ],
)
def test_a_merged_session_has_the_files_that_were_asked_for(
    files: Any, expected: dict[str, bytes]
) -> None:
    ours, theirs = branches(
        placed(FILES),
        [writing("a", "one\n2\n3\n4\n")],
        [writing("a", "1\n2\n3\nfour\n"), running("rm b"), writing("c", "c")],
    )
    merged = ours.merge(theirs, files=files)
    assert files_of(merged) == expected
    assert merged.files.conflicts == ()
    assert operation_of(merged).workspace == files
    assert merged.provenance.extras == (("files", files),)


def test_conflicts_are_values_and_the_workspace_has_ours() -> None:
    ours, theirs = branches(placed(FILES), [writing("a", "one")], [writing("a", "two")])
    merged = ours.merge(theirs, files="three-way")
    (conflict,) = merged.files.conflicts
    assert (conflict.path, conflict.kind) == ("a", "content")
    sides = (conflict.base, conflict.ours, conflict.theirs)
    assert [side and side.content.data for side in sides] == [b"1\n2\n3\n4\n", b"one", b"two"]
    assert files_of(merged)["a"] == b"one"
    assert merged.files.conflicts == (conflict,)


def test_workspaces_that_have_nothing_in_common_are_refused_at_the_call() -> None:
    one, other = placed({"a": "1"}), placed({"a": "1"})
    with pytest.raises(ValueError, match="came from no common files") as caught:
        one.merge(other, files="three-way")
    assert str(one.id) in str(caught.value)
    assert str(other.id) in str(caught.value)


def test_runs_with_nothing_in_common_are_refused_at_the_opening() -> None:
    one, other = worked(placed(), writing("a", "1")), worked(placed(), writing("a", "2"))
    merged = one.merge(other, files="three-way")
    with pytest.raises(BackendError, match="came from no common files"):
        merged.files.conflicts  # noqa: B018  # reading it fails


def test_files_of_another_backend_or_that_nobody_knows_are_refused() -> None:
    other = Session.from_user_message("x").bind_sandbox(FakeBackend().open())
    for files in get_args(MergedFiles):
        with pytest.raises(ValueError, match=r"different backends \('files' and 'fake'\); place"):
            placed().merge(other, files=files)
    with pytest.raises(ValueError, match="unknown files 'mine': expected 'ours', 'theirs'"):
        placed().merge(placed(), files="mine")  # type: ignore[arg-type]  # a caller's mistake


def test_a_merge_needs_only_the_place_whose_files_it_takes() -> None:
    message = Session.from_user_message("more")
    assert files_of(placed({"a": "1"}).merge(message, files="ours")) == {"a": b"1"}
    assert files_of(message.merge(placed({"a": "1"}), files="theirs")) == {"a": b"1"}
    with pytest.raises(ValueError, match="a merge with files='three-way' needs the files"):
        placed().merge(message, files="three-way")


def test_a_sandbox_that_is_closed_under_a_run_fails_the_copy_and_not_the_run() -> None:
    parent = placed({"a": "1"})

    def close(session: Session, _: object) -> None:
        may_close.wait(PATIENCE)
        sandbox = session.require_sandbox()
        sandbox.backend.close(sandbox)

    may_close = threading.Event()
    done = run([tool_call("close"), "done"], FunctionTool("close", close), user=parent)
    fork = done.fork(workspace="copy")
    may_close.set()
    assert done.text() == "done"
    with pytest.raises(RuntimeError, match="session sandbox is closed"):
        fork.synchronize()


def test_a_file_of_its_own_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "new" / "one.jsonl"
    Session.from_user_message("first").save(path=path)
    second = Session.from_user_message("second")
    assert second.save(path=str(path)) == str(path)
    assert Session.load(path).id == second.id


def test_a_path_and_a_store_are_too_much(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="give one of them"):
        Session.from_user_message("hi").save(path=tmp_path / "x", store="elsewhere")


def test_a_snapshot_is_saved_as_a_run_that_goes_on() -> None:
    where: list[str] = []

    def save(session: Session, _: object) -> str:
        where.append(session.save())
        return "saved"

    out = run([tool_call("save"), tool_call("save"), "done"], FunctionTool("save", save))
    out.synchronize()
    partial = partial_path_of(Path(where[0]))
    assert isinstance(Session.load(partial).outcome, NeedsDecision)
    assert out.save() == where[0]
    assert not partial.exists()
    assert list(Session.load(out.id).record) == list(out.record)


@pytest.mark.parametrize("fail_at", range(1, 8))
def test_whatever_write_fails_what_is_there_can_be_read(fail_at: int) -> None:
    session = run([tool_call("f"), "done"], FunctionTool("f", lambda *_: "x")).fork()
    store = FakeSessionStore(fail_at=fail_at)
    try:
        session.save(store=store)
    except PersistenceError:
        session.save(store=store)
    for each in store.stamps():
        Session.load(each, store=store)
    assert list(Session.load(session.id, store=store).record) == list(session.record)


def test_a_stored_provider_has_no_secrets() -> None:
    provider = Provider(
        model="m",
        api_key="sk-canary",
        base_url="https://user:canary@host.example/v1?key=canary",
        extra_create_args={"extra_headers": {"x": "canary"}},
        user="canary",
    )
    reply = provider_without_secrets(provider)
    assert reply == {"model": "m", "base_url": "https://host.example/v1"}
