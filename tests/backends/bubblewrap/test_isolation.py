"""What a command in the sandbox sees of the host, can change there, and can reach."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rath.backend import (
    BackendSandbox,
    BackendToolCodeRun,
    BackendToolCommandRun,
    BackendToolFilesList,
    BackendToolFilesWrite,
    CodeResult,
    FileEntries,
)
from rath.backend.bubblewrap import BubblewrapBackend
from rath.backend.bubblewrap.command import program_for
from tests.backends.bubblewrap.running import Open, printed
from tests.support.workspaces import failure, run

needs_filter = pytest.mark.skipif(
    program_for(platform.machine()) is None, reason="no filter of system calls for this machine"
)


@pytest.fixture
def server() -> Iterator[int]:
    """Port of a server on the loopback of the host."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


def code(sandbox: BackendSandbox, text: str) -> CodeResult:
    result = sandbox.dispatch(BackendToolCodeRun(text, timeout=50.0))
    assert isinstance(result, CodeResult), result
    return result


def test_paths_are_those_of_the_file_tools(sandbox: BackendSandbox, workspace: Path) -> None:
    sandbox.dispatch(BackendToolFilesWrite("a.txt", "hello"))
    entries = sandbox.dispatch(BackendToolFilesList("."))
    assert isinstance(entries, FileEntries)
    assert printed(sandbox, ["cat", entries.entries[0].path]) == "hello"
    assert printed(sandbox, "pwd -P") == os.path.realpath(workspace)


def test_a_linked_workspace_has_both_of_its_paths(opened: Open, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    sandbox = opened(working_dir=tmp_path / "link")
    run(sandbox, f"echo one > {tmp_path}/link/file")
    assert printed(sandbox, f"cat {tmp_path}/real/file") == "one"


def test_a_workspace_in_var_tmp_keeps_its_path(opened: Open) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tempfile.tempdir", "/var/tmp")
        sandbox = BubblewrapBackend().open()
    assert printed(sandbox, "pwd -P") == sandbox.handle
    sandbox.backend.close(sandbox)


def test_files_written_inside_belong_to_this_user(sandbox: BackendSandbox, workspace: Path) -> None:
    run(sandbox, "echo one > file")
    assert (workspace / "file").stat().st_uid == os.geteuid()


def test_siblings_and_parents_of_the_workspace_are_hidden(
    sandbox: BackendSandbox, workspace: Path, tmp_path: Path
) -> None:
    (tmp_path / "sibling").write_text("canary")
    assert printed(sandbox, "ls -A ..") == "workspace"
    assert run(sandbox, f"cat {tmp_path}/sibling").exit_code == 1


def test_the_home_is_another_and_empty(sandbox: BackendSandbox) -> None:
    assert printed(sandbox, "echo ~ $HOME; ls -A ~") == "/home/sandbox /home/sandbox"
    home = os.path.expanduser("~")
    assert run(sandbox, f"ls {home}/.ssh {home}/.bashrc {home}/.config").stdout == b""


@pytest.mark.parametrize(
    "path",
    ["/etc/shadow", "/etc/ssh", "/etc/ssl/private", "/etc/sudoers", "/etc/fstab", "/etc/hostname",
     "/sys", "/boot", "/mnt", "/srv", "/var/lib", "/var/log", "/run/docker.sock",
     "/run/systemd", "/dev/shm/none", "/dev/mem", "/dev/kmsg", "/dev/fuse", "/dev/vsock"],
)  # fmt: skip
def test_what_a_command_does_not_need_is_not_there(sandbox: BackendSandbox, path: str) -> None:
    assert run(sandbox, ["test", "-e", path]).exit_code == 1


def test_no_disk_is_among_the_devices(sandbox: BackendSandbox) -> None:
    assert printed(sandbox, "find /dev -type b") == ""
    devices = {"full", "null", "ptmx", "random", "tty", "urandom", "zero"}
    assert set(printed(sandbox, "cd /dev; find * -maxdepth 0 -type c").split()) <= devices


def test_accounts_of_the_host_are_not_seen(sandbox: BackendSandbox) -> None:
    assert printed(sandbox, "cut -d: -f1 /etc/passwd").split() == ["sandbox", "nobody"]
    assert printed(sandbox, "whoami; hostname").split() == ["sandbox", "sandbox"]


@pytest.mark.parametrize(
    "path", ["/new", "/usr/new", "/etc/new", "/bin/new", "/dev/new", "/proc/new", "/home/new"]
)
def test_nothing_can_be_written_outside(sandbox: BackendSandbox, path: str) -> None:
    assert run(sandbox, ["touch", path]).exit_code == 1


@pytest.mark.parametrize("place", ["/tmp", "/var/tmp", "/run", "/dev/shm", "/home/sandbox"])
def test_what_is_written_to_memory_ends_with_the_command(
    sandbox: BackendSandbox, place: str
) -> None:
    path = f"{place}/rath-test-{os.getpid()}"
    assert run(sandbox, f"echo one > {path} && cat {path}").stdout == b"one\n"
    assert run(sandbox, ["test", "-e", path]).exit_code == 1
    assert not os.path.exists(path)


@pytest.mark.parametrize("path", ["/tmp", "/run", "/dev/shm", "/home/sandbox", "/var/tmp"])
def test_places_in_memory_are_limited(sandbox: BackendSandbox, path: str) -> None:
    n_kilobytes = int(printed(sandbox, f"df -k --output=size {path} | tail -1"))
    assert n_kilobytes <= 1 << 20


@pytest.mark.parametrize(
    "path",
    ["sys/kernel/core_pattern", "sys/kernel/modprobe", "sys/vm/overcommit_memory",
     "sysrq-trigger", "sys/fs/suid_dumpable"],
)  # fmt: skip
def test_the_kernel_cannot_be_set_up(sandbox: BackendSandbox, path: str) -> None:
    """Also for root, who keeps owning these files in a user namespace."""
    # Opened and not written: where it can be opened, writing would set up this machine.
    opening = f"import os; os.close(os.open('/proc/{path}', os.O_WRONLY)); print('opened')"
    assert code(sandbox, opening).stdout == b""


@pytest.mark.parametrize("name", ["kmsg", "kcore", "kpageflags", "slabinfo", "vmallocinfo"])
def test_what_only_root_may_read_of_the_kernel_is_hidden(
    sandbox: BackendSandbox, name: str
) -> None:
    assert run(sandbox, f"timeout 5 head -c 1 /proc/{name}").stdout == b""


def test_only_its_own_processes_are_seen(sandbox: BackendSandbox) -> None:
    pids = printed(sandbox, "cd /proc; echo [0-9]*").split()
    assert "1" in pids
    assert len(pids) <= 4
    assert run(sandbox, f"kill -0 {os.getpid()}; test -e /proc/{os.getpid()}").exit_code == 1


def test_it_has_no_capabilities_and_gets_none(sandbox: BackendSandbox) -> None:
    status = printed(sandbox, "cat /proc/self/status")
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert {int(value, 16) for name, value in fields.items() if name.startswith("Cap")} == {0}
    assert fields["NoNewPrivs"] == "1"


def test_a_setuid_program_raises_nothing(sandbox: BackendSandbox, workspace: Path) -> None:
    program = workspace / "whoami"
    shutil.copy("/usr/bin/id", program)
    if os.geteuid() == 0:
        os.chown(program, 65534, 65534)
    program.chmod(0o6755)
    assert printed(sandbox, "./whoami -u; ./whoami -g").split() == ["1000", "1000"]
    places = [line.split()[5] for line in printed(sandbox, "cat /proc/self/mountinfo").splitlines()]
    assert all("nosuid" in options for options in places)


@needs_filter
def test_no_setuid_program_can_be_made(sandbox: BackendSandbox, workspace: Path) -> None:
    run(sandbox, "cp /bin/sh shell; chmod 4755 shell; chmod u+s shell; chmod 2755 shell")
    run(sandbox, ["install", "-m", "4755", "/bin/sh", "other"])
    assert [path.stat().st_mode & 0o6000 for path in workspace.iterdir()] in ([0], [0, 0])


@needs_filter
def test_keys_of_the_kernel_cannot_be_asked_for(sandbox: BackendSandbox) -> None:
    number = {"x86_64": 250, "aarch64": 219}[platform.machine()]
    asking = f"import ctypes, os; print(ctypes.CDLL(None).syscall({number}, 0, -3, 0))"
    assert code(sandbox, asking).stdout == b"-1\n"


@needs_filter
@pytest.mark.parametrize("family", ["AF_VSOCK", "AF_ALG", "AF_PACKET"])
@pytest.mark.parametrize("network", [False, True])
def test_other_families_of_sockets_are_not_there(opened: Open, family: str, network: bool) -> None:
    asking = f"import socket; socket.socket(socket.{family}, socket.SOCK_RAW)"
    assert "not supported" in str(code(opened(network=network), asking).error)


def test_without_network_the_loopback_has_a_name(sandbox: BackendSandbox) -> None:
    asking = "import socket; s = socket.create_server(('localhost', 0)); print('served')"
    assert code(sandbox, asking).stdout == b"served\n"


def test_with_network_the_host_is_reached(opened: Open, server: int) -> None:
    asking = f"import socket; socket.create_connection(('127.0.0.1', {server}), 5); print('yes')"
    assert code(opened(network=True), asking).stdout == b"yes\n"


def test_with_network_names_are_asked_where_the_host_asks(opened: Open) -> None:
    hosts = Path("/etc/hosts")
    expected = hosts.read_text().strip() if hosts.exists() else ""
    assert printed(opened(network=True), "cat /etc/hosts") == expected


def test_variables_are_those_of_the_spec_and_few_of_this_process(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "canary")
    monkeypatch.setenv("TMPDIR", "/somewhere")
    monkeypatch.setenv("LC_TIME", "C")
    sandbox = opened(env={"ONE": "spec", "TWO": "spec"})
    result = run(sandbox, ["env", "-0"], env={"TWO": "call", "odd name": "a\nb", "UID": "7"})
    seen = dict(each.split("=", 1) for each in result.stdout.decode().strip("\0").split("\0"))
    wanted = {"ONE": "spec", "TWO": "call", "odd name": "a\nb", "UID": "7", "LC_TIME": "C"}
    assert wanted.items() <= seen.items()
    assert (seen["HOME"], seen["USER"], seen["SHELL"]) == ("/home/sandbox", "sandbox", "/bin/sh")
    assert not [name for name in seen if name in ("OPENAI_API_KEY", "TMPDIR") or "hidden" in name]


def test_a_home_that_the_call_gives_is_preserved(sandbox: BackendSandbox) -> None:
    assert run(sandbox, "echo $HOME", env={"HOME": "/tmp"}).stdout == b"/tmp\n"


def test_a_variable_cannot_reach_what_runs_outside(sandbox: BackendSandbox, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    harmful = {"LD_DEBUG": "libs", "LD_DEBUG_OUTPUT": str(trace), "ENV": "x", "PATH": "/nowhere"}
    run(sandbox, ["/bin/true"], env=harmful)
    assert list(tmp_path.glob("trace*")) == []


def test_no_value_of_a_variable_stands_on_a_command_line(sandbox: BackendSandbox) -> None:
    said = run(sandbox, "cat /proc/[0-9]*/cmdline", env={"TOKEN": "canary"})
    assert b"canary" not in said.stdout


def test_code_sees_the_packages_of_this_program(sandbox: BackendSandbox) -> None:
    assert code(sandbox, "import sys; print(sys.prefix)").stdout.decode().strip() == sys.prefix
    assert code(sandbox, "import pytest").error is None


@pytest.mark.parametrize("env", [None, {"ONE": "1"}], ids=["at once", "by a shell"])
@pytest.mark.parametrize("program", ["no-such-program", "./missing", "/etc/hosts"])
def test_a_missing_program_is_a_failure_like_elsewhere(
    sandbox: BackendSandbox, program: str, env: dict[str, str] | None
) -> None:
    result = failure(sandbox.dispatch(BackendToolCommandRun([program], env=env)))
    assert (result.kind, program in result.message) == ("os_error", True)
