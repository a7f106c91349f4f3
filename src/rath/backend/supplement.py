"""What a handle adds to any backend: parts of files, edits, long outputs to read later."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

from rath._async.runtime import runtime
from rath._core.blobs import Blob
from rath.backend.edit import edited
from rath.backend.kept_output import LONG_OUTPUT_BYTES, KeptOutputs
from rath.backend.parts import bad_range, sliced
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

Run = Callable[[BackendTool], Awaitable[ToolResult | bool]]


class Supplement:
    """Does for one sandbox what its backend leaves out.

    Args:
        supported: The payloads that the backend runs.
        reads_parts: Whether it obeys `offset` and `limit` itself.
    """

    def __init__(self, supported: frozenset[type[BackendTool]], *, reads_parts: bool) -> None:
        self._supported = tuple(supported)
        self._reads_parts = reads_parts
        self._can_edit = {BackendToolFilesRead, BackendToolFilesWrite} <= supported
        self._outputs = KeptOutputs()
        self._has_outputs = False
        self._editing = asyncio.Lock()

    def supports(self, op: BackendTool) -> bool:
        """Tell whether the backend, with what is added, can run `op`."""
        if isinstance(op, self._supported):
            return True
        return isinstance(op, BackendToolFilesEdit) and self._can_edit

    async def adispatch(self, op: BackendTool, run: Run) -> ToolResult | bool:
        """Run one operation by `run`, which asks the backend."""
        match op:
            case BackendToolFilesRead(path) if KeptOutputs.holds(path):
                return await runtime().call_in_worker(partial(self._outputs.read, op))
            case BackendToolFilesRead() if not self._reads_parts:
                return await self._part(op, run)
            case BackendToolFilesEdit() if not isinstance(op, self._supported):
                async with self._editing:
                    return await _edit(op, run)
            case _:
                return await self._with_outputs_kept(await run(op))

    async def aclose(self) -> None:
        """Remove what was kept."""
        if self._has_outputs:
            await runtime().call_in_worker(self._outputs.close)

    async def _part(self, op: BackendToolFilesRead, run: Run) -> ToolResult | bool:
        refusal = bad_range(op)
        if refusal is not None:
            return refusal
        if op.offset == 0 and op.limit is None:
            return await run(op)
        whole = await run(replace(op, offset=0, limit=None))
        if not isinstance(whole, FileContent):
            return whole
        return await runtime().call_in_worker(partial(sliced, whole, op))

    async def _with_outputs_kept(self, result: ToolResult | bool) -> ToolResult | bool:
        if not isinstance(result, CommandResult | CodeResult):
            return result
        if len(result.stdout) <= LONG_OUTPUT_BYTES and len(result.stderr) <= LONG_OUTPUT_BYTES:
            return result
        self._has_outputs = True
        stdout, stderr = await runtime().call_in_worker(
            lambda: (
                self._keep(result.stdout, result.stdout_full),
                self._keep(result.stderr, result.stderr_full),
            )
        )
        return replace(result, stdout_full=stdout, stderr_full=stderr)

    def _keep(self, shown: bytes, full: Blob | None) -> Blob | None:
        if len(shown) <= LONG_OUTPUT_BYTES:
            return full
        if full is None and _is_cut(shown):
            return None  # nobody knows what its whole was
        whole = full or Blob.from_bytes(shown, keep=len(shown))
        try:
            self._outputs.keep(whole.digest, shown if whole.data is None else whole.data)
        except OSError:
            return full  # the disk is full: nobody is told of something to read
        return whole


_NOTE = re.compile(rb"\n\[\.\.\. output truncated: \d+ bytes left out[^\n]{0,500}\.\.\.\]\n")
_NOTE_BYTES = 600
"""More than the longest note has."""


def _is_cut(shown: bytes) -> bool:
    """Tell whether a backend put the note in the middle that stands for what it left out.

    A command may print such words too; in the very middle they are the backend's.
    """
    middle = len(shown) // 2
    begin = max(0, middle - _NOTE_BYTES)
    for note in _NOTE.finditer(shown, begin, middle + _NOTE_BYTES):
        if note.start() == len(shown) - note.end():
            return True
    return False


async def _edit(op: BackendToolFilesEdit, run: Run) -> ToolResult | bool:
    """Edit a file by reading and writing it whole; its mode becomes that of a new file."""
    content = await run(BackendToolFilesRead(op.path, None))
    if not isinstance(content, FileContent):
        return content
    data = content.data.encode() if isinstance(content.data, str) else content.data
    after = await runtime().call_in_worker(partial(edited, data, op))
    if isinstance(after, ToolExecutionFailure):
        return after
    written = await run(BackendToolFilesWrite(op.path, after.data))
    if not isinstance(written, FileWriteResult):
        return written
    return FileEditResult(after.n_replaced, after.diff)
