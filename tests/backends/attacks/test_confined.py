"""Commands of `bubblewrap` do not get out; `local` says that it does not promise that."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rath.backend import (
    BackendSandboxSpec,
    BackendToolCodeRun,
    CommandResult,
    SandboxLimits,
    get_class,
)
from rath.backend.local import LocalBackend
from tests.support.attacked import CANARY, Target, attacked, said


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Target]:
    with attacked("bubblewrap", tmp_path) as opened:
        yield opened


Line = Callable[[Target], str]

ATTEMPTS: dict[str, Line] = {
    "read-outside": lambda at: f"cat {at.secret}",
    "read-through-a-link": lambda at: f"ln -s {at.outside} l; cat l/secret.txt",
    "read-through-proc": lambda at: f"cat /proc/1/root{at.secret} /proc/self/root{at.secret}",
    "read-through-the-parent": lambda at: "cat ../outside/secret.txt ../*/secret.txt",
    "find-it": lambda at: "grep -rs canary- / --include=secret.txt --exclude-dir=proc | head -3",
    "write-outside": lambda at: f"echo x > {at.secret} && echo ESCAPED",
    "make-outside": lambda at: f"mkdir -p {at.outside}; echo x > {at.outside}/made.txt",
    "remove-outside": lambda at: f"rm -rf {at.outside} {at.outside.parent}/ws-sibling",
    "chmod-outside": lambda at: f"chmod 777 {at.secret} && echo ESCAPED",
    "hard-link": lambda at: f"ln {at.secret} hard.txt && echo ESCAPED",
    "write-usr": lambda at: "echo x > /usr/made-7f3a91 && echo ESCAPED",
    "write-etc": lambda at: "echo x >> /etc/passwd && echo ESCAPED",
    "write-bin": lambda at: "cp /bin/true /bin/made-7f3a91 && echo ESCAPED",
    "remount": lambda at: "mount -o remount,rw / && echo ESCAPED",
    "remount-usr": lambda at: "mount -o remount,rw,bind /usr && echo ESCAPED",
    "mount-proc": lambda at: "mkdir p; mount -t proc none p && echo ESCAPED",
    "unmount": lambda at: "umount -l /usr && echo ESCAPED",
    "chroot": lambda at: "chroot / true && echo ESCAPED",
    "new-user-namespace": lambda at: "unshare -Ur true && echo ESCAPED",
    "new-mount-namespace": lambda at: "unshare -m true && echo ESCAPED",
    "enter-a-namespace": lambda at: f"nsenter -t {os.getpid()} -m true && echo ESCAPED",
    "make-a-device": lambda at: "mknod d b 8 0 && echo ESCAPED",
    "read-memory": lambda at: "head -c 1 /dev/mem && echo ESCAPED",
    "read-kernel-memory": lambda at: "head -c 1 /proc/kcore && echo ESCAPED",
    "read-shadow": lambda at: "cat /etc/shadow && echo ESCAPED",
    "block-devices": lambda at: "ls /dev/sd* /dev/vd* /dev/nvme* 2>/dev/null && echo ESCAPED",
    "docker-socket": lambda at: "ls /var/run/docker.sock /run/docker.sock && echo ESCAPED",
    "sysctl": lambda at: "echo x > /proc/sys/kernel/core_pattern && echo ESCAPED",
    "sysrq": lambda at: "echo h > /proc/sysrq-trigger && echo ESCAPED",
    "cgroup": lambda at: "mkdir /sys/fs/cgroup/pids/made && echo ESCAPED",
    "clock": lambda at: "date -s '2001-01-01' && echo ESCAPED",
    "kernel-module": lambda at: "modprobe loop && echo ESCAPED",
    "signal-a-process": lambda at: f"kill -0 {os.getpid()} && echo ESCAPED",
    "see-a-process": lambda at: f"grep -aq {os.getpid()} /proc/{os.getpid()}/stat && echo ESCAPED",
    "priority": lambda at: "renice -n -20 $$ && echo ESCAPED",
    "more-capabilities": lambda at: "grep -q 'CapEff:.*[1-9a-f]' /proc/self/status && echo ESCAPED",
    "new-privileges": lambda at: "grep -q 'NoNewPrivs:.0' /proc/self/status && echo ESCAPED",
    "set-user-id": lambda at: "mount | grep -w /usr | grep -vq nosuid && echo ESCAPED",
    "become-root": lambda at: "su -c 'cat /etc/shadow' && echo ESCAPED",
    "trace-outside": lambda at: f"cat /proc/{os.getpid()}/environ && echo ESCAPED",
}  # fmt: skip


@pytest.mark.parametrize("line", ATTEMPTS.values(), ids=ATTEMPTS.keys())
def test_a_command_does_not_get_out(target: Target, line: Line) -> None:
    shown = said(target.shell(line(target)))
    assert CANARY not in shown
    assert "ESCAPED" not in shown


@pytest.mark.parametrize("line", ATTEMPTS.values(), ids=ATTEMPTS.keys())
def test_code_does_not_get_out(target: Target, line: Line) -> None:
    code = f"import subprocess; subprocess.run(['bash', '-c', {line(target)!r}])"
    shown = said(target.run(BackendToolCodeRun(code)))
    assert CANARY not in shown
    assert "ESCAPED" not in shown


def test_the_home_is_hidden(target: Target, tmp_path: Path) -> None:
    home = Path.home()
    mine = home / f".rath-attack-{os.getpid()}"
    mine.write_text(CANARY)
    try:
        shown = said(target.shell(f"cat {mine} 2>/dev/null; ls -a {home} ~"))
    finally:
        mine.unlink()
    assert CANARY not in shown
    assert mine.name not in shown


def test_the_network_of_this_host_is_not_there(target: Target) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        shown = said(target.shell(f"exec 3<>/dev/tcp/127.0.0.1/{port} && echo ESCAPED"))
    assert "ESCAPED" not in shown


CONNECT = """
import socket
try:
    socket.socket(socket.AF_UNIX).connect({address!r})
    print("ESCAPED")
except OSError as exc:
    print(exc)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="abstract sockets are of Linux")
def test_an_abstract_socket_of_this_host_is_not_there(target: Target) -> None:
    address = f"\0rath-attack-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(address)
        server.listen()
        shown = said(target.run(BackendToolCodeRun(CONNECT.format(address=address))))
    assert "ESCAPED" not in shown


def test_killing_everybody_kills_nobody_outside(target: Target) -> None:
    with subprocess.Popen(["sleep", "60"]) as bystander:
        target.shell("kill -9 -1", timeout=5)
        assert bystander.poll() is None
        bystander.kill()
    assert isinstance(target.shell("true"), CommandResult)


def test_its_name_is_its_own(target: Target) -> None:
    before = socket.gethostname()
    target.shell("hostname attacked-7f3a91")
    assert socket.gethostname() == before


def test_a_fork_bomb_is_contained(tmp_path: Path) -> None:
    spec = BackendSandboxSpec(limits=SandboxLimits(processes=60))
    with attacked("bubblewrap", tmp_path, spec) as target:
        target.shell("b() { b | b & }; b; sleep 0.3", timeout=2)
        assert isinstance(target.shell("echo still here"), CommandResult)


def test_a_memory_hog_is_contained(tmp_path: Path) -> None:
    spec = BackendSandboxSpec(limits=SandboxLimits(memory_bytes=64 << 20))
    with attacked("bubblewrap", tmp_path, spec) as target:
        shown = said(target.run(BackendToolCodeRun("x = bytearray(1 << 30); print('ESCAPED')")))
        assert "ESCAPED" not in shown


def test_the_temporary_directory_is_its_own_and_ends_with_the_command(target: Target) -> None:
    target.shell("echo x > /tmp/made-7f3a91")
    assert not Path("/tmp/made-7f3a91").exists()


def test_local_says_that_commands_are_not_confined() -> None:
    assert not LocalBackend.capabilities().confines_commands
    assert "not confined" in (LocalBackend.__doc__ or "")


def test_bubblewrap_says_what_it_does_not_promise() -> None:
    backend = get_class("bubblewrap")
    assert backend.capabilities().confines_commands
    assert "does not promise" in (backend.__doc__ or "")
