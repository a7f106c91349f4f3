"""Additions of a handle to any backend: parts of files, edits, long outputs to read later."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import threading
import weakref
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from rath._async.runtime import runtime
from rath._core.blobs import Blob
from rath.backend.file_tools import (
    DiskFile,
    apply_edit,
    check_range,
    read_content,
    run_now,
    slice_content,
)
from rath.backend.host.paths import new_directory
from rath.backend.results import (
    CodeResult,
    CommandResult,
    FileContent,
    FileEditResult,
    FileWriteResult,
    ToolExecutionFailure,
    ToolResult,
)
from rath.backend.tool_types import (
    BackendTool,
    BackendToolFilesEdit,
    BackendToolFilesRead,
    BackendToolFilesWrite,
)

LONG_OUTPUT_BYTES = 20_000
"""An output of more than this is stored: a model is shown only the beginning and the end of it."""

MAX_OUTPUTS = 32
MAX_OUTPUTS_BYTES = 64 << 20
"""Room for the outputs of one sandbox together; the oldest goes first."""

_PREFIX = "output:"
_PATH = re.compile(_PREFIX + "([0-9a-f]{12,64})")
_NOTE = re.compile(rb"\n\[\.\.\. output truncated: \d+ bytes left out[^\n]{0,500}\.\.\.\]\n")
_NOTE_BYTES = 600
"""More than the longest note has."""

Run = Callable[[BackendTool], Awaitable[ToolResult | bool]]


class ToolFallbacks:
    """Does for one sandbox what its backend leaves out.

    Args:
        supported: The payloads that the backend runs.
        reads_parts: Whether it obeys `offset` and `limit` itself.
    """

    def __init__(self, supported: frozenset[type[BackendTool]], *, reads_parts: bool) -> None:
        self._supported = tuple(supported)
        self._reads_parts = reads_parts
        self._can_edit = {BackendToolFilesRead, BackendToolFilesWrite} <= supported
        self._outputs: StoredOutputs | None = None
        self._editing = asyncio.Lock()

    def supports(self, op: BackendTool) -> bool:
        """Tell whether the backend, with what is added, can run `op`."""
        if isinstance(op, self._supported):
            return True
        return isinstance(op, BackendToolFilesEdit) and self._can_edit

    async def adispatch(self, op: BackendTool, run: Run) -> ToolResult | bool:
        """Run one operation by `run`, which asks the backend."""
        if isinstance(op, BackendToolFilesRead) and _PATH.fullmatch(op.path):
            outputs = self._outputs or StoredOutputs()
            return await runtime().call_in_worker(partial(outputs.read, op))
        if isinstance(op, BackendToolFilesRead) and not self._reads_parts:
            return await _read_part(op, run)
        if isinstance(op, BackendToolFilesEdit) and not isinstance(op, self._supported):
            async with self._editing:
                return await _edit(op, run)
        result = await run(op)
        if not isinstance(result, CommandResult | CodeResult):
            return result
        if len(result.stdout) <= LONG_OUTPUT_BYTES and len(result.stderr) <= LONG_OUTPUT_BYTES:
            return result
        outputs = self._outputs = self._outputs or StoredOutputs()
        stdout, stderr = await runtime().call_in_worker(
            lambda: (
                _store(outputs, result.stdout, result.stdout_full),
                _store(outputs, result.stderr, result.stderr_full),
            )
        )
        return replace(result, stdout_full=stdout, stderr_full=stderr)

    async def aclose(self) -> None:
        """Remove the outputs."""
        if self._outputs is not None:
            await runtime().call_in_worker(self._outputs.close)


async def _read_part(op: BackendToolFilesRead, run: Run) -> ToolResult | bool:
    refusal = check_range(op)
    if refusal is not None:
        return refusal
    if op.offset == 0 and op.limit is None:
        return await run(op)
    content = await run(replace(op, offset=0, limit=None))
    if not isinstance(content, FileContent):
        return content
    return await runtime().call_in_worker(partial(slice_content, content, op))


async def _edit(op: BackendToolFilesEdit, run: Run) -> ToolResult | bool:
    """Edit a file by reading and writing it whole; its mode becomes that of a new file."""
    content = await run(BackendToolFilesRead(op.path, None))
    if not isinstance(content, FileContent):
        return content
    data = content.data.encode() if isinstance(content.data, str) else content.data
    edit = await runtime().call_in_worker(partial(apply_edit, data, op))
    if isinstance(edit, ToolExecutionFailure):
        return edit
    written = await run(BackendToolFilesWrite(op.path, edit.data))
    if not isinstance(written, FileWriteResult):
        return written
    return FileEditResult(edit.n_replaced, edit.diff)


def _store(outputs: StoredOutputs, shown: bytes, full: Blob | None) -> Blob | None:
    """Store an output if it is long; return what the result says of the whole of it."""
    if len(shown) <= LONG_OUTPUT_BYTES:
        return full
    if full is None and _is_cut(shown):
        return None  # nobody knows what its whole was
    blob = full or Blob.from_bytes(shown, keep=len(shown))
    try:
        outputs.store(blob.digest, shown if blob.data is None else blob.data)
    except OSError:
        return full  # the disk is full: nobody is told of something to read
    return blob


def _is_cut(shown: bytes) -> bool:
    """Tell whether a backend put the note in the middle that stands for what it left out.

    A command may print such words too; in the very middle they are the backend's.
    """
    middle = len(shown) // 2
    notes = _NOTE.finditer(shown, max(0, middle - _NOTE_BYTES), middle + _NOTE_BYTES)
    return any(note.start() == len(shown) - note.end() for note in notes)


def output_path(digest: str) -> str:
    """Return the path under which a stored output is read."""
    return f"{_PREFIX}{digest[:12]}"


class StoredOutputs:
    """The newest long outputs of one sandbox, by digest, in a directory of their own.

    Thread-safe; all methods block on the disk.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._directory: Path | None = None
        self._remove: weakref.finalize[[str, int], StoredOutputs] | None = None
        self._sizes: dict[str, int] = {}
        self._is_closed = False

    def store(self, digest: str, data: bytes) -> None:
        """Store an output; the oldest ones go when there are too many."""
        with self._lock:
            if self._is_closed:
                return
            if self._directory is None:
                path = new_directory("output")
                # A handle that nobody closes leaves nothing either.
                self._remove = weakref.finalize(self, _remove_own, path, os.getpid())
                self._directory = Path(path)
            if self._sizes.pop(digest, None) is None:
                (self._directory / digest).write_bytes(data)
            self._sizes[digest] = len(data)
            while len(self._sizes) > MAX_OUTPUTS or sum(self._sizes.values()) > MAX_OUTPUTS_BYTES:
                oldest = next(iter(self._sizes))
                del self._sizes[oldest]
                (self._directory / oldest).unlink(missing_ok=True)

    def read(self, op: BackendToolFilesRead) -> ToolResult:
        """Read a stored output or a part of it; bytes that are no text are replaced."""
        digest = op.path.removeprefix(_PREFIX)
        try:
            with self._lock:
                name = next(known for known in self._sizes if known.startswith(digest))
                assert self._directory is not None
                file = (self._directory / name).open("rb")
            with file:
                disk_file = DiskFile(file, os.fstat(file.fileno()).st_size)
                return run_now(read_content(disk_file, op, errors="replace"))
        except (StopIteration, OSError):
            return ToolExecutionFailure(
                "output_not_kept",
                f"no output {op.path!r} is kept; of a sandbox the newest {MAX_OUTPUTS} are, as "
                "long as it is open; run the command again with its output in a file",
                op.path,
            )

    def close(self) -> None:
        """Remove all of them."""
        with self._lock:
            self._is_closed = True
            self._sizes.clear()
            self._directory = None
        if self._remove is not None:
            self._remove()


def _remove_own(directory: str, pid: int) -> None:
    """Remove a directory, unless this is a forked child: what it inherited is its parent's."""
    if os.getpid() == pid:
        shutil.rmtree(directory, ignore_errors=True)
