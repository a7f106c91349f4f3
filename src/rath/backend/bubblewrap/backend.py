"""The `bubblewrap` backend: commands and code in namespaces of their own, on this host."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from concurrent.futures import Future, wait
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from rath._async.runtime import runtime
from rath._core.text import decode_output
from rath.backend.abc import BackendSandboxSpec, SandboxLimits
from rath.backend.bubblewrap import probe, view
from rath.backend.bubblewrap.command import PREFIX, REFUSED, Rlimits, Sandboxing
from rath.backend.bubblewrap.groups import Group, Groups
from rath.backend.bubblewrap.provided import Provided
from rath.backend.capabilities import Capabilities, IsolationLevel
from rath.backend.frozen import Seed
from rath.backend.host.backend import HostBackend
from rath.backend.host.owner import prune_once
from rath.backend.host.process import Command, Ended
from rath.backend.host.sandbox import HostSandbox
from rath.backend.host.supervisor import is_supported
from rath.backend.results import ToolExecutionFailure, ToolResult
from rath.backend.tool_types import BackendTool, BackendToolCodeRun, BackendToolCommandRun
from rath.errors import BackendError

DEFAULT_MEMORY_BYTES = 4 << 30
"""Memory of a sandbox unless its spec says otherwise, in bytes; a guess."""

DEFAULT_PROCESSES = 512
"""Processes and threads of a sandbox at one time unless its spec says otherwise; a guess."""


class _Prepared:
    """What the commands of one sandbox need; its group goes with it, and with the program."""

    def __init__(
        self, native: HostSandbox, sandboxing: Sandboxing, group: Group | None = None
    ) -> None:
        # Held, so that its identity means this sandbox.
        self.native = native
        self.sandboxing = sandboxing
        self.remove = weakref.finalize(self, group.remove if group is not None else _nothing)


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

    def __init__(self) -> None:
        super().__init__()
        self._prepared: dict[int, Future[_Prepared]] = {}
        self._provided: Provided | None = None
        self._lock = threading.Lock()

    @classmethod
    def is_available(cls) -> bool:
        """Tell whether a sandbox can be made here; tries it once, within 10 seconds."""
        return cls.unavailable_reason() is None

    @classmethod
    def unavailable_reason(cls) -> str | None:
        return probe.reason_against()

    @classmethod
    def capabilities(cls) -> Capabilities:
        return Capabilities(
            isolation=IsolationLevel.CONTAINER,
            supports_command=True,
            supports_filesystem=True,
            supports_code_interpreter=True,
            cold_start_ms_p50=10,
            supports_workspace_copy=True,
            observes_effects=True,
            confines_commands=True,
        )

    @classmethod
    def limits_by(cls) -> Literal["control groups", "resource limits"]:
        """Return what enforces `spec.limits` for this process.

        With "control groups" they hold for a sandbox as a whole. With "resource limits" memory is
        limited for each process, and the number of processes for each command, but not for root.
        """
        return "resource limits" if Groups.here() is None else "control groups"

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
            # Now that its processes have gone: a group with members cannot be removed.
            prepared = self._prepared.pop(id(native), None)
            if prepared is not None:
                await runtime().call_in_worker(partial(_remove, prepared))

    async def adispatch(self, native: HostSandbox, op: BackendTool) -> ToolResult | bool:
        if not isinstance(op, BackendToolCommandRun | BackendToolCodeRun):
            return await super().adispatch(native, op)
        await self._prepare(native)
        return await super().adispatch(native, op)

    def start_failure(self, ended: Ended) -> ToolExecutionFailure | None:
        # It reports an exit code only of what it has started. Outputs say nothing: a command
        # can print whatever `bwrap` might say.
        report = ended.report
        if report is None or ended.exit_code <= 0:
            return None
        if b'"exit-code"' in report and REFUSED.encode() not in report:
            return None
        said = decode_output(ended.stderr).strip().removeprefix(PREFIX)
        words = said or f"exit code {ended.exit_code}, no message"
        return ToolExecutionFailure("os_error", f"the sandbox could not start it: {words}", None)

    def confined(self, sandbox: HostSandbox, command: Command) -> Command:
        workspace = sandbox.workspace
        places = view.workspace([workspace.root, workspace.base], command.visible)
        sandboxing = self._prepared[id(sandbox)].result().sandboxing
        return sandboxing.apply(command, places, directory=workspace.root)

    async def _prepare(self, native: HostSandbox) -> None:
        prepared = self._prepared.get(id(native))
        if prepared is None:
            prepared = runtime().start_in_worker(partial(self._new_prepared, native))
            self._prepared[id(native)] = prepared
        elif prepared.done():
            return
        try:
            # Others may wait for it too: whoever is cancelled leaves it alone.
            await asyncio.shield(asyncio.wrap_future(prepared))
        except OSError as exc:
            raise BackendError(f"a sandbox could not be set up: {exc}") from exc
        finally:
            if prepared.done() and prepared.exception() is not None:
                self._prepared.pop(id(native), None)

    def _new_prepared(self, native: HostSandbox) -> _Prepared:
        reason, bwrap = probe.reason_against(), probe.find()
        if reason is not None or bwrap is None:
            raise BackendError(reason or "bwrap was removed a moment ago; install it again")
        _require_workspace(native.workspace.root)
        files = self._files_provided()
        network = native.spec.network
        arguments = [
            *view.namespaces(network=network),
            *view.system(files.etc, network=network),
            *view.interpreter(),
        ]
        memory_bytes, processes = _limits(native.spec)
        sandboxing = Sandboxing(
            bwrap,
            arguments,
            files.filter,
            parent="process" if is_supported() else "thread",
            reports=is_supported(),
        )
        groups = Groups.here()
        if groups is None:
            rlimits = Rlimits(memory_bytes, processes)
            return _Prepared(native, replace(sandboxing, rlimits=rlimits))
        group = groups.make(memory_bytes, processes)
        return _Prepared(native, replace(sandboxing, entrances=group.entrances), group)

    def _files_provided(self) -> Provided:
        """Return the files that all sandboxes share, made at the first need."""
        with self._lock:
            # Whoever cleans up temporary directories may have taken it after some days.
            if self._provided is None or not os.path.isdir(self._provided.etc):
                groups = Groups.here()
                if groups is not None:
                    groups.prune()
                prune_once()
                self._provided = Provided()
            return self._provided


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
    reason = probe.reason_against()
    if reason is not None:
        raise BackendError(reason)
    if spec is not None:
        _limits(spec)
        if spec.working_dir:
            _require_workspace(os.path.realpath(spec.working_dir))


def _require_workspace(root: str) -> None:
    reason = view.reason_against(root)
    if reason is not None:
        raise BackendError(f"{root!r} cannot be the workspace of a sandbox: {reason}")


def _nothing() -> None:
    """Stand for the removal of a group that was never made."""


def _remove(prepared: Future[_Prepared]) -> None:
    wait([prepared])
    if prepared.exception() is None:
        prepared.result().remove()
