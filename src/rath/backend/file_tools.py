"""The file tools of a sandbox, written once over the primitives of its driver."""

from __future__ import annotations

import codecs
import difflib
from bisect import bisect_right
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from itertools import accumulate
from typing import IO, Any, Protocol, TypeVar

from rath._core.blobs import Blob
from rath._core.dataclasses import dataclass
from rath.backend.effects import EffectKind, FileEffect
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

T = TypeVar("T")

MAX_READ_BYTES = 8 << 20
"""Most that one read returns, in bytes; a guess, far above what a model can take."""

_CHUNK_BYTES = 1 << 20
_LINES_STAND_IN_BYTES = frozenset({"ascii", "cp1252", "iso8859-1", "utf-8"})
"""Encodings in which the byte 0x0A is a line break and nothing else."""

_MAX_NAMED = 20
_MAX_COMPARED = 5000
_NEAR_LINES = 2
_MAX_NEAR_CHARS = 600
_CUTOFF = 0.6


class OutsideWorkspace(ValueError):
    """A path leads out of the workspace."""

    def __init__(self, path: str, root: str) -> None:
        self.path = path
        self.root = root
        super().__init__(
            f"{path!r} leads out of the workspace {root!r}; use a path inside it, best one "
            "relative to its root"
        )


class OpenFile(Protocol):
    """A regular file that was found."""

    @property
    def size(self) -> int:
        """Length in bytes; 0 for what has no size, such as the files of /proc."""
        ...

    async def read_range(self, offset: int, n_bytes: int) -> bytes:
        """Return at most so many bytes; fewer only at the end of the file."""
        ...

    async def replace(self, data: bytes) -> None:
        """Give the file another content, its mode stays; only inside `opened(..., edits=True)`."""
        ...


class Files(Protocol):
    """The primitives of a driver, for paths as callers write them.

    Each raises FileNotFoundError, `OutsideWorkspace` or another OSError or ValueError, of which
    the text goes to the model. A driver notes the effects of `put` and `replace` itself: it knows
    where links lead and what else writes (`write_effect` makes them).
    """

    def opened(self, path: str, *, edits: bool = False) -> AbstractAsyncContextManager[OpenFile]:
        """Find a regular file; with `edits` nobody else writes to it inside the block."""
        ...

    async def put(self, path: str, data: bytes, mode: int) -> None:
        """Write a whole file and the directories above it."""
        ...

    async def entries(self, path: str) -> Iterable[FileEntry]:
        """Return what a directory holds, in any order."""
        ...

    async def exists(self, path: str) -> bool:
        """Tell whether a path exists."""
        ...

    async def compute(self, work: Callable[[], T]) -> T:
        """Run work that takes the processor; a driver on the runtime loop does so in a worker."""
        ...


async def run_file_tool(files: Files, op: FileTool) -> ToolResult | bool:
    """Run one operation; what goes wrong with a file is a value."""
    try:
        match op:
            case BackendToolFilesRead():
                async with files.opened(op.path) as file:
                    return await read_content(file, op)
            case BackendToolFilesWrite():
                return await _write(files, op)
            case BackendToolFilesEdit():
                return await _edit(files, op)
            case BackendToolFilesList():
                entries = await files.entries(op.path)
                return FileEntries(tuple(sorted(entries, key=lambda entry: entry.name)))
            case BackendToolFilesExists():
                return await files.exists(op.path)
    except OutsideWorkspace as exc:
        return ToolExecutionFailure("path_outside_workspace", str(exc), op.path)
    except FileNotFoundError as exc:
        if not isinstance(op, BackendToolFilesRead | BackendToolFilesEdit):
            return os_failure(exc, op.path)
        message = f"no file at {op.path!r}; list the directory to see what is there"
        return ToolExecutionFailure("file_not_found", message, op.path)
    except (OSError, ValueError) as exc:
        return os_failure(exc, op.path)


def run_now(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that never waits, as of a driver whose files are here."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    coroutine.close()
    raise RuntimeError("a coroutine waited that was meant to end at once")


def os_failure(exc: OSError | ValueError, path: str) -> ToolExecutionFailure:
    """Return the failure that tells of an error of the operating system at `path`."""
    reason = exc.strerror if isinstance(exc, OSError) and exc.strerror else str(exc)
    message = reason if repr(path) in reason else f"{reason}: {path!r}"
    return ToolExecutionFailure("os_error", message, type(exc).__name__)


def write_effect(
    path: str,
    before: Blob | None,
    before_mode: int | None,
    after: Blob,
    after_mode: int,
) -> FileEffect | None:
    """Return what a write changed, None where it wrote what was there.

    Args:
        path: Relative to the root, with links resolved.
        before: Content before, None where there was no file.
        before_mode: Type and permission bits before, where they are known.
        after: Content afterwards.
        after_mode: Type and permission bits afterwards.
    """
    if (before, before_mode) == (after, after_mode):
        return None
    kind: EffectKind = "created" if before is None else "changed"
    return FileEffect(path, kind, before, after, before_mode=before_mode, after_mode=after_mode)


async def _write(files: Files, op: BackendToolFilesWrite) -> ToolResult:
    try:
        data = op.data.encode() if isinstance(op.data, str) else op.data
    except UnicodeEncodeError as exc:
        message = f"the text for {op.path!r} is not valid Unicode: {exc.reason}"
        return ToolExecutionFailure("encode_error", message, op.path)
    await files.put(op.path, data, op.mode)
    return FileWriteResult(len(data))


async def _edit(files: Files, op: BackendToolFilesEdit) -> ToolResult:
    async with files.opened(op.path, edits=True) as file:
        data = b"" if file.size > MAX_READ_BYTES else await file.read_range(0, MAX_READ_BYTES + 1)
        if max(file.size, len(data)) > MAX_READ_BYTES:
            message = f"{op.path!r} has more than {MAX_READ_BYTES} bytes; edit it by a command"
            return ToolExecutionFailure("file_too_large", message, op.path)
        edit = await files.compute(partial(apply_edit, data, op))
        if isinstance(edit, ToolExecutionFailure):
            return edit
        await file.replace(edit.data)
    return FileEditResult(edit.n_replaced, edit.diff)


# Reading: lines of text or bytes, found without the rest in memory.


class DiskFile:
    """An open file of this host, to read."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self.file = file
        self.size = size

    async def read_range(self, offset: int, n_bytes: int) -> bytes:
        if offset != self.file.tell():
            self.file.seek(offset)
        return self.file.read(n_bytes)

    async def replace(self, data: bytes) -> None:
        raise PermissionError(
            "the file was opened to read, so it cannot be written; open it again for writing"
        )


async def read_content(
    file: OpenFile, op: BackendToolFilesRead, *, errors: str = "strict"
) -> ToolResult:
    """Read the part of a file that `op` asks for.

    Args:
        file: Where it is read.
        op: Which part, and how to decode it.
        errors: What is done about bytes that are no text, as in `bytes.decode`.
    """
    refusal = check_range(op)
    if refusal is not None:
        return refusal
    is_part = op.offset != 0 or op.limit is not None
    if is_part and op.encoding is None:
        n_bytes = MAX_READ_BYTES if op.limit is None else min(op.limit, MAX_READ_BYTES)
        data = await file.read_range(op.offset, n_bytes)
        end = op.offset + len(data)
        # Of what is no usual file, such as those of /proc, the size is not known.
        return _part(data, op.offset, len(data), file.size if file.size >= end or not data else end)
    if is_part and op.encoding is not None and _stands_in_bytes(op.encoding):
        return await _read_lines(file, op, errors)
    data = b"" if file.size > MAX_READ_BYTES else await file.read_range(0, MAX_READ_BYTES + 1)
    if max(file.size, len(data)) > MAX_READ_BYTES:
        return ToolExecutionFailure(
            "file_too_large",
            f"{op.path!r} has {max(file.size, len(data))} bytes, one read returns at most "
            f"{MAX_READ_BYTES}; read a part of it with offset and limit",
            op.path,
        )
    content = decode_content(data, op, errors=errors)
    return slice_content(content, op) if is_part and isinstance(content, FileContent) else content


def slice_content(content: FileContent, op: BackendToolFilesRead) -> FileContent:
    """Return the part of a whole content that `op` asks for: lines of a text, else bytes."""
    stop = None if op.limit is None else op.offset + op.limit
    if isinstance(content.data, bytes):
        data = content.data[op.offset : stop]
        return _part(data, op.offset, len(data), len(content.data))
    lines = split_lines(content.data)
    wanted = lines[op.offset : stop]
    return _part("".join(wanted), op.offset, len(wanted), len(lines))


def split_lines(text: str) -> list[str]:
    r"""Return the lines of `text` with their ends; only `\n` ends a line."""
    lines = [line + "\n" for line in text.split("\n")]
    last = lines.pop()[:-1]
    return [*lines, last] if last else lines


def count_lines(text: str) -> int:
    """Return how many lines `split_lines` gives."""
    return text.count("\n") + (text != "" and not text.endswith("\n"))


def decode_content(data: bytes, op: BackendToolFilesRead, *, errors: str = "strict") -> ToolResult:
    """Return a content decoded as `op` asks for, or the failure that says why not."""
    if op.encoding is None:
        return FileContent(data)
    try:
        return FileContent(data.decode(op.encoding, errors))
    except LookupError:
        message = (
            f"there is no text encoding named {op.encoding!r}; try 'utf-8', or null for raw bytes"
        )
    except ValueError as exc:
        message = (
            f"{op.path!r} is not {op.encoding!r} text ({exc}); read it with null for raw bytes"
        )
    return ToolExecutionFailure("decode_error", message, op.encoding)


def check_range(op: BackendToolFilesRead) -> ToolExecutionFailure | None:
    """Return the failure of a range that no file has."""
    if op.offset >= 0 and (op.limit is None or op.limit >= 0):
        return None
    message = f"offset and limit must not be negative, got {op.offset} and {op.limit}"
    return ToolExecutionFailure("bad_range", message, op.path)


def _stands_in_bytes(encoding: str) -> bool:
    try:
        return codecs.lookup(encoding).name in _LINES_STAND_IN_BYTES
    except LookupError:
        return False


async def _read_lines(file: OpenFile, op: BackendToolFilesRead, errors: str) -> ToolResult:
    """Read some lines, whole ones up to the limit of bytes, and count all."""
    found = bytearray()
    is_full = False
    n_ends = position = 0
    last = b"\n"
    while chunk := await file.read_range(position, _CHUNK_BYTES):
        position += len(chunk)
        if not is_full:
            stop = len(chunk)
            if op.limit is not None:
                stop = _line_start(chunk, op.offset + op.limit - n_ends)
            found += chunk[_line_start(chunk, op.offset - n_ends) : stop]
            is_full = len(found) > MAX_READ_BYTES
        n_ends += chunk.count(b"\n")
        last = chunk[-1:]
    if is_full:
        del found[found.rfind(b"\n", 0, MAX_READ_BYTES) + 1 :]
        if not found:
            return ToolExecutionFailure(
                "file_too_large",
                f"line {op.offset} of {op.path!r} has more than {MAX_READ_BYTES} bytes; read "
                "parts of it with encoding null, where offset and limit count bytes",
                op.path,
            )
    content = decode_content(bytes(found), op, errors=errors)
    if not isinstance(content, FileContent):
        return content
    n_lines = found.count(b"\n") + (len(found) > 0 and not found.endswith(b"\n"))
    return _part(content.data, op.offset, n_lines, n_ends + (last != b"\n"))


def _line_start(chunk: bytes, n_lines: int) -> int:
    """Return where line `n_lines` of a chunk begins; its end where it has fewer."""
    if n_lines > chunk.count(b"\n"):
        return len(chunk)
    at = 0
    for _ in range(n_lines):
        at = chunk.index(b"\n", at) + 1
    return at


def _part(data: str | bytes, offset: int, n_read: int, total: int) -> FileContent:
    end = offset + n_read
    return FileContent(data, next_offset=end if end < total else None, total=total)


# Editing: a text is replaced exactly, and a diff says what that changed.


@dataclass(frozen=True, slots=True)
class EditedContent:
    """A content after an edit."""

    data: bytes
    n_replaced: int
    diff: str


def apply_edit(data: bytes, op: BackendToolFilesEdit) -> EditedContent | ToolExecutionFailure:
    """Return the content after the edit that `op` asks for, or why it cannot be made.

    The text must be UTF-8; a byte order mark stays. In a file whose lines all end with CR LF,
    those of `old` and `new` do so too.
    """
    if not op.old:
        message = "old is empty; give the text to replace, or write the whole file"
        return ToolExecutionFailure("empty_old", message, op.path)
    try:
        text = data.decode()
    except UnicodeDecodeError as exc:
        message = f"{op.path!r} is not 'utf-8' text ({exc}); change it with a command"
        return ToolExecutionFailure("decode_error", message, "utf-8")
    old, new = op.old, op.new
    if 0 < text.count("\n") == text.count("\r\n"):
        old, new = (piece.replace("\r\n", "\n").replace("\n", "\r\n") for piece in (old, new))
    spans: list[tuple[int, int]] = []
    at = text.find(old)
    while at >= 0:
        spans.append((at, at + len(old)))
        at = text.find(old, at + len(old))
    if not spans:
        return _not_found(text, op)
    if not op.replace_all and text.find(old, spans[0][0] + 1) >= 0:
        return _not_unique(text, old, op)
    try:
        changed = text.replace(old, new).encode()
    except UnicodeEncodeError as exc:
        message = f"the text for {op.path!r} is not valid Unicode: {exc.reason}"
        return ToolExecutionFailure("encode_error", message, op.path)
    return EditedContent(changed, len(spans), unified_diff(op.path, text, spans, new=new))


def _not_unique(text: str, old: str, op: BackendToolFilesEdit) -> ToolExecutionFailure:
    at = text.find(old)
    numbers: list[int] = []
    while at >= 0 and len(numbers) <= _MAX_NAMED:
        numbers.append(text.count("\n", 0, at) + 1)
        at = text.find(old, at + 1)
    more = ", and more" if len(numbers) > _MAX_NAMED else ""
    return ToolExecutionFailure(
        "text_not_unique",
        f"old stands in {op.path!r} more than once; give more of the text around it, or set "
        "replace_all",
        f"lines {', '.join(map(str, numbers[:_MAX_NAMED]))}{more}",
    )


def _not_found(text: str, op: BackendToolFilesEdit) -> ToolExecutionFailure:
    """Say that `old` is missing, with the lines around the one most like its longest line."""
    message = f"old does not stand in {op.path!r}; it must match exactly, with all its spaces"
    lines = split_lines(text)
    wanted = max(map(str.strip, op.old.splitlines()), key=len, default="")
    compared = [line.strip() for line in lines[:_MAX_COMPARED]]
    near = difflib.get_close_matches(wanted, compared, n=1, cutoff=_CUTOFF)
    if not wanted or not near:
        return ToolExecutionFailure("text_not_found", f"{message}; read the file first", None)
    at = compared.index(near[0])
    first = max(0, at - _NEAR_LINES)
    around = lines[first : at + _NEAR_LINES + 1]
    detail = "".join(f"{first + n + 1}: {line.rstrip()}\n" for n, line in enumerate(around))
    message = f"{message}; detail has the nearest lines"
    return ToolExecutionFailure("text_not_found", message, detail[:_MAX_NEAR_CHARS])


class _KnownChanges(difflib.SequenceMatcher[str]):
    """Groups changes into hunks that are known already."""

    def __init__(self, changes: list[tuple[str, int, int, int, int]]) -> None:
        super().__init__(None, "", "")
        self._changes = changes

    def get_opcodes(self) -> Any:
        return self._changes


def unified_diff(path: str, text: str, spans: Sequence[tuple[int, int]], *, new: str) -> str:
    """Return what replacing the `spans` of `text` by `new` changes, as a unified diff.

    Cost: O(size of `text`), whatever the number of changes.
    """
    old_lines, new_lines = split_lines(text), list[str]()
    changes: list[tuple[str, int, int, int, int]] = []
    at = 0
    for first, stop, lines in _replaced_lines(text, old_lines, spans, new):
        changes.append(("equal", at, first, len(new_lines), len(new_lines) + first - at))
        new_lines += old_lines[at:first]
        changes.append(("replace", first, stop, len(new_lines), len(new_lines) + len(lines)))
        new_lines += lines
        at = stop
    left = len(old_lines) - at
    changes.append(("equal", at, at + left, len(new_lines), len(new_lines) + left))
    new_lines += old_lines[at:]
    diff: list[str] = []
    for group in _KnownChanges(changes).get_grouped_opcodes():
        (_, i1, _, j1, _), (_, _, i2, _, j2) = group[0], group[-1]
        diff.append(f"@@ -{_range(i1, i2 - i1)} +{_range(j1, j2 - j1)} @@\n")
        for tag, i1, i2, j1, j2 in group:
            if tag == "equal":
                diff += [_marked(" ", line) for line in old_lines[i1:i2]]
                continue
            diff += [_marked("-", line) for line in old_lines[i1:i2]]
            diff += [_marked("+", line) for line in new_lines[j1:j2]]
    return f"--- a/{path}\n+++ b/{path}\n" + "".join(diff) if diff else ""


def _replaced_lines(
    text: str, lines: Sequence[str], spans: Sequence[tuple[int, int]], new: str
) -> Iterator[tuple[int, int, list[str]]]:
    """Yield ranges of lines with what they become; spans on the same line make one change."""
    starts = [0, *accumulate(map(len, lines))]
    ranges: list[tuple[int, int, list[tuple[int, int]]]] = []
    for start, end in spans:
        first = bisect_right(starts, start) - 1
        stop = min(bisect_right(starts, end), len(lines))
        if ranges and first < ranges[-1][1]:
            ranges[-1] = (ranges[-1][0], stop, [*ranges[-1][2], (start, end)])
        else:
            ranges.append((first, stop, [(start, end)]))
    for first, stop, inside in ranges:
        pieces: list[str] = []
        at = starts[first]
        for start, end in inside:
            pieces += [text[at:start], new]
            at = end
        after = split_lines("".join([*pieces, text[at : starts[stop]]]))
        # Without the lines at both ends that stay as they were.
        while first < stop and after and lines[first] == after[0]:
            first += 1
            del after[0]
        while first < stop and after and lines[stop - 1] == after[-1]:
            stop -= 1
            after.pop()
        if after or first < stop:
            yield first, stop, after


def _marked(mark: str, line: str) -> str:
    end = "" if line.endswith("\n") else "\n\\ No newline at end of file\n"
    return f"{mark}{line}{end}"


def _range(first: int, n_lines: int) -> str:
    """Return a range as diffs have it: one before where it is empty, no number where it is 1."""
    if n_lines == 1:
        return f"{first + 1}"
    return f"{first + 1 if n_lines else first},{n_lines}"
