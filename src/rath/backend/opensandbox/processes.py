"""Command lines in a sandbox: run with exact output, and ended with what they started.

A sandbox sends what is printed as lines of text, which loses bytes that are no text and the end
of the last line. So output goes to files there, which are fetched afterwards.

What a command started is found by a variable and by these files. A process that left its session,
emptied its environment and closed its input and output is not found: it goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple
from uuid import uuid4

from rath._core.blobs import Blob, is_digest
from rath.backend.opensandbox.answers import Answer, Entry, Printed, cut_note
from rath.backend.opensandbox.defaults import (
    CLEANUP_SECONDS,
    GRACE_SECONDS,
    MAX_OUTPUT_BYTES,
    MAX_WHOLE_BYTES,
    ROOT,
)
from rath.backend.opensandbox.faults import NotReached, Refused, RemoteFault

if TYPE_CHECKING:
    from rath.backend.opensandbox.client import Client

MARK = "RATH_COMMAND"
"""Variable by which what a command started is found."""

DIGEST_SECONDS = 30.0
"""How long the sandbox may digest output that is not fetched; a guess, some GB."""

NOT_STARTED = 125
"""Exit code of a command whose output could not be redirected, so that it did not begin."""


@dataclass(frozen=True, slots=True)
class Line:
    """A command line and how it is run."""

    text: str
    timeout: float
    """Seconds."""

    cwd: str = ROOT
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    stdin: bytes | None = field(default=None, repr=False)
    max_output: int = MAX_OUTPUT_BYTES
    """How much of each of stdout and stderr is fetched: the first and the last half of this."""


@dataclass(frozen=True, slots=True)
class Ran:
    """How a command line ended, and what it printed."""

    answer: Answer | None
    """None where it was ended by us, since the sandbox had not at its deadline."""

    timed_out: bool
    elapsed_ms: float
    stdout: bytes
    stderr: bytes
    stdout_full: Blob | None
    """All that was printed there, where `stdout` is only a part of it: with its content where that
    could be fetched, its digest and size alone where it stays in the sandbox."""

    stderr_full: Blob | None
    lost: str | None = None
    """Why what it printed could not be fetched, None where it was."""


async def run_line(client: Client, line: Line) -> Ran:
    """Run a command line once and return what became of it.

    What it leaves behind at its deadline, or when this is cancelled, is ended in the sandbox.

    Raises:
        RemoteFault: It was not sent, was refused, or its end is not known.
    """
    mark = uuid4().hex
    files = _Files(_base(mark))
    printed = Printed("lines")
    if line.stdin is not None:
        await client.write(files.stdin, line.stdin, 0o600)
    started = time.perf_counter()
    answer: Answer | None = None
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(line.timeout + GRACE_SECONDS):
                answer = await client.run(
                    files.redirect(line),
                    printed,
                    cwd=line.cwd,
                    env={**line.env, MARK: mark},
                    timeout=line.timeout,
                )
    except (NotReached, Refused):
        if line.stdin is not None:
            await _remove(client, [files.stdin])
        raise
    except BaseException:
        await _end(client, printed, mark, files)
        raise
    elapsed = time.perf_counter() - started
    # The clock of the sandbox started later than ours, so an earlier end was not the deadline's.
    timed_out = answer is None or (answer.exit_code == -9 and elapsed >= line.timeout)
    if timed_out:
        await _end(client, printed, mark)
    lost = None
    try:
        streams = await _fetch(client, files, line)
    except Refused as exc:
        streams = _Streams(printed.stdout, printed.stderr, None, None)
        was_started = answer is None or answer.exit_code != NOT_STARTED
        lost = str(exc) if was_started or not exc.is_missing_file else None
    except RemoteFault as exc:
        streams, lost = _Streams(b"", b"", None, None), str(exc)
    return Ran(answer, timed_out, elapsed * 1000.0, *streams, lost)


class _Streams(NamedTuple):
    stdout: bytes
    stderr: bytes
    stdout_full: Blob | None
    stderr_full: Blob | None


@dataclass(frozen=True, slots=True)
class _Files:
    """Where the input and output of one command are in the sandbox."""

    base: str

    @property
    def stdin(self) -> str:
        return f"{self.base}.in"

    @property
    def stdout(self) -> str:
        return f"{self.base}.out"

    @property
    def stderr(self) -> str:
        return f"{self.base}.err"

    def redirect(self, line: Line) -> str:
        """Return the command line with its output sent to the files."""
        source = "/dev/null" if line.stdin is None else self.stdin
        # A line before it, so that nothing in the command itself can break it.
        redirect = f"exec <{source} >{self.stdout} 2>{self.stderr} || exit {NOT_STARTED}"
        return f"{redirect}\n{line.text}"


async def _fetch(client: Client, files: _Files, line: Line) -> _Streams:
    """Return what was printed, and remove the files unless they were too long to fetch."""
    entries = await client.info([files.stdout, files.stderr])
    stdout, stderr = [await _content(client, each, line.max_output) for each in entries]
    await _remove(client, [files.stdin, *(each.path for each in (stdout, stderr) if each.is_whole)])
    return _Streams(stdout.text, stderr.text, stdout.full, stderr.full)


async def _remove(client: Client, paths: Sequence[str]) -> None:
    with contextlib.suppress(RemoteFault):
        await client.remove(paths)


@dataclass(frozen=True, slots=True)
class _Content:
    path: str
    text: bytes
    full: Blob | None = None
    is_whole: bool = True
    """Whether all of it was fetched."""


async def _content(client: Client, entry: Entry, max_output: int) -> _Content:
    """Return a file, or its two ends with a note between them."""
    path, size, half = entry.path, entry.size, max_output // 2
    if size <= max(MAX_WHOLE_BYTES, max_output):
        data = await client.read(path) if size else b""
        if len(data) <= max_output:
            return _Content(path, data)
        text = data[:half] + cut_note(len(data) - 2 * half) + data[-half:]
        return _Content(path, text, Blob.from_bytes(data, keep=MAX_WHOLE_BYTES))
    head = await client.read(path, 0, half - 1)
    tail = await client.read(path, size - half, size - 1)
    full = await _unfetched(client, path, size)
    return _Content(path, head + cut_note(size - 2 * half, path) + tail, full, is_whole=False)


async def _unfetched(client: Client, path: str, size: int) -> Blob | None:
    """Return digest and size of a file that stays there, None where they cannot be told."""
    # What still runs may print more, which belongs to neither.
    text = f"head -c {size} {path} | sha256sum"
    printed = Printed("lines")
    try:
        await client.run(text, printed, cwd="/", env={}, timeout=DIGEST_SECONDS)
    except RemoteFault:
        return None
    digest = printed.stdout[:64].decode(errors="replace")
    return Blob(digest, size) if is_digest(digest) else None


async def _end(client: Client, printed: Printed, mark: str, files: _Files | None = None) -> None:
    """End a command and what it started, as well as it goes, and remove `files`."""
    with contextlib.suppress(RemoteFault, TimeoutError):
        async with asyncio.timeout(CLEANUP_SECONDS):
            if printed.run_id is not None:
                with contextlib.suppress(RemoteFault):
                    await client.interrupt_command(printed.run_id)
            await client.run(
                _sweep(mark), Printed("lines"), cwd="/", env={}, timeout=CLEANUP_SECONDS
            )
            if files is not None:
                await client.remove([files.stdin, files.stdout, files.stderr])


def _base(mark: str) -> str:
    """Return how the names of the files of a command begin, in the sandbox."""
    return f"/tmp/.rath-{mark}"


def _sweep(mark: str) -> str:
    """Return the command line that kills whatever carries the mark, in whatever group.

    Or holds its files open: a process with another environment still has the output of its parent.
    """
    return (
        f"marked() {{ grep -lsF {MARK}={mark} /proc/[0-9]*/environ; "
        "ls -l /proc/[0-9]*/fd 2>/dev/null | while read -r line; do case $line in "
        f'/proc/*/fd:) at=$line;; *" -> {_base(mark)}."*) echo "$at";; esac; done; }}\n'
        "for each in $(marked); do "
        'each=${each#/proc/}; kill -9 "${each%%/*}" 2>/dev/null; done; true'
    )
