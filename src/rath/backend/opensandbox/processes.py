"""Commands and code in a sandbox: run with exact output, and ended with what they started.

A sandbox sends output as lines of text, which loses bytes that are no text and the end of the last
line. So the output of a command goes to files there, which are fetched afterwards.

The processes of a command are found by a variable and by these files. One that left its session,
emptied its environment and closed its input and output is not found: it goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import re
import shlex
import signal
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Literal, NamedTuple
from uuid import uuid4

from rath._core.blobs import Blob, is_digest
from rath._core.dataclasses import dataclass
from rath._core.text import decode_output
from rath.backend.opensandbox.connection import ROOT, NotReached, RemoteError, RequestRefused
from rath.backend.results import (
    PRINTED_IN_DETAIL,
    CodeResult,
    CommandResult,
    ToolExecutionFailure,
    ToolResult,
    timeout_failure,
    truncation_note,
)
from rath.backend.tool_types import BackendToolCodeRun, BackendToolCommandRun

if TYPE_CHECKING:
    from rath.backend.opensandbox.client import Client, RemoteEntry

COMMAND_SECONDS = 120.0
"""How long a command may run unless its caller says otherwise; the same as on this host."""

CODE_SECONDS = 90.0
"""How long a piece of code may run unless its caller says otherwise."""

MAX_SECONDS = 7 * 86400.0
"""The value of an endless deadline."""

BUSY_WAITS = (0.5, 1.0)
"""Waits before code is sent again that an interpreter refused because it was busy, in seconds."""

GRACE_SECONDS = 10.0
"""How much later than its deadline a command may be said to have ended; a guess for slow nets."""

CLEANUP_SECONDS = 10.0
"""How long ending a cancelled run may take."""

DIGEST_SECONDS = 30.0
"""How long the sandbox may digest output that is not fetched; a guess, some GB."""

LANGUAGES = frozenset({"bash", "go", "java", "javascript", "python", "typescript"})

MAX_OUTPUT_BYTES = 1 << 20
"""Limit of each of stdout and stderr: the first and the last half of this."""

MAX_STORED_BYTES = 16 << 20
"""Limit of the full output that is returned beside a truncated one; a longer one stays there."""

MAX_NAMES_BYTES = 64 << 10
"""Limit of the paths that one command line is given; the kernel takes 128 KiB in one argument."""

MARK = "RATH_COMMAND"
"""Variable by which the processes of a command are found."""

NOT_STARTED = 125
"""Exit code of a command whose output could not be redirected, so that it did not begin."""

RUNTIME_ERROR = "RUNTIME_ERROR"
"""Code of the API for an error of the run itself, not of the code that it runs."""

_ENDED = "was ended"
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
"""ECMA-48 control sequences, as interpreters colour their tracebacks with."""

_SIGNALS = {
    "hangup": 1, "interrupt": 2, "quit": 3, "illegal instruction": 4, "trace/breakpoint trap": 5,
    "aborted": 6, "bus error": 7, "floating point exception": 8, "killed": 9,
    "user defined signal 1": 10, "segmentation fault": 11, "user defined signal 2": 12,
    "broken pipe": 13, "alarm clock": 14, "terminated": 15,
}  # fmt: skip
"""Numbers on Linux, where sandboxes run, by the names that Go prints."""


# ---------------------------------------------------------------- output and ends


@dataclass(frozen=True, slots=True)
class RunError:
    """The error with which a run ended."""

    name: str
    value: str
    traceback: tuple[str, ...] = ()

    def text(self) -> str:
        """Return it as a person reads it: the traceback, and what is wrong."""
        head = ": ".join(part for part in (self.name, self.value) if part)
        if not self.name and self.value.isdigit():  # a shell tells nothing else
            head = f"exit code {self.value}"
        lines = _ESCAPES.sub("", "\n".join(self.traceback)).strip()
        if not lines:
            return head or "the sandbox says that it failed, and not why"
        return lines if not head or head in lines else f"{lines}\n{head}"


@dataclass(frozen=True, slots=True)
class RunEnd:
    """The end of a run."""

    is_complete: bool
    """Whether the sandbox said that it has ended."""

    error: RunError | None
    texts: tuple[str, ...] = ()
    """Values of code, in order."""

    @property
    def exit_code(self) -> int | None:
        """Status of a command, minus the number of the signal that ended it; None for unknown."""
        if self.error is None:
            return 0 if self.is_complete else None
        try:
            code = int(self.error.value)
        except ValueError:
            return None
        match = re.search(r"signal: ([a-z0-9/ ]+)", " ".join(self.error.traceback).lower())
        if code != -1 or match is None:
            return code
        return -_SIGNALS.get(match[1].strip(), signal.SIGKILL)


class TruncatedText:
    r"""The text of events, joined, without its middle where it is long.

    A server sends each line of a command without its end, and an empty one as "\n"; the last line
    has an end here, whether it had one or not.
    """

    def __init__(self, events: Literal["lines", "pieces"]) -> None:
        self._head = bytearray()
        self._tail = bytearray()
        self._n_cut = 0
        self._adds_ends = events == "lines"

    def add(self, text: str) -> None:
        """Take the next event."""
        end = "\n" if self._adds_ends and not text.endswith("\n") else ""
        data = f"{text}{end}".encode(errors="replace")
        half = MAX_OUTPUT_BYTES // 2
        room = max(half - len(self._head), 0)
        self._head += data[:room]
        self._tail += data[room:]
        if len(self._tail) > half:
            self._n_cut += len(self._tail) - half
            del self._tail[:-half]

    def data(self) -> bytes:
        """Return the text, with a note in the place of its middle."""
        note = truncation_note(self._n_cut) if self._n_cut else b""
        return bytes(self._head) + note + bytes(self._tail)


class OutputBuffer:
    """The output of a run so far, as the sandbox sends it.

    Args:
        events: "lines" where each event is a line without its end, "pieces" where text is sent as
            it was printed.
    """

    def __init__(self, events: Literal["lines", "pieces"]) -> None:
        self.run_id: str | None = None
        """By which it can be interrupted, once the sandbox has sent it."""
        self.stdout: TruncatedText = TruncatedText(events)
        self.stderr: TruncatedText = TruncatedText(events)

    def streams(self) -> Streams:
        """Return both streams as they are now."""
        return Streams(self.stdout.data(), self.stderr.data())


class Streams(NamedTuple):
    """The output of a run."""

    stdout: bytes = b""
    stderr: bytes = b""
    stdout_full: Blob | None = None
    """The full output, where `stdout` is only a part of it: with its content where that could be
    fetched, its digest and size alone where it stays in the sandbox."""

    stderr_full: Blob | None = None

    def text(self) -> str:
        """Return both as text."""
        return decode_output(self.stdout) + decode_output(self.stderr)


# ---------------------------------------------------------------- command lines


@dataclass(frozen=True, slots=True)
class CommandLine:
    """A command line and how it is run."""

    text: str
    timeout: float
    """Seconds."""

    cwd: str = ROOT
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    stdin: bytes | None = field(default=None, repr=False)
    max_output: int = MAX_OUTPUT_BYTES
    """Limit of each of stdout and stderr: the first and the last half of this."""


@dataclass(frozen=True, slots=True)
class LineEnd:
    """The end of a command line, and its output."""

    end: RunEnd | None
    """None where it was ended by us, since the sandbox had not at its deadline."""

    timed_out: bool
    elapsed_ms: float
    streams: Streams
    loss: str | None = None
    """Why its output could not be fetched, None where it was."""

    @property
    def exit_code(self) -> int | None:
        """Its status, None where that is not known."""
        return None if self.end is None else self.end.exit_code

    def reason(self) -> str:
        """Return why it failed, in short."""
        text = self.streams.stderr.decode(errors="replace").strip()[:200]
        return self.loss or text or f"exit code {self.exit_code}"


def path_batches(paths: Iterable[str]) -> Iterator[list[str]]:
    """Yield the paths in lists that, quoted, are no longer than `MAX_NAMES_BYTES`, or one path."""
    batch: list[str] = []
    n_bytes = 0
    for path in paths:
        size = len(os.fsencode(shlex.quote(path))) + 1
        if batch and n_bytes + size > MAX_NAMES_BYTES:
            yield batch
            batch, n_bytes = [], 0
        batch.append(path)
        n_bytes += size
    if batch:
        yield batch


async def run_line(client: Client, line: CommandLine) -> LineEnd:
    """Run a command line once and return its end.

    Processes that it leaves behind at its deadline, or when this is cancelled, are ended in the
    sandbox.

    Raises:
        RemoteError: It was not sent, was refused, or its end is not known.
    """
    mark = uuid4().hex
    stdin, *outputs = files = [f"{_base(mark)}.{name}" for name in ("in", "out", "err")]
    output = OutputBuffer("lines")
    source = "/dev/null"
    if line.stdin is not None:
        source = stdin
        await client.write(stdin, line.stdin, 0o600)
    # A line before it, so that nothing in the command itself can break it.
    redirect = f"exec <{source} >{outputs[0]} 2>{outputs[1]} || exit {NOT_STARTED}"
    started = time.perf_counter()
    end: RunEnd | None = None
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(line.timeout + GRACE_SECONDS):
                end = await client.run(
                    f"{redirect}\n{line.text}",
                    output,
                    cwd=line.cwd,
                    env={**line.env, MARK: mark},
                    timeout=line.timeout,
                )
    except (NotReached, RequestRefused):
        if line.stdin is not None:
            with contextlib.suppress(RemoteError):
                await client.remove([stdin])
        raise
    except BaseException:
        await _end(client, output, mark, files)
        raise
    elapsed = time.perf_counter() - started
    # The clock of the sandbox started later than ours, so an earlier end was not the deadline's.
    timed_out = end is None or (end.exit_code == -9 and elapsed >= line.timeout)
    if timed_out:
        await _end(client, output, mark)
    streams, loss = Streams(), None
    try:
        streams = await _fetch(client, stdin, outputs, line.max_output)
    except RequestRefused as exc:
        streams = output.streams()
        was_started = end is None or end.exit_code != NOT_STARTED
        loss = str(exc) if was_started or not exc.is_missing_file else None
    except RemoteError as exc:
        loss = str(exc)
    return LineEnd(end, timed_out, elapsed * 1000.0, streams, loss)


async def _fetch(client: Client, stdin: str, outputs: list[str], max_output: int) -> Streams:
    """Return the output, and remove its files unless they were too long to fetch."""
    entries = await client.info(outputs)
    (out, out_full), (err, err_full) = [
        await _content(client, entry, max_output) for entry in entries
    ]
    short = [entry.path for entry in entries if entry.size <= max(MAX_STORED_BYTES, max_output)]
    with contextlib.suppress(RemoteError):
        await client.remove([stdin, *short])
    return Streams(out, err, out_full, err_full)


async def _content(
    client: Client, entry: RemoteEntry, max_output: int
) -> tuple[bytes, Blob | None]:
    """Return a file, or its two ends with a note between them and its full content."""
    path, size, half = entry.path, entry.size, max_output // 2
    if size <= max(MAX_STORED_BYTES, max_output):
        data = await client.read(path) if size else b""
        if len(data) <= max_output:
            return data, None
        text = data[:half] + truncation_note(len(data) - 2 * half) + data[-half:]
        return text, Blob.from_bytes(data, keep=MAX_STORED_BYTES)
    head = await client.read(path, 0, half - 1)
    tail = await client.read(path, size - half, size - 1)
    full = None
    # What still runs may print more, which belongs to neither.
    digest_line = f"head -c {size} {path} | sha256sum"
    output = OutputBuffer("lines")
    with contextlib.suppress(RemoteError):
        await client.run(digest_line, output, timeout=DIGEST_SECONDS)
        digest = output.stdout.data()[:64].decode(errors="replace")
        full = Blob(digest, size) if is_digest(digest) else None
    return head + truncation_note(size - 2 * half, f"; all of it is in {path}") + tail, full


async def _end(
    client: Client, output: OutputBuffer, mark: str, files: list[str] | None = None
) -> None:
    """End a command and the processes that it started, as well as it goes, and remove `files`."""
    with contextlib.suppress(RemoteError, TimeoutError):
        async with asyncio.timeout(CLEANUP_SECONDS):
            if output.run_id is not None:
                with contextlib.suppress(RemoteError):
                    await client.interrupt_command(output.run_id)
            await client.run(_kill_line(mark), OutputBuffer("lines"), timeout=CLEANUP_SECONDS)
            if files is not None:
                await client.remove(files)


def _base(mark: str) -> str:
    """Return how the names of the files of a command begin, in the sandbox."""
    return f"/tmp/.rath-{mark}"


def _kill_line(mark: str) -> str:
    """Return the command line that kills each process with the mark, in whatever group.

    Or with its files open: a process with another environment still has the output of its parent.
    """
    return (
        f"marked() {{ grep -lsF {MARK}={mark} /proc/[0-9]*/environ; "
        "ls -l /proc/[0-9]*/fd 2>/dev/null | while read -r line; do case $line in "
        f'/proc/*/fd:) at=$line;; *" -> {_base(mark)}."*) echo "$at";; esac; done; }}\n'
        "for each in $(marked); do "
        'each=${each#/proc/}; kill -9 "${each%%/*}" 2>/dev/null; done; true'
    )


# ---------------------------------------------------------------- operations


async def run_command(client: Client, op: BackendToolCommandRun, cwd: str) -> ToolResult:
    """Run a command once, in a directory of the sandbox; raises `RemoteError`."""
    if not isinstance(op.cmd, str) and not op.cmd:
        return ToolExecutionFailure("unexpected", "the argument list is empty; name a program")
    text = op.cmd if isinstance(op.cmd, str) else shlex.join(op.cmd)
    if "\0" in text:
        return ToolExecutionFailure("unexpected", "a command cannot hold a zero character")
    limit = _limit(op.timeout, COMMAND_SECONDS)
    try:
        ran = await run_line(client, CommandLine(text, limit, cwd, dict(op.env or {}), op.stdin))
    except RequestRefused as exc:
        if "working directory" in str(exc):
            return ToolExecutionFailure("os_error", str(exc), op.cwd)
        raise
    if ran.timed_out or ran.end is None:
        return timeout_failure(limit, ran.streams.text(), _ENDED)
    code, streams = ran.exit_code, ran.streams
    if code is None:
        return _unknown(ran.end, "the command", streams)
    if ran.loss is not None:
        message = f"it ended with exit code {code}, but what it printed is lost: {ran.loss}"
        return ToolExecutionFailure("sandbox_sdk_error", message, "output lost")
    full = streams.stdout_full, streams.stderr_full
    return CommandResult(code, streams.stdout, streams.stderr, ran.elapsed_ms, *full)


async def run_code(client: Client, op: BackendToolCodeRun) -> ToolResult:
    """Run code once in the interpreter of its language; raises `RemoteError`."""
    if op.language not in LANGUAGES:
        languages = ", ".join(sorted(LANGUAGES))
        message = (
            f"there is no interpreter for {op.language!r}; take one of {languages}, or a command"
        )
        return ToolExecutionFailure("unsupported_tool", message, op.language)
    if not op.code.strip():
        return CodeResult(None, b"", b"", None)
    limit = _limit(op.timeout, CODE_SECONDS)
    output = OutputBuffer("pieces")
    await client.start_interpreters()
    try:
        async with asyncio.timeout(limit):
            end = await _run_when_free(client, op, output)
    except TimeoutError:
        await _interrupt(client, op, output)
        return timeout_failure(limit, output.streams().text(), _ENDED)
    except BaseException as exc:
        if not isinstance(exc, RequestRefused):
            await _interrupt(client, op, output)
        raise
    streams = output.streams()
    if not end.is_complete and end.error is None:
        return _unknown(end, "the code", streams)
    text = "\n".join(end.texts) or None
    error = end.error.text() if end.error is not None else None
    return CodeResult(text, streams.stdout, streams.stderr, error)


async def _run_when_free(client: Client, op: BackendToolCodeRun, output: OutputBuffer) -> RunEnd:
    """Run the code; while the interpreter refuses it because it is busy, ask again a little later.

    Refused code has not run, so nothing runs twice.
    """
    for wait in (*BUSY_WAITS, None):
        try:
            end = await client.run_code(op.code, op.language, output)
            error = end.error
            if error is not None and error.name == RUNTIME_ERROR and not end.is_complete:
                # A refusal within the stream is one like any other.
                raise RequestRefused(error.value, status=500, code=RUNTIME_ERROR)
            return end
        except RequestRefused as exc:
            if wait is None or not exc.is_busy:
                raise
        await asyncio.sleep(wait)
    raise AssertionError("the last attempt returns or raises")


async def _interrupt(client: Client, op: BackendToolCodeRun, output: OutputBuffer) -> None:
    """Interrupt the code as well as it goes; its interpreter stays."""
    with contextlib.suppress(RemoteError, TimeoutError):
        async with asyncio.timeout(CLEANUP_SECONDS):
            run_id = output.run_id
            if run_id is None:
                # Nothing was heard of it yet; it can only be told apart where nothing else may run.
                ids = await client.contexts(op.language)
                run_id = ids[0] if len(ids) == 1 else None
            if run_id is not None:
                await client.interrupt_code(run_id)


def _limit(timeout: float | None, default: float) -> float:
    if timeout is None or math.isnan(timeout):
        return default
    return min(max(timeout, 0.001), MAX_SECONDS)


def _unknown(end: RunEnd, operation: str, streams: Streams) -> ToolExecutionFailure:
    """Return the failure of a run of which no exit code is known."""
    text = streams.text()
    if end.error is not None:
        message = f"the sandbox could not run {operation}: {end.error.text()}"
        return ToolExecutionFailure("dispatch_error", message, text or None)
    message = (
        f"the connection ended before the sandbox said how {operation} ended: it may have taken "
        f"effect or not{PRINTED_IN_DETAIL if text else ''}"
    )
    return ToolExecutionFailure("sandbox_sdk_error", message, text or "connection lost")
