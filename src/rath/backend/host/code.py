"""Pieces of code, run by an interpreter of this host in the workspace."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from functools import partial

from rath._async.runtime import runtime
from rath._core.text import decode_output
from rath.backend.file_tools import os_failure
from rath.backend.host.paths import new_directory
from rath.backend.host.process import Command, environment
from rath.backend.host.sandbox import HostSandbox
from rath.backend.results import CodeResult, CommandResult, ToolExecutionFailure, ToolResult
from rath.backend.tool_types import BackendToolCodeRun

Run = Callable[[Command], Awaitable[CommandResult | ToolExecutionFailure]]

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
        ended = await run(Command([interpreter, "-"], root, env, stdin=code, timeout=op.timeout))
    else:
        if language == "python":
            env["PYTHONPATH"] = os.pathsep.join(filter(None, [root, env.get("PYTHONPATH")]))
        argv = [interpreter, "-u"] if language == "python" else [interpreter]
        ended = await _run_script(
            Command(argv, root, env, timeout=op.timeout), code, _SUFFIXES[language], run
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
    command: Command, code: bytes, suffix: str, run: Run
) -> CommandResult | ToolExecutionFailure:
    """Run `command` with the path of a script added, which nobody sees in the workspace."""
    writing = runtime().start_in_worker(partial(_write_script, code, suffix))
    try:
        script = await asyncio.wrap_future(writing)
        argv = [*command.argv, script]
        return await run(
            Command(argv, command.cwd, command.env, timeout=command.timeout, visible=(script,))
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
