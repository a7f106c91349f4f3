"""The file operations of a sandbox, through the API for files of its server."""

from __future__ import annotations

import posixpath
import stat
from functools import partial
from typing import TYPE_CHECKING

from rath._async.runtime import runtime
from rath._core.blobs import Blob
from rath.backend.effects import EffectKind, FileEffect, is_observed, note_effect, note_gap
from rath.backend.file_tools import (
    MAX_READ_BYTES,
    apply_edit,
    check_range,
    decode_content,
    slice_content,
)
from rath.backend.opensandbox.answers import Entry
from rath.backend.opensandbox.faults import Refused
from rath.backend.opensandbox.links import resolved
from rath.backend.opensandbox.paths import inside, is_in_workspace, relative
from rath.backend.opensandbox.remote import RemoteSandbox
from rath.backend.results import (
    FileContent,
    FileEditResult,
    FileEntries,
    FileEntry,
    FileWriteResult,
    ToolExecutionFailure,
    ToolResult,
)
from rath.backend.tool_types import (
    BackendToolFilesEdit,
    BackendToolFilesExists,
    BackendToolFilesList,
    BackendToolFilesRead,
    BackendToolFilesWrite,
    FileTool,
)

if TYPE_CHECKING:
    from rath.backend.opensandbox.client import Client


async def run_file_tool(sandbox: RemoteSandbox, client: Client, op: FileTool) -> ToolResult | bool:
    """Run one operation; raises `OutsideWorkspace` and `RemoteFault`."""
    # By names alone as for a relative path: a `..` takes off a name, also that of a link.
    path = "/" + posixpath.normpath(inside(op.path)).lstrip("/")
    try:
        match op:
            case BackendToolFilesRead():
                return await _read(client, path, op)
            case BackendToolFilesWrite():
                return await _write(sandbox, client, path, op)
            case BackendToolFilesEdit():
                return await _edit(sandbox, client, path, op)
            case BackendToolFilesList():
                return await _list(client, path)
            case BackendToolFilesExists():
                return await _found(client, path) is not None
    except Refused as exc:
        return _failure(exc, op)


def _failure(exc: Refused, op: FileTool) -> ToolExecutionFailure:
    if not exc.is_missing_file:
        return ToolExecutionFailure("sandbox_sdk_error", str(exc), exc.code)
    if isinstance(op, (BackendToolFilesRead, BackendToolFilesEdit)):
        message = f"no file at {op.path!r}; list the directory to see what is there"
        return ToolExecutionFailure("file_not_found", message, op.path)
    return ToolExecutionFailure("os_error", str(exc), op.path)


async def _info(client: Client, path: str) -> Entry:
    (entry,) = await client.info([path])
    return entry


async def _found(client: Client, path: str) -> Entry | None:
    try:
        return await _info(client, path)
    except Refused as exc:
        if exc.is_missing_file:
            return None
        raise


async def _read(client: Client, path: str, op: BackendToolFilesRead) -> ToolResult:
    refusal = check_range(op)
    if refusal is not None:
        return refusal
    entry = await _info(client, path)
    if entry.kind == "directory":
        return _is_a_directory(op.path)
    is_part = op.offset != 0 or op.limit is not None
    if op.encoding is None and is_part and entry.kind == "file":
        return await _part(client, path, op, entry.size)
    content = await _content(client, path, entry)
    if isinstance(content, int):
        return _too_large(op.path, content)
    found = decode_content(content, op)
    if not is_part or not isinstance(found, FileContent):
        return found
    return slice_content(found, op)


async def _content(client: Client, path: str, entry: Entry) -> bytes | int:
    """Return the content of a file, its size instead if that is too large for one read."""
    if entry.kind == "file" and entry.size > MAX_READ_BYTES:
        return entry.size
    if entry.kind == "file":
        return await client.read(path) if entry.size else b""
    # A link tells its own size, and what it leads to may be larger than one read takes.
    try:
        data = await client.read(path, 0, MAX_READ_BYTES)
    except Refused as exc:
        if exc.status == 416:  # an empty file has no first byte
            return b""
        raise
    return len(data) if len(data) > MAX_READ_BYTES else data


async def _part(client: Client, path: str, op: BackendToolFilesRead, size: int) -> ToolResult:
    """Read bytes from an offset on."""
    left = max(size - op.offset, 0)
    wanted = min(left, MAX_READ_BYTES if op.limit is None else min(op.limit, MAX_READ_BYTES))
    data = await client.read(path, op.offset, op.offset + wanted - 1) if wanted else b""
    end = op.offset + len(data)
    return FileContent(data, end if end < size else None, size)


async def _write(
    sandbox: RemoteSandbox, client: Client, path: str, op: BackendToolFilesWrite
) -> ToolResult:
    try:
        data = op.data.encode() if isinstance(op.data, str) else op.data
    except UnicodeEncodeError as exc:
        message = f"the text for {op.path!r} is not valid Unicode: {exc.reason}"
        return ToolExecutionFailure("encode_error", message, op.path)
    async with sandbox.changes.writing():
        if not is_observed() and not sandbox.changes.is_watched:
            async with sandbox.writing.holding(path):
                await client.write(path, data, op.mode)
            sandbox.contents.keep(Blob.from_bytes(data))
            return FileWriteResult(len(data))
        where = await resolved(client, path)
        async with sandbox.writing.holding(where or path):
            if where is None:
                await client.write(path, data, op.mode)
                note_gap(f"{path!r} was written, and where it leads could not be told")
                return FileWriteResult(len(data))
            before = await _before(sandbox, client, where)
            if before.is_directory:
                return _is_a_directory(op.path)
            await client.write(where, data, op.mode)
            _note(sandbox, where, before, Blob.from_bytes(data), op.mode)
    return FileWriteResult(len(data))


async def _edit(
    sandbox: RemoteSandbox, client: Client, path: str, op: BackendToolFilesEdit
) -> ToolResult:
    async with sandbox.changes.writing():
        where = await resolved(client, path)
        if where is None:
            message = f"where {op.path!r} leads could not be told; name the file itself"
            return ToolExecutionFailure("os_error", message, op.path)
        async with sandbox.writing.holding(where):
            return await _edit_at(sandbox, client, where, op)


async def _edit_at(
    sandbox: RemoteSandbox, client: Client, where: str, op: BackendToolFilesEdit
) -> ToolResult:
    entry = await _info(client, where)
    if entry.kind == "directory":
        return _is_a_directory(op.path)
    if entry.kind != "file":
        message = f"{op.path!r} is not a regular file"
        return ToolExecutionFailure("os_error", message, op.path)
    content = await _content(client, where, entry)
    if isinstance(content, int):
        return _too_large(op.path, content)
    after = await runtime().call_in_worker(partial(apply_edit, content, op))
    if isinstance(after, ToolExecutionFailure):
        return after
    before = _Before(Blob.from_bytes(content), entry.mode)
    await client.write(where, after.data, entry.mode)
    _note(sandbox, where, before, Blob.from_bytes(after.data), entry.mode)
    return FileEditResult(after.n_replaced, after.diff)


class _Before:
    """What was at a path before it was written to."""

    __slots__ = ("blob", "is_directory", "is_known", "mode")

    def __init__(
        self,
        blob: Blob | None = None,
        mode: int | None = None,
        *,
        is_directory: bool = False,
        is_known: bool = True,
    ) -> None:
        self.blob = blob
        self.mode = mode
        self.is_directory = is_directory
        self.is_known = is_known


_NOTHING = _Before()


async def _before(sandbox: RemoteSandbox, client: Client, path: str) -> _Before:
    entry = await _found(client, path)
    if entry is None:
        return _NOTHING
    if entry.kind == "directory":
        return _Before(is_directory=True)
    content = await _content(client, path, entry)
    if isinstance(content, int):
        return _Before(is_known=False)
    blob = Blob.from_bytes(content)
    sandbox.contents.keep(blob)
    return _Before(blob, entry.mode)


def _note(sandbox: RemoteSandbox, path: str, before: _Before, after: Blob, mode: int) -> None:
    """Tell whoever observes that a file was written."""
    sandbox.contents.keep(after)
    if not is_in_workspace(path):
        note_gap(f"{path!r} was written, which is not in the workspace: its effect is not recorded")
        return
    if not before.is_known:
        note_gap(f"what {path!r} held before is too large to be recorded")
        return
    kind: EffectKind = "created" if before.blob is None else "changed"
    before_mode = None if before.mode is None else stat.S_IFREG | before.mode
    after_mode = stat.S_IFREG | stat.S_IMODE(mode)
    if (before.blob, before_mode) == (after, after_mode):
        return
    effect = FileEffect(
        relative(path), kind, before.blob, after, "exact", None, before_mode, after_mode
    )
    sandbox.changes.note(effect)
    note_effect(effect)


async def _list(client: Client, path: str) -> ToolResult:
    entries = await client.entries(path)
    found = (
        FileEntry(posixpath.basename(each.path), each.path, each.kind == "directory")
        for each in entries
    )
    return FileEntries(tuple(sorted(found, key=lambda each: each.name)))


def _is_a_directory(path: str) -> ToolExecutionFailure:
    return ToolExecutionFailure("os_error", f"{path!r} is a directory; name a file in it", path)


def _too_large(path: str, size: int) -> ToolExecutionFailure:
    message = (
        f"{path!r} has {size} bytes, of which one read takes at most {MAX_READ_BYTES}; use a "
        "command, or read parts of it with encoding null, where offset and limit count bytes"
    )
    return ToolExecutionFailure("file_too_large", message, path)
