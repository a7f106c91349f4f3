"""Replacing a text in a file exactly, and saying what that changed."""

from __future__ import annotations

import difflib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from rath.backend.parts import split_lines
from rath.backend.results import ToolExecutionFailure
from rath.backend.tool_types import BackendToolFilesEdit

_CONTEXT = 3
"""Lines around a change in a diff, as `diff -u` has them."""

_MAX_NAMED = 20
_MAX_COMPARED = 5000
_NEAR_LINES = 2
_MAX_NEAR_CHARS = 600
_CUTOFF = 0.6


@dataclass(frozen=True, slots=True)
class Edited:
    """A content after an edit."""

    data: bytes
    n_replaced: int
    diff: str


@dataclass(frozen=True, slots=True)
class _Change:
    """Lines `first` to `stop` of the old text became `lines`."""

    first: int
    stop: int
    lines: Sequence[str]


def edited(data: bytes, op: BackendToolFilesEdit) -> Edited | ToolExecutionFailure:
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
    old, new = _with_line_ends_of(text, op.old), _with_line_ends_of(text, op.new)
    starts = _places(text, old)
    if not starts:
        return _not_found(text, op)
    if not op.replace_all and text.find(old, starts[0] + 1) >= 0:
        return _not_unique(text, old, op)
    try:
        changed = text.replace(old, new).encode()
    except UnicodeEncodeError as exc:
        message = f"the text for {op.path!r} is not valid Unicode: {exc.reason}"
        return ToolExecutionFailure("encode_error", message, op.path)
    spans = [(start, start + len(old)) for start in starts]
    return Edited(changed, len(starts), unified_diff(op.path, text, spans, new=new))


def unified_diff(path: str, text: str, spans: Sequence[tuple[int, int]], *, new: str) -> str:
    """Return what replacing the `spans` of `text` by `new` changes, as a unified diff.

    Cost: O(size of `text`), whatever the number of changes.
    """
    lines = split_lines(text)
    changes = list(_changes(text, lines, spans, new=new))
    hunks = [_hunk(lines, group, shift) for group, shift in _groups(changes)]
    return f"--- a/{path}\n+++ b/{path}\n" + "".join(hunks) if hunks else ""


def _with_line_ends_of(text: str, piece: str) -> str:
    n_ends = text.count("\n")
    if n_ends == 0 or text.count("\r\n") != n_ends:
        return piece
    return piece.replace("\r\n", "\n").replace("\n", "\r\n")


def _places(text: str, old: str) -> list[int]:
    places: list[int] = []
    at = text.find(old)
    while at >= 0:
        places.append(at)
        at = text.find(old, at + len(old))
    return places


def _not_unique(text: str, old: str, op: BackendToolFilesEdit) -> ToolExecutionFailure:
    at = text.find(old)
    numbers: list[int] = []
    while at >= 0 and len(numbers) <= _MAX_NAMED:
        numbers.append(text.count("\n", 0, at) + 1)
        at = text.find(old, at + 1)
    more = ", and more" if len(numbers) > _MAX_NAMED else ""
    named = ", ".join(map(str, numbers[:_MAX_NAMED])) + more
    return ToolExecutionFailure(
        "text_not_unique",
        f"old stands in {op.path!r} more than once; give more of the text around it, or set "
        "replace_all",
        f"lines {named}",
    )


def _not_found(text: str, op: BackendToolFilesEdit) -> ToolExecutionFailure:
    near = _nearest(split_lines(text), op.old)
    message = f"old does not stand in {op.path!r}; it must match exactly, with all its spaces"
    if near is None:
        return ToolExecutionFailure("text_not_found", f"{message}; read the file first", None)
    return ToolExecutionFailure("text_not_found", f"{message}; detail has the nearest lines", near)


def _nearest(lines: Sequence[str], old: str) -> str | None:
    """Return the lines around the one that is most like the longest line of `old`."""
    wanted = max(map(str.strip, old.splitlines()), key=len, default="")
    compared = [line.strip() for line in lines[:_MAX_COMPARED]]
    found = difflib.get_close_matches(wanted, compared, n=1, cutoff=_CUTOFF)
    if not wanted or not found:
        return None
    at = compared.index(found[0])
    first = max(0, at - _NEAR_LINES)
    around = lines[first : at + _NEAR_LINES + 1]
    text = "".join(f"{first + n + 1}: {line.rstrip()}\n" for n, line in enumerate(around))
    return text[:_MAX_NEAR_CHARS]


def _changes(
    text: str, lines: Sequence[str], spans: Sequence[tuple[int, int]], *, new: str
) -> Iterator[_Change]:
    """Yield the changed lines; spans that touch the same line make one change."""
    starts = [0, *accumulate(map(len, lines))]
    spanned: list[tuple[int, int, list[tuple[int, int]]]] = []
    for start, end in spans:
        first = bisect_right(starts, start) - 1
        stop = min(bisect_right(starts, end), len(lines))
        if spanned and first < spanned[-1][1]:
            begin, _, together = spanned.pop()
            spanned.append((begin, stop, [*together, (start, end)]))
        else:
            spanned.append((first, stop, [(start, end)]))
    for first, stop, together in spanned:
        pieces: list[str] = []
        at = starts[first]
        for start, end in together:
            pieces += [text[at:start], new]
            at = end
        after = split_lines("".join([*pieces, text[at : starts[stop]]]))
        change = _trimmed(lines, _Change(first, stop, after))
        if change.lines or change.first < change.stop:
            yield change


def _trimmed(lines: Sequence[str], change: _Change) -> _Change:
    """Leave out the lines at both ends that stayed as they were."""
    first, stop, after = change.first, change.stop, list(change.lines)
    while first < stop and after and lines[first] == after[0]:
        first += 1
        del after[0]
    while first < stop and after and lines[stop - 1] == after[-1]:
        stop -= 1
        after.pop()
    return _Change(first, stop, after)


def _groups(changes: Sequence[_Change]) -> Iterator[tuple[list[_Change], int]]:
    """Yield the changes of one hunk each, and by how many lines those before moved it."""
    group: list[_Change] = []
    shift = moved = 0
    for change in changes:
        if group and change.first - group[-1].stop > 2 * _CONTEXT:
            yield group, shift
            group, shift = [], moved
        group.append(change)
        moved += len(change.lines) - (change.stop - change.first)
    if group:
        yield group, shift


def _hunk(lines: Sequence[str], group: Sequence[_Change], shift: int) -> str:
    begin = max(0, group[0].first - _CONTEXT)
    end = min(len(lines), group[-1].stop + _CONTEXT)
    shown: list[str] = []
    n_new = 0
    at = begin
    for change in group:
        shown += [_marked(" ", line) for line in lines[at : change.first]]
        shown += [_marked("-", line) for line in lines[change.first : change.stop]]
        shown += [_marked("+", line) for line in change.lines]
        n_new += change.first - at + len(change.lines)
        at = change.stop
    shown += [_marked(" ", line) for line in lines[at:end]]
    n_new += end - at
    old = _range(begin, end - begin)
    return f"@@ -{old} +{_range(begin + shift, n_new)} @@\n" + "".join(shown)


def _marked(mark: str, line: str) -> str:
    return (
        f"{mark}{line}" if line.endswith("\n") else f"{mark}{line}\n\\ No newline at end of file\n"
    )


def _range(first: int, n_lines: int) -> str:
    """Return a range as diffs have it: one before where it is empty, no number where it is 1."""
    if n_lines == 1:
        return f"{first + 1}"
    return f"{first + 1 if n_lines else first},{n_lines}"
