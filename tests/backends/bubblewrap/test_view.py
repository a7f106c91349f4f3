"""Which directories can be workspaces, and which parts of the host are shown."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rath.backend import (
    BackendError,
    BackendSandbox,
    BackendSandboxSpec,
    BackendToolCodeRun,
    BackendToolCommandRun,
)
from rath.backend.bubblewrap import BubblewrapBackend, command
from tests.backends.bubblewrap.running import Open, failure, printed


@pytest.mark.parametrize(
    "root", ["/", "/home", "/etc", "/usr", "/usr/lib", "/proc", "/proc/self", "/sys/fs", "/dev",
             "/run", "/tmp", "/var", "/opt", "/root"]
)  # fmt: skip
def test_a_directory_of_the_system_is_no_workspace(root: str) -> None:
    assert command.workspace_refusal(root) is not None


def test_a_home_and_what_holds_it_is_no_workspace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "homes/me"))
    assert command.workspace_refusal(str(tmp_path / "homes")) is not None
    assert command.workspace_refusal(str(tmp_path / "homes/me")) is not None
    assert command.workspace_refusal(str(tmp_path / "homes/me/project")) is None
    assert command.workspace_refusal(str(tmp_path / "homes/my")) is None


def test_opening_such_a_directory_says_what_to_do(opened: Open, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc")
    with pytest.raises(BackendError, match=r"'/etc' cannot be the workspace.*further down"):
        opened(working_dir=tmp_path / "link")


def test_a_sandbox_made_by_name_is_held_to_the_same(backend: BubblewrapBackend) -> None:
    sandbox = BackendSandbox(backend, "/etc")
    with pytest.raises(BackendError, match="cannot be the workspace"):
        sandbox.dispatch(BackendToolCommandRun("true"))


def test_a_workspace_in_the_home_shows_nothing_else_of_it(
    opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    (home / "project").mkdir(parents=True)
    (home / "secret").write_text("canary")
    monkeypatch.setenv("HOME", str(home))
    sandbox = opened(working_dir=home / "project")
    assert printed(sandbox, f"ls -A {home}; echo $HOME") == "project\n/home/sandbox"


def interpreter(prefix: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return what is shown for a Python whose parts all lie in `prefix`."""
    for name in ("prefix", "exec_prefix", "base_prefix", "base_exec_prefix"):
        monkeypatch.setattr(sys, name, str(prefix))
    monkeypatch.setattr(sys, "executable", str(prefix / "bin/python"))
    return command.interpreter()


def test_the_python_of_the_system_needs_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    assert interpreter(Path("/usr"), monkeypatch) == []


def test_a_python_elsewhere_is_shown_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert interpreter(tmp_path, monkeypatch) == ["--ro-bind", str(tmp_path), str(tmp_path)]


def test_a_python_in_the_home_itself_does_not_show_the_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert str(tmp_path) not in interpreter(tmp_path, monkeypatch)


def test_the_links_to_the_interpreter_are_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    venv, links, real = tmp_path / "venv/bin", tmp_path / "links", tmp_path / "real"
    for directory in (venv, links, real):
        directory.mkdir(parents=True)
    (real / "python").touch()
    (links / "python").symlink_to("../real/python")
    (venv / "python").symlink_to(links / "python")
    shown = interpreter(tmp_path / "venv", monkeypatch)[2::3]
    assert shown == [str(tmp_path / "venv"), str(links / "python"), str(real / "python")]


def test_the_password_of_a_package_index_is_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pip.conf").write_text("canary")
    arguments = interpreter(tmp_path, monkeypatch)
    assert arguments[3:] == ["--ro-bind", "/dev/null", str(tmp_path / "pip.conf")]


def test_a_missing_interpreter_is_a_failure_and_no_other_is_taken(
    backend: BubblewrapBackend,
    workspace: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin/python"))
    sandbox = backend.open(BackendSandboxSpec(working_dir=str(workspace)))
    result = failure(sandbox.dispatch(BackendToolCodeRun("print(1)", timeout=50.0)))
    assert "No such file" in result.message
    backend.close(sandbox)


def test_only_the_network_changes_what_is_separate() -> None:
    without, with_network = (
        command.confinement("/etc", network=False),
        command.confinement("/etc", network=True),
    )
    assert [each for each in without if each not in with_network] == ["--unshare-net"]


def test_a_program_without_an_interpreter_shows_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interpreter(Path("/usr"), monkeypatch)
    monkeypatch.setattr(sys, "executable", "")
    monkeypatch.chdir(tmp_path)
    assert command.interpreter() == []
