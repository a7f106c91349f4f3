"""How sandboxes of the local backend open, are counted and close."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rath.backend import (
    BackendError,
    BackendSandbox,
    BackendSandboxClosed,
    BackendSandboxSpec,
    BackendToolCommandRun,
    BackendToolFilesExists,
    BackendToolFilesRead,
    BackendToolFilesWrite,
    FileContent,
    IsolationLevel,
    SandboxIdentity,
    ToolExecutionFailure,
)
from rath.backend.local import LocalBackend


def test_a_directory_of_its_own_is_removed_on_closing() -> None:
    backend = LocalBackend()
    sandbox = backend.open()
    assert Path(sandbox.handle).name.startswith("rath-local-")
    assert os.path.isdir(sandbox.handle)
    backend.close(sandbox)
    assert not os.path.exists(sandbox.handle)


def test_a_directory_that_was_given_is_made_and_never_removed(tmp_path: Path) -> None:
    backend = LocalBackend()
    given = tmp_path / "deep" / "workspace"
    sandbox = backend.open(BackendSandboxSpec(working_dir=str(given)))
    sandbox.dispatch(BackendToolFilesWrite("a.txt", "x"))
    backend.close(sandbox)
    assert (given / "a.txt").read_text() == "x"


def test_the_handle_is_the_given_directory_verbatim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    backend = LocalBackend()
    sandbox = backend.open(BackendSandboxSpec(working_dir="./here"))
    assert sandbox.handle == "./here"
    backend.close(sandbox)


def test_a_relative_workspace_stays_where_it_was_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    backend = LocalBackend()
    sandbox = backend.open(BackendSandboxSpec(working_dir="here"))
    monkeypatch.chdir("/")
    sandbox.dispatch(BackendToolFilesWrite("a.txt", "x"))
    assert (tmp_path / "here" / "a.txt").exists()
    backend.close(sandbox)


def test_a_home_directory_is_meant_by_a_tilde(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    backend = LocalBackend()
    lazy = backend.lazy(BackendSandboxSpec(working_dir="~/work"))
    assert lazy.describe().root == str(tmp_path / "work")
    with lazy:
        lazy.dispatch(BackendToolFilesWrite("a", "x"))
        assert lazy.handle == "~/work"
        lazy.dispatch(BackendToolFilesWrite(str(tmp_path / "work" / "b"), "x"))
    assert sorted(os.listdir(tmp_path / "work")) == ["a", "b"]


def test_what_a_command_closed_to_everybody_is_removed_too() -> None:
    backend = LocalBackend()
    sandbox = backend.open()
    sandbox.dispatch(
        BackendToolCommandRun("mkdir -p a/b c; touch a/b/f c/g; chmod 0 c; chmod 555 a/b")
    )
    backend.close(sandbox)
    assert not Path(sandbox.handle).exists()


def test_a_directory_that_cannot_be_made_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(BackendError, match="file/below"):
        LocalBackend().open(BackendSandboxSpec(working_dir=str(tmp_path / "file" / "below")))


def test_a_lazy_sandbox_opens_at_its_first_operation(tmp_path: Path) -> None:
    backend = LocalBackend()
    given = tmp_path / "later"
    sandbox = backend.lazy(BackendSandboxSpec(working_dir=str(given)))
    assert (sandbox.handle, given.exists()) == ("", False)
    assert sandbox.dispatch(BackendToolFilesExists("x")) is False
    assert (sandbox.handle, given.exists()) == (str(given), True)
    backend.close(sandbox)


def test_a_lazy_sandbox_opens_once_under_parallel_use() -> None:
    backend = LocalBackend()
    sandbox = backend.lazy()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(sandbox.dispatch, [BackendToolFilesExists("x")] * 16))
    assert backend.sandbox_count() == 1
    backend.close(sandbox)
    assert backend.sandbox_count() == 0


def test_a_lazy_sandbox_that_was_never_used_makes_nothing(tmp_path: Path) -> None:
    given = tmp_path / "never"
    with LocalBackend().lazy(BackendSandboxSpec(working_dir=str(given))) as sandbox:
        pass
    assert sandbox.closed
    assert not given.exists()


def test_the_last_release_closes(sandbox: BackendSandbox) -> None:
    with sandbox, sandbox:
        assert sandbox.refcount == 2
    assert sandbox.closed


def test_a_closed_sandbox_refuses_every_use(sandbox: BackendSandbox) -> None:
    sandbox.backend.close(sandbox)
    sandbox.backend.close(sandbox)
    sandbox.release()
    with pytest.raises(BackendSandboxClosed):
        sandbox.acquire()
    with pytest.raises(BackendSandboxClosed):
        sandbox.dispatch(BackendToolFilesExists("x"))
    result = sandbox.backend.dispatch(sandbox, BackendToolFilesExists("x"))
    assert isinstance(result, ToolExecutionFailure)
    assert result.kind == "sandbox_closed"


def test_what_is_no_payload_is_refused_in_the_callers_thread(sandbox: BackendSandbox) -> None:
    with pytest.raises(TypeError, match="BackendToolCommandRun"):
        sandbox.dispatch("ls")  # type: ignore[arg-type]  # the mistake under test


def test_the_count_is_that_of_different_workspaces(tmp_path: Path) -> None:
    backend = LocalBackend()
    spec = BackendSandboxSpec(working_dir=str(tmp_path))
    first, second = backend.open(spec), backend.open(spec)
    assert backend.sandbox_count() == 1
    backend.close(first)
    assert backend.sandbox_count() == 1
    backend.close(second)
    assert backend.sandbox_count() == 0


def test_a_sandbox_constructed_by_its_directory_can_be_used(workspace: Path) -> None:
    (workspace / "a.txt").write_text("x")
    sandbox = BackendSandbox(LocalBackend(), str(workspace))
    assert sandbox.dispatch(BackendToolFilesRead("a.txt")) == FileContent("x")
    sandbox.backend.close(sandbox)
    assert workspace.exists()


def test_it_says_where_it_is(sandbox: BackendSandbox, workspace: Path) -> None:
    root = os.path.realpath(workspace)
    assert sandbox.describe() == SandboxIdentity("local", str(workspace), "process", root, root)


def test_it_says_where_it_will_be(tmp_path: Path) -> None:
    sandbox = LocalBackend().lazy(BackendSandboxSpec(working_dir=str(tmp_path)))
    assert sandbox.describe().root == os.path.realpath(tmp_path)
    assert sandbox.describe().sandbox_id == ""


def test_repr_shows_no_counters(sandbox: BackendSandbox) -> None:
    assert repr(sandbox).startswith("BackendSandbox(backend=<LocalBackend 'local'>, handle=")
    assert "refcount" not in repr(sandbox)


def test_it_offers_all_seven_operations() -> None:
    offers = LocalBackend.capabilities()
    assert offers.isolation is IsolationLevel.PROCESS
    assert (offers.cold_start_ms_p50, offers.max_sandboxes) == (10, None)
    assert len(LocalBackend.supported_calls()) == 7


def test_it_works_inside_a_running_event_loop(workspace: Path) -> None:
    async def main() -> object:
        backend = LocalBackend()
        sandbox = backend.open(BackendSandboxSpec(working_dir=str(workspace)))
        try:
            return sandbox.dispatch(BackendToolFilesExists("x"))
        finally:
            backend.close(sandbox)

    assert asyncio.run(main()) is False


def test_what_is_open_at_exit_is_closed(tmp_path: Path) -> None:
    program = "from rath.backend import get; print(get('local').open().handle)"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True
    )
    assert run.stdout.startswith("/")
    assert not os.path.exists(run.stdout.strip())
