"""Parts of files: lines of text or bytes, found without the rest in memory."""

from __future__ import annotations

import codecs
import os
from typing import IO

from rath.backend.results import FileContent, ToolExecutionFailure, ToolResult
from rath.backend.tool_types import BackendToolFilesRead

MAX_READ_BYTES = 8 << 20
"""Most that one read returns, in bytes; a guess, far above what a model can take."""

_CHUNK_BYTES = 1 << 20
_LINES_STAND_IN_BYTES = frozenset({"ascii", "cp1252", "iso8859-1", "utf-8"})
"""Encodings in which the byte 0x0A is a line break and nothing else."""


def read_part(file: IO[bytes], op: BackendToolFilesRead, *, errors: str = "strict") -> ToolResult:
    """Read what `op` asks for from the beginning of `file`; blocks on the disk.

    Args:
        file: An open file at its beginning.
        op: Which part, and how to decode it.
        errors: What is done about bytes that are no text, as in `bytes.decode`.
    """
    refusal = bad_range(op)
    if refusal is not None:
        return refusal
    if op.offset == 0 and op.limit is None:
        data = file.read(MAX_READ_BYTES + 1)
        if len(data) > MAX_READ_BYTES:
            return _too_large(op.path, max(os.fstat(file.fileno()).st_size, len(data)))
        return data_or_text(data, op, errors=errors)
    if op.encoding is None:
        return _bytes_of(file, op)
    try:
        name = codecs.lookup(op.encoding).name
    except LookupError:
        name = ""
    if name in _LINES_STAND_IN_BYTES:
        return _lines_of(file, op, encoding=op.encoding, errors=errors)
    whole = file.read(MAX_READ_BYTES + 1)
    if len(whole) > MAX_READ_BYTES:
        return _too_large(op.path, max(os.fstat(file.fileno()).st_size, len(whole)))
    content = data_or_text(whole, op, errors=errors)
    return sliced(content, op) if isinstance(content, FileContent) else content


def sliced(whole: FileContent, op: BackendToolFilesRead) -> FileContent:
    """Return the part of a whole content that `op` asks for: lines of a text, else bytes."""
    if isinstance(whole.data, bytes):
        stop = None if op.limit is None else op.offset + op.limit
        data = whole.data[op.offset : stop]
        return _part(data, op.offset, len(data), total=len(whole.data))
    lines = split_lines(whole.data)
    stop = None if op.limit is None else op.offset + op.limit
    wanted = lines[op.offset : stop]
    return _part("".join(wanted), op.offset, len(wanted), total=len(lines))


def split_lines(text: str) -> list[str]:
    r"""Return the lines of `text` with their ends; only `\n` ends a line."""
    lines = [line + "\n" for line in text.split("\n")]
    last = lines.pop()[:-1]
    return [*lines, last] if last else lines


def n_lines(text: str) -> int:
    """Return how many lines `split_lines` gives."""
    return text.count("\n") + (text != "" and not text.endswith("\n"))


def data_or_text(data: bytes, op: BackendToolFilesRead, *, errors: str = "strict") -> ToolResult:
    """Return a content decoded as `op` asks for, or the failure that says why not."""
    if op.encoding is None:
        return FileContent(data)
    text = _decoded(data, op, op.encoding, errors=errors)
    return text if isinstance(text, ToolExecutionFailure) else FileContent(text)


def bad_range(op: BackendToolFilesRead) -> ToolExecutionFailure | None:
    """Return the failure of a range that no file has."""
    if op.offset >= 0 and (op.limit is None or op.limit >= 0):
        return None
    message = f"offset and limit must not be negative, got {op.offset} and {op.limit}"
    return ToolExecutionFailure("bad_range", message, op.path)


def _decoded(
    data: bytes, op: BackendToolFilesRead, encoding: str, *, errors: str
) -> str | ToolExecutionFailure:
    try:
        return data.decode(encoding, errors)
    except LookupError:
        message = (
            f"there is no text encoding named {op.encoding!r}; try 'utf-8', or null for raw bytes"
        )
    except ValueError as exc:
        message = (
            f"{op.path!r} is not {op.encoding!r} text ({exc}); read it with null for raw bytes"
        )
    return ToolExecutionFailure("decode_error", message, op.encoding)


def _too_large(path: str, size: int) -> ToolExecutionFailure:
    return ToolExecutionFailure(
        "file_too_large",
        f"{path!r} has {size} bytes, one read returns at most {MAX_READ_BYTES}; read a part of it "
        "with offset and limit",
        path,
    )


def _bytes_of(file: IO[bytes], op: BackendToolFilesRead) -> FileContent:
    file.seek(op.offset)
    wanted = MAX_READ_BYTES if op.limit is None else min(op.limit, MAX_READ_BYTES)
    data = file.read(wanted)
    end = op.offset + len(data)
    # Of what is no usual file, such as those of /proc, the size is not known.
    size = os.fstat(file.fileno()).st_size
    return _part(data, op.offset, len(data), total=size if size >= end or not data else end)


def _lines_of(
    file: IO[bytes], op: BackendToolFilesRead, *, encoding: str, errors: str
) -> ToolResult:
    n_skipped = _skip_lines(file, op.offset)
    data = bytearray()
    n_lines = 0
    while op.limit is None or n_lines < op.limit:
        line = file.readline(MAX_READ_BYTES - len(data) + 1)
        if len(data) + len(line) > MAX_READ_BYTES:
            if not data:
                return ToolExecutionFailure(
                    "file_too_large",
                    f"line {op.offset} of {op.path!r} has more than {MAX_READ_BYTES} bytes; read "
                    "parts of it with encoding null, where offset and limit count bytes",
                    op.path,
                )
            file.seek(-len(line), os.SEEK_CUR)
            break
        if not line:
            break
        data += line
        n_lines += 1
    total = n_skipped + n_lines + _count_lines(file)
    text = _decoded(bytes(data), op, encoding, errors=errors)
    if isinstance(text, ToolExecutionFailure):
        return text
    return _part(text, op.offset, n_lines, total=total)


def _skip_lines(file: IO[bytes], n_lines: int) -> int:
    """Move to the beginning of line `n_lines`; return how many lines stand before."""
    left = n_lines
    ends_open = False
    while left:
        chunk = file.read(_CHUNK_BYTES)
        if not chunk:
            # The last line may lack its end.
            return n_lines - left + ends_open
        n_here = chunk.count(b"\n")
        ends_open = not chunk.endswith(b"\n")
        if n_here < left:
            left -= n_here
            continue
        at = -1
        for _ in range(left):
            at = chunk.index(b"\n", at + 1)
        file.seek(at + 1 - len(chunk), os.SEEK_CUR)
        left = 0
    return n_lines


def _count_lines(file: IO[bytes]) -> int:
    """Return how many lines are left."""
    n_lines = 0
    last = b"\n"
    while chunk := file.read(_CHUNK_BYTES):
        n_lines += chunk.count(b"\n")
        last = chunk[-1:]
    return n_lines + (last != b"\n")


def _part(data: str | bytes, offset: int, n_read: int, *, total: int) -> FileContent:
    end = offset + n_read
    return FileContent(data, next_offset=end if end < total else None, total=total)
