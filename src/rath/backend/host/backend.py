"""The base of `local` and `bubblewrap`: a directory of this host, files and processes in it."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import ClassVar

from rath._async.runtime import runtime
from rath._core.text import decode_output
from rath.backend.abc import Backend, BackendSandbox, BackendSandboxSpec, SandboxIdentity
from rath.backend.capabilities import Capabilities, IsolationLevel
from rath.backend.changes import manifest_digest
from rath.backend.file_tools import OutsideWorkspace, os_failure
from rath.backend.host.changes import run_observed
from rath.backend.host.files import CommitPoint, run_host_tool
from rath.backend.host.layers import CopyFailed
from rath.backend.host.paths import Workspace, new_directory, prune_once, real_root
from rath.backend.host.process import (
    DEFAULT_TIMEOUT,
    CommandEnd,
    HostCommand,
    environment,
    run_process,
)
from rath.backend.host.sandbox import DirectorySandbox, HostSandbox, LayeredSandbox, remove_owned
from rath.backend.host.scan import start_of_tree
from rath.backend.host.snapshots import TREES, HostSnapshot, freeze_tree, initial_snapshot
from rath.backend.results import (
    CodeResult,
    CommandResult,
    ToolExecutionFailure,
    ToolResult,
    timeout_failure,
    tool_failure_from,
)
from rath.backend.snapshots import Seed, UnopenedFiles
from rath.backend.start import WorkspaceStart
from rath.backend.tool_types import (
    ALL_CALLS,
    BackendTool,
    BackendToolCodeRun,
    BackendToolCommandRun,
    FileTool,
)
from rath.errors import BackendError, UnsupportedBackendTool

GIVE_UP_SECONDS = 0.5
"""How long a cancelled file tool may take to remove what it had written; a guess."""


class HostBackend(Backend):
    """A directory of this host is the workspace; how processes are confined, a subclass says."""

    reads_parts = True

    isolation: ClassVar[IsolationLevel]
    """How far commands are apart from the host; above `PROCESS` they are confined."""

    mounts_layers: ClassVar[bool] = True
    """Whether workspaces of their own are overlays where that is possible, or always copies."""

    def __init__(self) -> None:
        self._open: list[HostSandbox] = []
        self._unopened: UnopenedFiles[HostSnapshot] = UnopenedFiles()

    @classmethod
    def capabilities(cls) -> Capabilities:
        return Capabilities(
            isolation=cls.isolation,
            supports_command=True,
            supports_filesystem=True,
            supports_code_interpreter=True,
            cold_start_ms_p50=10,
            supports_workspace_copy=True,
            observes_effects=True,
            confines_commands=cls.isolation is not IsolationLevel.PROCESS,
        )

    @classmethod
    def supported_calls(cls) -> frozenset[type[BackendTool]]:
        return ALL_CALLS

    @abstractmethod
    def confined(self, sandbox: HostSandbox, command: HostCommand) -> HostCommand:
        """Return the command that runs `command` with the confinement of this backend.

        Files that `command.visible` names lie outside the workspace, and it must see them.
        """

    def start_failure(self, end: CommandEnd) -> ToolExecutionFailure | None:
        """Return why a command was never started, where what confines it has ended instead."""
        return None

    def sandbox_count(self) -> int:
        """Return how many different workspaces are open."""
        return len({sandbox.handle for sandbox in list(self._open)})

    def adopt(self, sandbox: BackendSandbox) -> HostSandbox:
        return DirectorySandbox(Workspace.at(sandbox.handle), sandbox.spec)

    def identity(self, sandbox: BackendSandbox) -> SandboxIdentity:
        native: HostSandbox | None = sandbox.native
        if native is not None:
            root, layer = native.workspace.root, native.layer_kind
        else:
            spec = sandbox.spec if sandbox.origin is None else None
            given = spec.working_dir if spec is not None else None
            root, layer = real_root(given) if given else sandbox.handle, None
        isolation = self.capabilities().isolation.value
        return SandboxIdentity(self.name, sandbox.handle, isolation, root, root, layer)

    def canonical_path(self, sandbox: BackendSandbox, path: str) -> str:
        """Return the real path of a file, as the file tools find it: links are resolved.

        The files of a workspace that begins with those of another are there once it is open;
        until then all its paths have one name.
        """
        native: HostSandbox | None = sandbox.native
        if native is not None:
            return native.workspace.canonical(path)
        given = None if sandbox.spec is None else sandbox.spec.working_dir
        if sandbox.origin is not None:
            return ""
        if not given:
            return super().canonical_path(sandbox, path)
        return Workspace.at(given).canonical(path)

    def workspace_directory(self, sandbox: BackendSandbox) -> str | None:
        if sandbox.origin is not None:
            return None
        native: HostSandbox | None = sandbox.native
        if native is not None:
            return None if native.workspace.is_owned else native.workspace.base
        given = sandbox.spec.working_dir if sandbox.spec is not None else None
        return os.path.abspath(os.path.expanduser(given)) if given else None

    async def aopen(self, spec: BackendSandboxSpec | None) -> HostSandbox:
        opening = runtime().start_in_worker(
            partial(self._open_directory, spec or BackendSandboxSpec())
        )
        try:
            sandbox = await asyncio.wrap_future(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_remove_unwanted)
            raise
        self._open.append(sandbox)
        return sandbox

    async def aclose(self, native: HostSandbox) -> None:
        if native in self._open:
            self._open.remove(native)
        await native.leftovers.aend()
        try:
            await native.aclose()
        except CopyFailed as exc:
            raise BackendError(
                f"the sandbox {native.handle!r} is closed, and its files stay, since forks that "
                f"need them could not get copies: {exc}; free space, and remove them by hand "
                "when no fork needs them"
            ) from exc

    async def adispatch(self, native: HostSandbox, op: BackendTool) -> ToolResult | bool:
        try:
            if op.read_only:
                async with native.reading():
                    return await self._run_op(native, op)
            async with native.writing():
                return await run_observed(
                    native.watched_tree(),
                    op,
                    partial(self._run_op, native, op),
                    policy=native.effects,
                    leftovers=native.leftovers,
                )
        except CopyFailed as exc:
            return copy_failure(exc)
        finally:
            if not (op.read_only or native.leftovers.is_empty or runtime().is_closing):
                # Frozen while the operation ran: what it has left running would change that.
                for snapshot in TREES.exposed(native.tree):
                    runtime().submit(snapshot.asecure, label=f"copying {native.handle}")

    async def aworkspace_digest(self, native: HostSandbox) -> str | None:
        try:
            async with native.reading():
                door = native.workspace.door
                if not await runtime().call_in_worker(partial(os.path.isdir, door)):
                    return None
                scans = native.watched_tree().scans(native.effects)

                def digest() -> str | None:
                    manifest = scans.manifest()
                    return None if manifest is None else manifest_digest(manifest)

                return await runtime().call_in_worker(digest)
        except CopyFailed as exc:
            raise BackendError(
                f"the files of {native.handle!r} are lost: {exc}; go on from an earlier session, "
                "or place this one again"
            ) from exc

    async def astart(self, native: HostSandbox) -> WorkspaceStart:
        if not native.effects.is_on:
            return WorkspaceStart(reason="the policy of effects says is_on=False")
        try:
            async with native.reading():
                door = native.workspace.door
                return await runtime().call_in_worker(partial(start_of_tree, door, native.effects))
        except (CopyFailed, OSError) as exc:
            return WorkspaceStart(reason=f"it could not be read: {exc}")

    def freeze(self, sandbox: BackendSandbox) -> HostSnapshot:
        """Return the files of its workspace as they are now; O(1), on any thread.

        What is not open yet begins with a directory that is there, with the files that its origin
        gives, or with none.

        Raises:
            BackendSandboxClosed: It was closed.
            BackendError: Other file systems are mounted in its workspace.
        """
        native: HostSandbox | None = sandbox.native
        if native is not None:
            return native.freeze(self._unopened.lineage(sandbox))
        if sandbox.closed:
            raise sandbox.closed_error()
        given = sandbox.spec.working_dir if sandbox.spec is not None else None
        if sandbox.origin is None and given:
            root = real_root(given)
            return freeze_tree(TREES.at(root), root, None)
        return self._unopened.freeze(sandbox, initial_snapshot)

    async def aopen_copy(self, seed: Seed, spec: BackendSandboxSpec | None) -> HostSandbox:
        sandbox = await LayeredSandbox.aopened(seed, spec, may_mount=self.mounts_layers)
        self._open.append(sandbox)
        return sandbox

    async def _run_op(self, native: HostSandbox, op: BackendTool) -> ToolResult | bool:
        if isinstance(op, BackendToolCommandRun):
            return await self._run_command(native, op)
        if isinstance(op, BackendToolCodeRun):
            return await run_code(native, op, partial(self._run, native))
        if isinstance(op, FileTool):
            return await self._run_file_tool(native, op)
        raise UnsupportedBackendTool(type(op), self.name)

    async def _run_file_tool(self, native: HostSandbox, op: FileTool) -> ToolResult | bool:
        """Run it on a worker; a cancellation waits for the end of what cannot be given up."""
        commit = CommitPoint()
        run = partial(run_host_tool, native.workspace, op, commit)
        running = asyncio.wrap_future(runtime().start_in_worker(run))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            running.add_done_callback(_take_result)
            timeout = GIVE_UP_SECONDS if commit.abandon() else None
            if not op.read_only:
                await _wait_for(running, timeout)
            raise

    async def _run_command(self, sandbox: HostSandbox, op: BackendToolCommandRun) -> ToolResult:
        workspace = sandbox.workspace
        cwd = workspace.root
        try:
            if op.cwd is not None:
                cwd = await runtime().call_in_worker(partial(workspace.directory, op.cwd))
        except OutsideWorkspace as exc:
            return ToolExecutionFailure("path_outside_workspace", str(exc), op.cwd)
        except (OSError, ValueError) as exc:
            return os_failure(exc, str(op.cwd))
        argv = ["/bin/sh", "-c", op.cmd] if isinstance(op.cmd, str) else list(op.cmd)
        env = environment(sandbox.env, op.env)
        command = HostCommand(argv, cwd, env, stdin=op.stdin, timeout=op.timeout)
        return await self._run(sandbox, command)

    async def _run(
        self, sandbox: HostSandbox, command: HostCommand
    ) -> CommandResult | ToolExecutionFailure:
        try:
            end = await run_process(
                sandbox.entering(self.confined(sandbox, command)),
                leftovers=sandbox.leftovers,
            )
        except OSError as exc:
            return os_failure(exc, str(exc.filename or command.argv[0]))
        except (TypeError, ValueError) as exc:
            return tool_failure_from("unexpected", exc)
        if end.timed_out:
            return deadline_failure(end, command.timeout)
        return self.start_failure(end) or end.result

    def _open_directory(self, spec: BackendSandboxSpec) -> HostSandbox:
        given = spec.working_dir
        prune_once()
        try:
            if given:
                os.makedirs(os.path.expanduser(given), exist_ok=True)
                workspace = Workspace.at(given)
            else:
                made = new_directory(self.name)
                workspace = Workspace.at(made, is_owned=True)
        except OSError as exc:
            raise BackendError(
                f"cannot open a {self.name} sandbox in {given or tempfile.gettempdir()!r}: "
                f"{exc.strerror}; give a working_dir that is a directory or can be made one"
            ) from exc
        return DirectorySandbox(workspace, spec)


_RUNS_ON = "could not be ended as a whole: something that it started may still run"


def deadline_failure(end: CommandEnd, timeout: float | None) -> ToolExecutionFailure:
    """Return the failure of a command that was ended at its deadline."""
    printed = decode_output(end.result.stdout) + decode_output(end.result.stderr)
    outcome = "was ended with its child processes" if end.has_exited else _RUNS_ON
    return timeout_failure(DEFAULT_TIMEOUT if timeout is None else timeout, printed, outcome)


def copy_failure(exc: CopyFailed) -> ToolExecutionFailure:
    """Return what is said where frozen files could not be kept apart from an operation."""
    message = (
        f"nothing was done: somebody holds the files as they are, and {exc}; free space, "
        "make the file readable or remove it from outside, or close the fork that holds them"
    )
    return ToolExecutionFailure("workspace_copy_failed", message, exc.path)


def _take_result(running: asyncio.Future[ToolResult | bool]) -> None:
    if not running.cancelled():
        running.exception()


async def _wait_for(running: asyncio.Future[ToolResult | bool], timeout: float | None) -> None:
    """Wait for a worker, `timeout` seconds at most; cancelled again, only where there is one."""
    while not running.done():
        try:
            await asyncio.wait([running], timeout=timeout)
        except asyncio.CancelledError:
            if timeout is None:
                continue  # a rename, and it is told what it did
            raise
        if timeout is not None:
            return


def _remove_unwanted(opening: Future[HostSandbox]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        workspace = opening.result().workspace
        if workspace.is_owned:
            remove_owned(workspace.root)


Run = Callable[[HostCommand], Awaitable[CommandResult | ToolExecutionFailure]]

_SUFFIXES = {"python": ".py", "bash": ".sh", "javascript": ".js"}
_ALIASES = {"js": "javascript", "node": "javascript"}
_PROGRAMS = {"bash": "bash", "javascript": "node"}


async def run_code(sandbox: HostSandbox, op: BackendToolCodeRun, run: Run) -> ToolResult:
    """Run a piece of code by `run`, which starts its interpreter."""
    env = environment(sandbox.env)
    language = _ALIASES.get(op.language, op.language)
    interpreter = _interpreter(language, env)
    if interpreter is None:
        there = ", ".join(repr(known) for known in _SUFFIXES if _interpreter(known, env))
        message = f"code runs here in {there}, not in {op.language!r}; use a command"
        return ToolExecutionFailure("unsupported_tool", message, op.language)
    try:
        code = op.code.encode()
    except UnicodeEncodeError as exc:
        message = f"the code is not valid Unicode: {exc.reason}"
        return ToolExecutionFailure("encode_error", message, op.language)
    root = sandbox.workspace.root
    if language == "javascript":
        # Read from its input, it finds modules from the directory that it runs in.
        ended = await run(
            HostCommand([interpreter, "-"], root, env, stdin=code, timeout=op.timeout)
        )
    else:
        if language == "python":
            env["PYTHONPATH"] = os.pathsep.join(filter(None, [root, env.get("PYTHONPATH")]))
        argv = [interpreter, "-u"] if language == "python" else [interpreter]
        ended = await _run_script(
            HostCommand(argv, root, env, timeout=op.timeout), code, _SUFFIXES[language], run
        )
    if isinstance(ended, ToolExecutionFailure):
        return ended
    error = None
    if ended.exit_code != 0:
        error = decode_output(ended.stderr) or f"the code ended with exit code {ended.exit_code}"
    return CodeResult(None, ended.stdout, ended.stderr, error, ended.stdout_full, ended.stderr_full)


def _interpreter(language: str, env: Mapping[str, str]) -> str | None:
    if language == "python" and sys.executable:
        return sys.executable
    program = "python3" if language == "python" else _PROGRAMS.get(language)
    return None if program is None else shutil.which(program, path=env.get("PATH"))


async def _run_script(
    command: HostCommand, code: bytes, suffix: str, run: Run
) -> CommandResult | ToolExecutionFailure:
    """Run `command` with the path of a script added, which nobody sees in the workspace."""
    writing = runtime().start_in_worker(partial(_write_script, code, suffix))
    try:
        script = await asyncio.wrap_future(writing)
        argv = [*command.argv, script]
        return await run(
            HostCommand(argv, command.cwd, command.env, timeout=command.timeout, visible=(script,))
        )
    except OSError as exc:
        return os_failure(exc, tempfile.gettempdir())
    finally:
        # At once if it was written; if this was cancelled before, as soon as it is.
        writing.add_done_callback(_remove_script)


def _write_script(code: bytes, suffix: str) -> str:
    directory = new_directory("code")
    # A name that no module has: the directory of a script comes first on Python's path.
    script = os.path.join(directory, f"code_{os.urandom(8).hex()}{suffix}")
    try:
        with open(script, "xb") as file:
            file.write(code)
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    return script


def _remove_script(writing: Future[str]) -> None:
    if not writing.cancelled() and writing.exception() is None:
        shutil.rmtree(os.path.dirname(writing.result()), ignore_errors=True)
