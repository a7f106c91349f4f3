"""Changes of files as one unified diff, in the form that `git apply` reads."""

from __future__ import annotations

import stat
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

from rath._core.blobs import Blob
from rath.backend.effects import FileEffect
from rath.backend.parts import split_lines
from rath.session.file_changes.line_matching import common_runs

PLAIN_FILE = stat.S_IFREG | 0o644
"""The mode of a file of which none is known."""

_CONTEXT = 3
"""How many equal lines are shown before and after a change."""

_NULL = "/dev/null"
_NO_NEWLINE = "\\ No newline at end of file\n"
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def unified_diff(changes: Iterable[FileEffect]) -> str:
    """Return the diff of net changes; "" when there are none.

    `git apply` makes all of it. `patch -p1` makes what texts became; it knows nothing of exchanged
    names and little of links, modes and files that became directories.

    Contents that are no UTF-8 text, and contents that were not kept, are said in a line of their
    own, which the tools that apply a diff pass over.
    """
    return "".join(part for change in changes for part in _one_kind(change))


def _one_kind(change: FileEffect) -> Iterator[str]:
    """Yield the parts of a change; a file that became a link is a deletion and a creation."""
    # A mode that is not known is taken for that of the other side.
    before = _git_mode(change.before_mode or change.after_mode)
    after = _git_mode(change.after_mode or change.before_mode)
    both = change.before is not None and change.after is not None
    if not both or stat.S_IFMT(before) == stat.S_IFMT(after):
        yield from _section(change, before, after)
        return
    old = change.renamed_from or change.path
    yield from _section(replace(change, path=old, renamed_from=None, after=None), before, after)
    yield from _section(replace(change, renamed_from=None, before=None), before, after)


def _section(change: FileEffect, before_mode: int, after_mode: int) -> Iterator[str]:
    old, new = change.renamed_from or change.path, change.path
    unreadable = _unreadable(change)
    if unreadable is not None:
        yield unreadable
        return
    before, after = _lines(change.before), _lines(change.after)
    header = [f"diff --git {_quoted('a/' + old)} {_quoted('b/' + new)}\n"]
    if change.before is None:
        header.append(f"new file mode {after_mode:06o}\n")
    elif change.after is None:
        header.append(f"deleted file mode {before_mode:06o}\n")
    elif before_mode != after_mode:
        header += [f"old mode {before_mode:06o}\n", f"new mode {after_mode:06o}\n"]
    if change.renamed_from is not None:
        if before == after:
            header.append("similarity index 100%\n")
        header += [f"rename from {_quoted(old)}\n", f"rename to {_quoted(new)}\n"]
    if len(header) == 1 and before == after:
        return
    yield from header
    if before != after:
        yield f"--- {_NULL if change.before is None else _named('a/' + old)}\n"
        yield f"+++ {_NULL if change.after is None else _named('b/' + new)}\n"
        yield from _hunks(before, after)


class _Change(NamedTuple):
    """Lines of both texts that are not the same, from the first to before the last."""

    a: int
    a_end: int
    b: int
    b_end: int


def _hunks(before: list[str], after: list[str]) -> Iterator[str]:
    hunk: list[_Change] = []
    for change in _changed_lines(before, after):
        if hunk and change.a - hunk[-1].a_end > 2 * _CONTEXT:
            yield from _hunk(hunk, before, after)
            hunk = []
        hunk.append(change)
    yield from _hunk(hunk, before, after)


def _changed_lines(before: list[str], after: list[str]) -> Iterator[_Change]:
    a = b = 0
    for run in common_runs(before, after):
        if (a, b) != (run.a, run.b):
            yield _Change(a, run.a, b, run.b)
        a, b = run.a + run.size, run.b + run.size


def _hunk(changes: list[_Change], before: list[str], after: list[str]) -> Iterator[str]:
    first, last = changes[0], changes[-1]
    at = max(0, first.a - _CONTEXT)
    end = min(len(before), last.a_end + _CONTEXT)
    old = _range(at, end)
    new = _range(first.b - (first.a - at), last.b_end + (end - last.a_end))
    yield f"@@ -{old} +{new} @@\n"
    for change in changes:
        yield from _marked(" ", before[at : change.a])
        yield from _marked("-", before[change.a : change.a_end])
        yield from _marked("+", after[change.b : change.b_end])
        at = change.a_end
    yield from _marked(" ", before[at:end])


def _marked(mark: str, lines: list[str]) -> Iterator[str]:
    for line in lines:
        yield mark + line if line.endswith("\n") else f"{mark}{line}\n{_NO_NEWLINE}"


def _range(start: int, end: int) -> str:
    """Return lines as a hunk names them: the first and how many; of none, the one before."""
    if end - start == 1:
        return str(end)
    return f"{start if start == end else start + 1},{end - start}"


def _unreadable(change: FileEffect) -> str | None:
    """Return the line that stands for a change whose contents cannot be shown, None for others."""
    old, new = change.renamed_from or change.path, change.path
    before, after = change.before, change.after
    if before == after:  # moved, or given another mode: nothing of it need be shown
        return None
    if any(blob is not None and blob.data is None for blob in (before, after)):
        sizes = " to ".join(
            "nothing" if one is None else f"{one.size} bytes" for one in (before, after)
        )
        return f"Contents of {_quoted(new)} were not kept: from {sizes}\n"
    if _is_text(before) and _is_text(after):
        return None
    left = _NULL if before is None else _quoted("a/" + old)
    right = _NULL if after is None else _quoted("b/" + new)
    return f"Binary files {left} and {right} differ\n"


def is_text(data: bytes) -> bool:
    """Tell whether a content is text that can be compared by lines: UTF-8 without a NUL."""
    try:
        return "\0" not in data.decode()
    except UnicodeDecodeError:
        return False


def _is_text(blob: Blob | None) -> bool:
    return blob is None or (blob.data is not None and is_text(blob.data))


def _lines(blob: Blob | None) -> list[str]:
    if blob is None or blob.data is None or not is_text(blob.data):
        return []
    return split_lines(blob.data.decode())


def _git_mode(mode: int | None) -> int:
    """Return one of the modes that git knows: a link, an executable, any other file."""
    if mode is None:
        return PLAIN_FILE
    if stat.S_ISLNK(mode):
        return stat.S_IFLNK
    return stat.S_IFREG | (0o755 if mode & stat.S_IXUSR else 0o644)


def _named(path: str) -> str:
    """Return a path as `---` and `+++` name it: a tab ends one that holds a blank."""
    quoted = _quoted(path)
    return quoted + "\t" if " " in path and quoted == path else quoted


def _quoted(path: str) -> str:
    """Return a path as git writes it, in quotes where it holds what would be misread."""
    shown = "".join(map(_escaped, path))
    return path if shown == path else f'"{shown}"'


def _escaped(char: str) -> str:
    if char in _ESCAPES:
        return _ESCAPES[char]
    if char < " " or char == "\x7f" or "\ud800" <= char <= "\udfff":
        return "".join(f"\\{byte:03o}" for byte in char.encode(errors="surrogateescape"))
    return char
