"""The `local` backend: tools run as processes of this host, in a directory of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial

from rath._async.runtime import runtime
from rath._core.text import decode_output
from rath.backend.abc import Backend, BackendSandbox, BackendSandboxSpec, SandboxIdentity
from rath.backend.capabilities import Capabilities, IsolationLevel
from rath.backend.files import FileOperations, os_failure
from rath.backend.paths import OutsideWorkspace, Workspace
from rath.backend.process import DEFAULT_TIMEOUT, Command, Ended, run_process
from rath.backend.results import (
    CodeResult,
    CommandResult,
    ToolExecutionFailure,
    ToolResult,
    tool_failure_from,
)
from rath.backend.tool_types import (
    BackendTool,
    BackendToolCodeRun,
    BackendToolCommandRun,
    BackendToolFilesExists,
    BackendToolFilesList,
    BackendToolFilesRead,
    BackendToolFilesWrite,
)
from rath.errors import BackendError, UnsupportedBackendTool

INHERITED = frozenset(
    {
        "HOME", "LANG", "LANGUAGE", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER",
        "VIRTUAL_ENV",
    }
)  # fmt: skip
"""Variables of this process that commands see, with all `LC_*`; keys and tokens stay out."""


@dataclass(frozen=True, slots=True)
class LocalSandbox:
    """An open sandbox: its workspace, and the variables of its spec."""

    workspace: Workspace
    env: Mapping[str, str] = field(repr=False)

    @property
    def handle(self) -> str:
        """The directory as it was given."""
        return self.workspace.handle


class LocalBackend(Backend):
    """Runs tools on this host, as the user that runs this program.

    File operations and the `cwd` of commands stay inside the workspace, whatever `..` and links
    say. **A command or a piece of code is not confined**: it can read, write and reach whatever
    this user can. Use a backend with stronger isolation for code that you do not trust.

    - The workspace is `spec.working_dir`, made if missing and never removed, or a new directory
      `rath-local-*` that is removed on closing.
    - Commands see a few variables of this process (`INHERITED`), then `spec.env`, then their own
      `env`. Their input is empty unless given. They end after 120 s unless they say otherwise.
    - A command is over when its process has ended; what it left running in its process group is
      killed then. A server must be started with `setsid` to live on.
    - Of stdout and stderr the first and the last 512 KiB are kept. A file of more than 8 MiB is
      not read, the result says so.
    """

    name = "local"

    def __init__(self) -> None:
        self._files = FileOperations()
        self._open: list[LocalSandbox] = []

    @classmethod
    def is_available(cls) -> bool:
        """Tell whether this is a POSIX system: elsewhere its promises cannot be kept."""
        return os.name == "posix"

    @classmethod
    def capabilities(cls) -> Capabilities:
        return Capabilities(
            isolation=IsolationLevel.PROCESS,
            supports_command=True,
            supports_filesystem=True,
            supports_code_interpreter=True,
            cold_start_ms_p50=10,
        )

    @classmethod
    def supported_calls(cls) -> frozenset[type[BackendTool]]:
        return _SUPPORTED

    def sandbox_count(self) -> int:
        """Return how many different workspaces are open."""
        return len({sandbox.handle for sandbox in list(self._open)})

    def adopt(self, sandbox: BackendSandbox) -> LocalSandbox:
        return LocalSandbox(Workspace.at(sandbox.handle), _variables(sandbox.spec))

    def identity(self, sandbox: BackendSandbox) -> SandboxIdentity:
        native: LocalSandbox | None = sandbox.native
        if native is not None:
            root = native.workspace.root
        else:
            given = sandbox.spec.working_dir if sandbox.spec is not None else None
            root = os.path.realpath(given) if given else sandbox.handle
        isolation = self.capabilities().isolation.value
        return SandboxIdentity(self.name, sandbox.handle, isolation, root, root)

    async def aopen(self, spec: BackendSandboxSpec | None) -> LocalSandbox:
        opening = runtime().start_in_worker(partial(_open, spec))
        try:
            sandbox = await asyncio.wrap_future(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_remove_unwanted)
            raise
        self._open.append(sandbox)
        return sandbox

    async def aclose(self, native: LocalSandbox) -> None:
        if native in self._open:
            self._open.remove(native)
        await runtime().call_in_worker(partial(_remove_owned, native))

    async def adispatch(self, native: LocalSandbox, op: BackendTool) -> ToolResult | bool:
        match op:
            case BackendToolCommandRun():
                return await _run_command(native, op)
            case BackendToolCodeRun():
                return await _run_code(native, op)
            case (
                BackendToolFilesRead()
                | BackendToolFilesWrite()
                | BackendToolFilesList()
                | BackendToolFilesExists()
            ):
                run = partial(self._files.run, native.workspace, op)
                return await runtime().call_in_worker(run)
            case _:
                raise UnsupportedBackendTool(type(op), self.name)


_SUPPORTED: frozenset[type[BackendTool]] = frozenset(
    {
        BackendToolCodeRun,
        BackendToolCommandRun,
        BackendToolFilesExists,
        BackendToolFilesList,
        BackendToolFilesRead,
        BackendToolFilesWrite,
    }
)


def _variables(spec: BackendSandboxSpec | None) -> Mapping[str, str]:
    return dict(spec.env) if spec is not None and spec.env is not None else {}


def _open(spec: BackendSandboxSpec | None) -> LocalSandbox:
    given = spec.working_dir if spec is not None else None
    try:
        if given:
            os.makedirs(given, exist_ok=True)
            workspace = Workspace.at(given)
        else:
            workspace = Workspace.at(tempfile.mkdtemp(prefix="rath-local-"), is_owned=True)
    except OSError as exc:
        raise BackendError(
            f"cannot open a local sandbox in {given or tempfile.gettempdir()!r}: {exc.strerror}; "
            "give a working_dir that is a directory or can be made one"
        ) from exc
    return LocalSandbox(workspace, _variables(spec))


def _remove_owned(sandbox: LocalSandbox) -> None:
    if sandbox.workspace.is_owned:
        shutil.rmtree(sandbox.workspace.root, ignore_errors=True)


def _remove_unwanted(opening: Future[LocalSandbox]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        _remove_owned(opening.result())


def _environment(*added: Mapping[str, str] | None) -> dict[str, str]:
    """Return what a command sees: the few inherited variables, then each of `added` in turn."""
    variables = {
        name: value
        for name, value in os.environ.items()
        if name in INHERITED or name.startswith("LC_")
    }
    for more in added:
        variables.update(more or {})
    return variables


async def _run_command(sandbox: LocalSandbox, op: BackendToolCommandRun) -> ToolResult:
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
    env = _environment(sandbox.env, op.env)
    ended = await _run(Command(argv, cwd, env, stdin=op.stdin, timeout=op.timeout))
    if isinstance(ended, ToolExecutionFailure):
        return ended
    return CommandResult(ended.exit_code, ended.stdout, ended.stderr, ended.elapsed_ms)


async def _run_code(sandbox: LocalSandbox, op: BackendToolCodeRun) -> ToolResult:
    if op.language != "python":
        message = f"the local backend runs only 'python' code, not {op.language!r}; use a command"
        return ToolExecutionFailure("unsupported_tool", message, op.language)
    root = sandbox.workspace.root
    script = os.path.join(root, f".rath_code_{os.urandom(8).hex()}.py")
    writing = runtime().start_in_worker(partial(_write_script, script, op.code))
    try:
        await asyncio.wrap_future(writing)
        # Unbuffered, so that what was printed before a timeout is not lost.
        argv = [sys.executable, "-u", script]
        ended = await _run(Command(argv, root, _environment(sandbox.env), timeout=op.timeout))
    except (OSError, ValueError) as exc:
        return os_failure(exc, root)
    finally:
        # At once if it was written; if this was cancelled before, as soon as it is.
        writing.add_done_callback(lambda _: _remove_script(script))
    if isinstance(ended, ToolExecutionFailure):
        return ended
    error = None
    if ended.exit_code != 0:
        error = decode_output(ended.stderr) or f"the code ended with exit code {ended.exit_code}"
    return CodeResult(None, ended.stdout, ended.stderr, error)


async def _run(command: Command) -> Ended | ToolExecutionFailure:
    try:
        ended = await run_process(command)
    except OSError as exc:
        return os_failure(exc, str(exc.filename or command.argv[0]))
    except (TypeError, ValueError) as exc:
        return tool_failure_from("unexpected", exc)
    if not ended.timed_out:
        return ended
    limit = DEFAULT_TIMEOUT if command.timeout is None else command.timeout
    printed = decode_output(ended.stdout) + decode_output(ended.stderr)
    return ToolExecutionFailure(
        "timeout",
        f"it did not end within {limit:g} s and was ended with its child processes"
        + ("; detail is what it had printed" if printed else ""),
        printed or None,
    )


def _write_script(path: str, code: str) -> None:
    content = code.encode()
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
        file.write(content)


def _remove_script(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)
