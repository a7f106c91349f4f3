"""What commands of a confining backend must not reach."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from secrets import token_hex

from rath.backend.abc import BackendSandbox
from rath.backend.capabilities import IsolationLevel
from rath.backend.results import CommandResult
from rath.backend.tool_types import BackendToolCommandRun
from rath.conformance.report import Skipped, expect
from rath.conformance.sandbox.subject import COMMANDS, Check, shell

__all__ = ["CHECKS"]


def files_of_this_host_are_not_written(sandbox: BackendSandbox) -> None:
    with tempfile.TemporaryDirectory(prefix="rath-conformance-") as outside:
        target = Path(outside) / "reached.txt"
        shell(sandbox, f"mkdir -p {outside}; echo x > {target}")
        expect(not target.exists(), f"no write to {target}")


def secrets_in_the_home_are_not_read(sandbox: BackendSandbox) -> None:
    home = Path.home()
    if not os.access(home, os.W_OK):
        raise Skipped(f"the home {str(home)!r} cannot be written to")
    with tempfile.NamedTemporaryFile(dir=home, prefix=".rath-conformance-") as secret:
        secret.write(b"canary")
        secret.flush()
        said = shell(sandbox, f"cat {secret.name}; ls -a {home}")
    expect(b"canary" not in said.stdout, "no file of the home to be read")
    expect(os.path.basename(secret.name).encode() not in said.stdout, "the home to be hidden")


def the_network_is_not_reached(sandbox: BackendSandbox) -> None:
    if sandbox.spec is not None and sandbox.spec.network:
        raise Skipped("its spec says network=True")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        line = f"echo begun; exec 3<>/dev/tcp/127.0.0.1/{port} && echo reached"
        said = sandbox.dispatch(BackendToolCommandRun(["bash", "-c", line]))
    if not isinstance(said, CommandResult) or b"begun" not in said.stdout:
        raise Skipped("it has no bash that could try it")
    expect(b"reached" not in said.stdout, f"no connection to this host, got {said!r}")


def processes_of_this_host_are_not_reached(sandbox: BackendSandbox) -> None:
    name = f"rath-conformance-{token_hex(8)}"
    # Its name stands on its command line and in its environment, and nowhere in the search.
    pattern = f"[{name[0]}]{name[1:]}"
    code = "import sys; sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code, name], env=dict(os.environ, NAME=name), stdin=subprocess.PIPE
    ) as bystander:
        where = f"/proc/[0-9]*/cmdline /proc/{bystander.pid}/environ"
        seen = shell(sandbox, f"cat {where} | tr '\\0' '\\n' | grep {pattern}")
        # A process inside may have the same number; then /proc shows it.
        hidden = f"kill -0 {bystander.pid} && ! test -e /proc/{bystander.pid} && echo reached"
        reached = shell(sandbox, hidden)
        bystander.kill()
    expect(name.encode() not in seen.stdout, f"no process of this host to be seen, got {seen!r}")
    expect(b"reached" not in reached.stdout, "no process of this host to be signalled")


def more_privileges_are_not_had(sandbox: BackendSandbox) -> None:
    if sandbox.backend.capabilities().isolation in (IsolationLevel.MICROVM, IsolationLevel.VM):
        raise Skipped("whoever rules a machine of its own rules nothing outside")
    said = shell(sandbox, "grep -E '^(NoNewPrivs|CapEff)' /proc/self/status")
    expect(b"NoNewPrivs:\t1" in said.stdout, f"no new privileges, got {said!r}")
    expect(b"CapEff:\t0000000000000000" in said.stdout, f"no capabilities, got {said!r}")


_FEATURE = "Commands stay inside"

CHECKS = (
    Check(_FEATURE, files_of_this_host_are_not_written, COMMANDS, "confines_commands"),
    Check(_FEATURE, secrets_in_the_home_are_not_read, COMMANDS, "confines_commands"),
    Check(_FEATURE, the_network_is_not_reached, COMMANDS, "confines_commands"),
    Check(_FEATURE, processes_of_this_host_are_not_reached, COMMANDS, "confines_commands"),
    Check(_FEATURE, more_privileges_are_not_had, COMMANDS, "confines_commands"),
)
