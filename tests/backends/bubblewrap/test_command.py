"""The command line around a command: what `bwrap` sees of it, and whom it ends with."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath.backend import (
    BackendError,
    BackendSandbox,
    BackendSandboxSpec,
    BackendToolCodeRun,
    BackendToolCommandRun,
)
from rath.backend.bubblewrap import BubblewrapBackend, command
from rath.backend.bubblewrap.backend import find_bwrap
from rath.backend.bubblewrap.command import (
    Sandboxing,
    SystemFiles,
    confinement,
    rlimit_script,
    workspace_arguments,
)
from rath.backend.host.process import HostCommand
from tests.backends.bubblewrap.running import Open, printed
from tests.support.workspaces import failure

names = st.text(st.characters(exclude_characters="=\0", codec="utf-8"), min_size=1, max_size=20)
values = st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=40)

ALWAYS = {"HOME", "USER", "LOGNAME", "SHELL"}
OF_A_SHELL = {"PWD", "OLDPWD", "SHLVL", "_"}

# Runs what follows "--", in place of the sandbox: the shells around it are the real ones.
NO_SANDBOX = """\
#!/bin/sh
while [ "$1" != -- ]; do shift; done
shift
exec "$@"
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("programs") / "bwrap"
    path.write_text(NO_SANDBOX)
    path.chmod(0o755)
    return str(path)


def ended(command: HostCommand) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        list(command.argv), env=dict(command.env), cwd="/", capture_output=True, check=False
    )


@given(variables=st.dictionaries(names, values, max_size=4))
def test_any_variables_arrive_as_they_are(program: str, variables: dict[str, str]) -> None:
    command = Sandboxing(program, [], None).apply(
        HostCommand(["/usr/bin/env", "-0"], "/", variables), [], directory="/"
    )
    said = ended(command).stdout.decode().removesuffix("\0")
    seen = dict(each.split("=", 1) for each in said.split("\0"))
    assert variables.items() <= seen.items()
    assert seen.keys() - variables.keys() <= {*ALWAYS, *OF_A_SHELL}


def test_variables_that_a_shell_minds_arrive_too(program: str) -> None:
    variables = dict.fromkeys(["OPTIND", "UID", "BASH_ENV", "_", "IFS", "PWD", "a-b", "1"], "odd")
    command = Sandboxing(program, [], None).apply(
        HostCommand(["/usr/bin/env", "-0"], "/", variables), [], directory="/"
    )
    said = ended(command).stdout.decode().removesuffix("\0")
    assert variables.items() <= dict(each.split("=", 1) for each in said.split("\0")).items()


@pytest.mark.parametrize("name", ["", "a=b"])
def test_a_variable_without_a_proper_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="another name"):
        Sandboxing("bwrap", [], None).apply(HostCommand(["x"], "/", {name: "1"}), [], directory="/")


def test_an_empty_command_is_refused() -> None:
    with pytest.raises(ValueError, match="name a program"):
        Sandboxing("bwrap", [], None).apply(HostCommand([], "/", {}), [], directory="/")


def test_a_group_that_has_gone_lets_nothing_run(program: str, tmp_path: Path) -> None:
    sandboxing = Sandboxing(program, [], None, [str(tmp_path / "gone" / "cgroup.procs")])
    command = sandboxing.apply(HostCommand(["/bin/echo", "ran"], "/", {}), [], directory="/")
    said = ended(command)
    assert (said.returncode, said.stdout) == (1, b"")
    assert said.stderr == b"bwrap: cannot enter the control group\n"


def test_groups_are_entered_first(program: str, tmp_path: Path) -> None:
    entrances = [str(tmp_path / "it's one"), str(tmp_path / "two")]
    sandboxing = Sandboxing(program, [], None, entrances)
    command = sandboxing.apply(HostCommand(["/bin/cat", *entrances], "/", {}), [], directory="/")
    assert ended(command).stdout == b"0\n0\n"


def test_resource_limits_hold_for_the_command(program: str) -> None:
    sandboxing = Sandboxing(program, [], None, rlimits=rlimit_script(1 << 30, 4000))
    command = HostCommand(["/bin/cat", "/proc/self/limits"], "/", {"ONE": "1"})
    lines = ended(sandboxing.apply(command, [], directory="/")).stdout.decode().splitlines()
    fields = {line[:26].strip(): line[26:].split() for line in lines}
    assert fields["Max data size"][:2] == [str(1 << 30)] * 2
    assert fields["Max processes"][:2] == ["4000"] * 2


def started_by_a_thread(
    tmp_path: Path, parent: Literal["process", "thread"]
) -> subprocess.Popen[bytes]:
    """Start a command that answers one line, on a thread that ends then."""
    provided = SystemFiles()
    arguments = confinement(provided.etc, network=False)
    sandboxing = Sandboxing(str(find_bwrap()), arguments, provided.filter, parent=parent)
    command = sandboxing.apply(
        HostCommand(["/bin/sh", "-c", "echo begun; read line; echo $line"], "/", {}),
        workspace_arguments([str(tmp_path)], ()),
        directory="/",
    )
    started: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            list(command.argv), env=dict(command.env), stdin=pipe, stdout=pipe
        )
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        started.append(process)

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    # For the kernel it ends a moment later.
    while os.path.exists(f"/proc/self/task/{thread.native_id}"):
        os.sched_yield()
    return started[0]


@pytest.mark.usefixtures("backend")
def test_a_command_outlives_the_thread_that_started_it(tmp_path: Path) -> None:
    with started_by_a_thread(tmp_path, "thread") as process:
        assert process.communicate(b"survived\n")[0] == b"survived\n"


@pytest.mark.usefixtures("backend")
def test_a_command_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    """A thread stands for the process: its end is what the kernel tells of."""
    with started_by_a_thread(tmp_path, "process") as process:
        assert process.stdout is not None
        assert process.stdout.read() == b""


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


def test_a_python_elsewhere_is_displayed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
