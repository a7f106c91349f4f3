"""Commands and code as operations: what was asked, and how its end is told."""

from __future__ import annotations

import asyncio
import contextlib
import math
import shlex
from typing import TYPE_CHECKING

from rath._core.text import decode_output
from rath.backend.opensandbox.answers import Answer, Printed
from rath.backend.opensandbox.defaults import (
    BUSY_WAITS,
    CLEANUP_SECONDS,
    CODE_SECONDS,
    COMMAND_SECONDS,
    LANGUAGES,
    LONGEST_SECONDS,
    ROOT,
)
from rath.backend.opensandbox.faults import Refused, RemoteFault
from rath.backend.opensandbox.paths import inside
from rath.backend.opensandbox.processes import Line, run_line
from rath.backend.results import CodeResult, CommandResult, ToolExecutionFailure, ToolResult
from rath.backend.tool_types import BackendToolCodeRun, BackendToolCommandRun

REFUSAL = "RUNTIME_ERROR"
"""Code of the API where something is wrong with the run and not with what is run."""

if TYPE_CHECKING:
    from rath.backend.opensandbox.client import Client


async def run_command(client: Client, op: BackendToolCommandRun) -> ToolResult:
    """Run a command once; raises `OutsideWorkspace` and `RemoteFault`."""
    if not isinstance(op.cmd, str) and not op.cmd:
        return ToolExecutionFailure("unexpected", "the argument list is empty; name a program")
    text = op.cmd if isinstance(op.cmd, str) else shlex.join(op.cmd)
    if "\0" in text:
        return ToolExecutionFailure("unexpected", "a command cannot hold a zero character")
    limit = _limit(op.timeout, COMMAND_SECONDS)
    cwd = ROOT if op.cwd is None else inside(op.cwd)
    line = Line(text, limit, cwd, dict(op.env or {}), op.stdin)
    try:
        ran = await run_line(client, line)
    except Refused as exc:
        if "working directory" in str(exc):
            return ToolExecutionFailure("os_error", str(exc), op.cwd)
        raise
    if ran.timed_out or ran.answer is None:
        return _timeout(limit, ran.stdout, ran.stderr)
    code = ran.answer.exit_code
    if code is not None and ran.lost is not None:
        message = f"it ended with exit code {code}, but what it printed is lost: {ran.lost}"
        return ToolExecutionFailure("sandbox_sdk_error", message, "output lost")
    if code is not None:
        full = ran.stdout_full, ran.stderr_full
        return CommandResult(code, ran.stdout, ran.stderr, ran.elapsed_ms, *full)
    return _unknown(ran.answer, "the command", ran.stdout, ran.stderr)


async def run_code(client: Client, op: BackendToolCodeRun) -> ToolResult:
    """Run code once in the interpreter of its language; raises `RemoteFault`."""
    if op.language not in LANGUAGES:
        known = ", ".join(sorted(LANGUAGES))
        message = f"there is no interpreter for {op.language!r}; take one of {known}, or a command"
        return ToolExecutionFailure("unsupported_tool", message, op.language)
    if not op.code.strip():
        return CodeResult(None, b"", b"", None)
    limit = _limit(op.timeout, CODE_SECONDS)
    printed = Printed("pieces")
    await client.start_interpreters()
    try:
        async with asyncio.timeout(limit):
            answer = await _taken(client, op, printed)
    except TimeoutError:
        await _interrupt(client, op, printed)
        return _timeout(limit, printed.stdout, printed.stderr)
    except BaseException as exc:
        if not isinstance(exc, Refused):
            await _interrupt(client, op, printed)
        raise
    if not answer.is_complete and answer.trouble is None:
        return _unknown(answer, "the code", printed.stdout, printed.stderr)
    text = "\n".join(answer.texts) or None
    error = answer.trouble.text() if answer.trouble is not None else None
    return CodeResult(text, printed.stdout, printed.stderr, error)


async def _taken(client: Client, op: BackendToolCodeRun, printed: Printed) -> Answer:
    """Run the code; while the interpreter refuses it because it is busy, ask again a little later.

    What was refused has not run, so nothing runs twice.
    """
    for wait in BUSY_WAITS:
        try:
            return await _run_once(client, op, printed)
        except Refused as exc:
            if not exc.is_busy:
                raise
        await asyncio.sleep(wait)
    return await _run_once(client, op, printed)


async def _run_once(client: Client, op: BackendToolCodeRun, printed: Printed) -> Answer:
    """Run the code; a refusal within the stream is one like any other."""
    answer = await client.run_code(op.code, op.language, printed)
    trouble = answer.trouble
    if trouble is None or trouble.name != REFUSAL or answer.is_complete:
        return answer
    raise Refused(trouble.value, status=500, code=REFUSAL)


async def _interrupt(client: Client, op: BackendToolCodeRun, printed: Printed) -> None:
    """Interrupt the code as well as it goes; its interpreter stays."""
    with contextlib.suppress(RemoteFault, TimeoutError):
        async with asyncio.timeout(CLEANUP_SECONDS):
            run_id = printed.run_id
            if run_id is None:
                # Nothing was heard of it yet; it can only be told apart where nothing else may run.
                found = await client.contexts(op.language)
                run_id = found[0] if len(found) == 1 else None
            if run_id is not None:
                await client.interrupt_code(run_id)


def _limit(asked: float | None, default: float) -> float:
    if asked is None or math.isnan(asked):
        return default
    return min(max(asked, 0.001), LONGEST_SECONDS)


def _timeout(limit: float, stdout: bytes, stderr: bytes) -> ToolExecutionFailure:
    printed = decode_output(stdout) + decode_output(stderr)
    message = f"it did not end within {limit:g} s and was ended"
    message += "; detail is what it had printed" if printed else ""
    return ToolExecutionFailure("timeout", message, printed or None)


def _unknown(answer: Answer, what: str, stdout: bytes, stderr: bytes) -> ToolExecutionFailure:
    """Return what is said of a run of which no exit code is known."""
    printed = decode_output(stdout) + decode_output(stderr)
    if answer.trouble is not None:
        text = f"the sandbox could not run {what}: {answer.trouble.text()}"
        return ToolExecutionFailure("dispatch_error", text, printed or None)
    message = (
        f"the connection ended before the sandbox said how {what} ended: it may have taken effect "
        "or not" + ("; detail is what it had printed" if printed else "")
    )
    return ToolExecutionFailure("sandbox_sdk_error", message, printed or "connection lost")
