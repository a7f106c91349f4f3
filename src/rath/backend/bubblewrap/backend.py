"""The `bubblewrap` backend: commands and code in namespaces of their own, on this host."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import weakref
from dataclasses import replace
from functools import cache, partial
from typing import Any, Literal

from rath._async.runtime import runtime
from rath._core.text import decode_output
from rath.backend.abc import BackendSandboxSpec, SandboxLimits
from rath.backend.bubblewrap.command import (
    PREFIX,
    REFUSED,
    Sandboxing,
    SystemFiles,
    confinement,
    rlimit_script,
    workspace_arguments,
    workspace_refusal,
)
from rath.backend.capabilities import IsolationLevel
from rath.backend.host.backend import HostBackend
from rath.backend.host.cgroups import ControlGroup, ControlGroups
from rath.backend.host.layers import SharedJob
from rath.backend.host.paths import prune_once
from rath.backend.host.process import CommandEnd, HostCommand
from rath.backend.host.sandbox import HostSandbox
from rath.backend.host.supervisor import is_supported
from rath.backend.results import ToolExecutionFailure, ToolResult
from rath.backend.snapshots import Seed
from rath.backend.tool_types import BackendTool, BackendToolCodeRun, BackendToolCommandRun
from rath.errors import BackendError

ATTEMPT_SECONDS = 10.0
"""How long the attempt to start `bwrap` may take; it takes 20 ms where all is well."""

DEFAULT_MEMORY_BYTES = 4 << 30
"""Memory of a sandbox unless its spec says otherwise, in bytes; a guess."""

DEFAULT_PROCESSES = 512
"""Processes and threads of a sandbox at one time unless its spec says otherwise; a guess."""

_INSTALL = (
    "install it: the package is called bubblewrap on Debian, Ubuntu, Fedora, Arch, Alpine and "
    "openSUSE"
)
_ALLOW = (
    "the kernel forbids user namespaces to this user; an administrator allows them by sysctl: "
    "user.max_user_namespaces above 0, kernel.unprivileged_userns_clone=1 on older Debian, "
    "kernel.apparmor_restrict_unprivileged_userns=0 on Ubuntu (or an AppArmor profile for bwrap); "
    "in a container, its runtime must allow them too"
)
_TOO_OLD = "it is too old: version 0.8.0 or newer is needed"
_PROC = (
    "this container hides parts of /proc, so that no new one may be mounted; run the container "
    "with an unmasked /proc, such as docker run --security-opt systempaths=unconfined"
)
_HINTS = (
    ("nknown option", _TOO_OLD),
    ("mount proc", _PROC),
    ("user.max_user_namespaces", _ALLOW),
    ("namespace", _ALLOW),
    ("uid map", _ALLOW),
    ("ermission denied", _ALLOW),
    ("not permitted", _ALLOW),
)
"""What helps, by a part of the words of `bwrap`; the first that fits."""


class _Preparation:
    """What the commands of one sandbox need; its group goes with it, and with the program."""

    def __init__(self, sandboxing: Sandboxing, group: ControlGroup | None = None) -> None:
        self.sandboxing = sandboxing
        self.remove = None if group is None else weakref.finalize(self, group.remove)


class BubblewrapBackend(HostBackend):
    """Runs commands and code in namespaces of their own; needs Linux and bubblewrap 0.8.

    File operations are those of `local`, in a directory of the host. A command or a piece of code
    sees that directory, the system and the Python of this program, which it can only read, and
    nothing else of the host: no home, no other process, no network unless `spec.network` is set.

    - The workspace is `spec.working_dir`, made if missing and never removed, or a new directory
      `rath-bubblewrap-*` that is removed on closing. It has the same path inside.
    - `HOME` and `/tmp` are empty, in memory, and end with each command, as does every process.
    - `spec.limits` holds for all that runs in the sandbox at one time, 4 GiB and 512 processes by
      default, where this process may make control groups; elsewhere for each command or process:
      see `limits_by`.
    - Variables, input, deadline and output are those of `local`; a command that a signal has ended
      has 128 plus its number as exit code.
    - It never runs anything outside: where it cannot work, opening fails and says why.

    It does not promise to withstand faults of the kernel, which it shares with the host. It does
    not limit processor time before the deadline, nor disk space in the workspace, and what a
    command writes there may be run by somebody later, outside. With `spec.network` services on
    the loopback of the host are reached.
    """

    name = "bubblewrap"
    isolation = IsolationLevel.CONTAINER

    def __init__(self) -> None:
        super().__init__()
        self._preparations: weakref.WeakKeyDictionary[HostSandbox, SharedJob[_Preparation]] = (
            weakref.WeakKeyDictionary()
        )
        self._files: SystemFiles | None = None
        self._lock = threading.Lock()

    @classmethod
    def is_available(cls) -> bool:
        """Tell whether a sandbox can be made here; tries it once, within 10 seconds."""
        return cls.unavailable_reason() is None

    @classmethod
    def unavailable_reason(cls) -> str | None:
        return refusal()

    @classmethod
    def limits_by(cls) -> Literal["control groups", "resource limits"]:
        """Return what enforces `spec.limits` for this process.

        With "control groups" they hold for a sandbox as a whole. With "resource limits" memory is
        limited for each process, and the number of processes for each command, but not for root.
        """
        return "resource limits" if ControlGroups.here() is None else "control groups"

    async def aopen(self, spec: BackendSandboxSpec | None) -> HostSandbox:
        await runtime().call_in_worker(partial(_require, spec))
        return await super().aopen(spec)

    async def aopen_copy(self, seed: Seed, spec: BackendSandboxSpec | None) -> Any:
        await runtime().call_in_worker(partial(_require, spec))
        return await super().aopen_copy(seed, spec)

    async def aclose(self, native: HostSandbox) -> None:
        try:
            await super().aclose(native)
        finally:
            # Now that its processes have gone: a group with members cannot be removed. On its own,
            # so that it goes on where this is cancelled.
            preparing = self._preparations.pop(native, None)
            if preparing is not None and preparing.is_started:
                await asyncio.shield(self._remove_group(native, preparing))

    async def _remove_group(self, native: HostSandbox, preparing: SharedJob[_Preparation]) -> None:
        with contextlib.suppress(OSError, BackendError):
            preparation = await preparing.aresult(partial(self._preparation, native))
            if preparation.remove is not None:
                await runtime().call_in_worker(preparation.remove)

    async def adispatch(self, native: HostSandbox, op: BackendTool) -> ToolResult | bool:
        if not isinstance(op, BackendToolCommandRun | BackendToolCodeRun):
            return await super().adispatch(native, op)
        try:
            preparing = self._preparations.setdefault(native, SharedJob())
            await preparing.aresult(partial(self._preparation, native))
        except (OSError, BackendError) as exc:
            # Its traceback holds the sandbox, which must not keep itself alive.
            self._preparations.pop(native, None)
            if isinstance(exc, BackendError):
                raise
            raise BackendError(
                f"a sandbox could not be set up: {exc}; `rath doctor` checks what bubblewrap needs"
            ) from exc
        return await super().adispatch(native, op)

    def start_failure(self, end: CommandEnd) -> ToolExecutionFailure | None:
        # It reports an exit code only of what it has started. Outputs say nothing: a command
        # can print whatever `bwrap` might say.
        report = end.report
        if report is None or end.result.exit_code <= 0:
            return None
        if b'"exit-code"' in report and REFUSED.encode() not in report:
            return None
        message = decode_output(end.result.stderr).strip().removeprefix(PREFIX)
        message = message or f"exit code {end.result.exit_code}, no message"
        return ToolExecutionFailure("os_error", f"the sandbox could not start it: {message}", None)

    def confined(self, sandbox: HostSandbox, command: HostCommand) -> HostCommand:
        workspace = sandbox.workspace
        places = workspace_arguments([workspace.root, workspace.base], command.visible)
        sandboxing = self._preparations[sandbox].result.sandboxing
        return sandboxing.apply(command, places, directory=workspace.root)

    def _preparation(self, native: HostSandbox) -> _Preparation:
        reason, bwrap = refusal(), find_bwrap()
        if reason is not None or bwrap is None:
            raise BackendError(reason or "bwrap was removed a moment ago; install it again")
        _require_workspace(native.workspace.root)
        files = self._system_files()
        arguments = confinement(files.etc, network=native.spec.network)
        memory_bytes, processes = _limits(native.spec)
        sandboxing = Sandboxing(
            bwrap,
            arguments,
            files.filter,
            parent="process" if is_supported() else "thread",
            reports=is_supported(),
        )
        groups = ControlGroups.here()
        if groups is None:
            script = rlimit_script(memory_bytes, processes)
            return _Preparation(replace(sandboxing, rlimits=script))
        group = groups.make(memory_bytes, processes)
        return _Preparation(replace(sandboxing, entrances=group.entrances), group)

    def _system_files(self) -> SystemFiles:
        """Return the files that all sandboxes share, made at the first need."""
        with self._lock:
            # Whoever cleans up temporary directories may have taken it after some days.
            if self._files is None or not os.path.isdir(self._files.etc):
                groups = ControlGroups.here()
                if groups is not None:
                    groups.prune()
                prune_once()
                self._files = SystemFiles()
            return self._files


def _limits(spec: BackendSandboxSpec) -> tuple[int, int]:
    limits = spec.limits or SandboxLimits()
    memory_bytes, processes = limits.memory_bytes, limits.processes
    for name, value in (("memory_bytes", memory_bytes), ("processes", processes)):
        if value is not None and value < 1:
            raise ValueError(f"limits.{name} is {value}, expected at least 1, or None")
    return (
        DEFAULT_MEMORY_BYTES if memory_bytes is None else memory_bytes,
        DEFAULT_PROCESSES if processes is None else processes,
    )


def _require(spec: BackendSandboxSpec | None) -> None:
    """Refuse to open what could not run a command, or would show what it hides; blocks.

    Raises:
        BackendError: There is no bubblewrap that works, or the directory is none for a workspace.
        ValueError: A limit is no limit.
    """
    reason = refusal()
    if reason is not None:
        raise BackendError(reason)
    if spec is not None:
        _limits(spec)
        if spec.working_dir:
            _require_workspace(os.path.realpath(spec.working_dir))


def _require_workspace(root: str) -> None:
    reason = workspace_refusal(root)
    if reason is not None:
        raise BackendError(f"{root!r} cannot be the workspace of a sandbox: {reason}")


def find_bwrap() -> str | None:
    """Return the path of `bwrap`, None where there is none."""
    found = shutil.which("bwrap")
    return None if found is None else os.path.abspath(found)


def refusal() -> str | None:
    """Return why no sandbox can be made here and what helps, None where one can; blocks once."""
    if sys.platform != "linux":
        return f"the bubblewrap backend needs Linux, this is {sys.platform}; use another backend"
    bwrap = find_bwrap()
    if bwrap is None:
        return f"the bubblewrap backend needs the program bwrap, which is not on PATH; {_INSTALL}"
    return _attempt_refusal(bwrap, os.geteuid())


@cache
def _attempt_refusal(bwrap: str, uid: int) -> str | None:
    """Run `bwrap` as a sandbox would, once for each path and user of this process."""
    try:
        with tempfile.TemporaryDirectory(prefix="rath-probe-") as directory:
            status, output = _attempt(bwrap, directory)
    except OSError as exc:
        return f"the bubblewrap backend could not try {bwrap}: {exc}; see that it can be executed"
    if status == 0:
        return None
    message = output.strip().removeprefix(PREFIX) or f"status {status}, no message"
    hint = next(
        (hint for part, hint in _HINTS if part in message), f"run {bwrap} by hand to see why"
    )
    return f"the bubblewrap backend cannot start {bwrap} here ({message}): {hint}"


def _attempt(bwrap: str, directory: str) -> tuple[int, str]:
    """Return how `true` ended inside, and what it printed on stderr."""
    files = SystemFiles()
    command = Sandboxing(bwrap, confinement(files.etc, network=False), files.filter).apply(
        HostCommand(["/bin/sh", "-c", "exit 0"], directory, {}),
        workspace_arguments([directory], ()),
        directory=directory,
    )
    try:
        # A file and no pipe: what a broken program leaves behind may hold a pipe open for ever.
        with tempfile.TemporaryFile() as stderr:
            status = _run(command, stderr.fileno())
            stderr.seek(0)
            return status, stderr.read(1000).decode("utf-8", "replace")
    finally:
        files.remove()


def _run(command: HostCommand, stderr: int) -> int:
    process = subprocess.Popen(
        list(command.argv),
        cwd=command.cwd,
        env=dict(command.env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=stderr,
        start_new_session=True,
    )
    try:
        return process.wait(ATTEMPT_SECONDS)
    except subprocess.TimeoutExpired:
        os.write(stderr, f"no end within {ATTEMPT_SECONDS:g} s".encode())
        return -signal.SIGKILL
    finally:
        # Before it is buried, or right after: what it left has its number still.
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
