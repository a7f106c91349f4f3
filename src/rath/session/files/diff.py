"""Line diffs by patience and Myers."""

from __future__ import annotations

import stat
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from difflib import Match, SequenceMatcher
from typing import NamedTuple

from rath._core.blobs import Blob
from rath.backend.effects import FileEffect
from rath.backend.file_tools import split_lines

_VISIT = 4
"""What looking at one diagonal costs, where comparing two lines costs 1; about so when measured."""

_AT_ONCE = 300_000
"""Cost of one search for the shortest way; enough for about 350 lines added or taken away."""

_IN_ALL = 2_000_000
"""Cost that texts of any size may have, about 0.2 s; what is left then is one change."""

_PER_LINE = 2
"""Cost that each line adds to that."""


class Run(NamedTuple):
    """Lines that are equal in both texts."""

    a: int
    """Where they begin in the first text, and `b` in the second."""

    b: int
    size: int


class _Region(NamedTuple):
    """The part of both texts in which to look, from the first line to before the last."""

    a: int
    a_end: int
    b: int
    b_end: int


def common_runs(a: Sequence[str], b: Sequence[str]) -> list[Run]:
    """Return runs of equal lines in order, at last an empty one at the end of both.

    They are the longest ones where the texts differ by at most about 300 lines; else what is found
    in the time that there is, fewer than there are but equal lines in order all the same.
    """
    return _Matching(a, b).runs()


class _Matching:
    def __init__(self, a: Sequence[str], b: Sequence[str]) -> None:
        line_ids: dict[str, int] = {}
        # Numbers are compared faster than lines.
        self._a = [line_ids.setdefault(line, len(line_ids)) for line in a]
        self._b = [line_ids.setdefault(line, len(line_ids)) for line in b]
        self._left = _IN_ALL + _PER_LINE * (len(a) + len(b))

    def runs(self) -> list[Run]:
        """Return the runs; works from the first region to the last."""
        matches: list[Run] = []
        todo: list[_Region | Run] = [_Region(0, len(self._a), 0, len(self._b))]
        while todo:
            part = todo.pop()
            if isinstance(part, _Region):
                todo.extend(reversed(self._parts(part)))
            elif (
                matches
                and (matches[-1].a + matches[-1].size, matches[-1].b + matches[-1].size) == part[:2]
            ):
                matches[-1] = matches[-1]._replace(size=matches[-1].size + part.size)
            else:
                matches.append(part)
        return [*matches, Run(len(self._a), len(self._b), 0)]

    def _parts(self, region: _Region) -> list[_Region | Run]:
        """Return the runs and the smaller regions of a region."""
        first, inner, last = self._equal_ends(region)
        parts: list[_Region | Run] = [first] if first.size else []
        if inner.a < inner.a_end and inner.b < inner.b_end and self._left > 0:
            matches, rest = self._search(inner)
            parts += (rest and self._split(inner)) or [*matches, *rest]
        return [*parts, last] if last.size else parts

    def _equal_ends(self, region: _Region) -> tuple[Run, _Region, Run]:
        a, a_end, b, b_end = region
        while a < a_end and b < b_end and self._a[a] == self._b[b]:
            a, b = a + 1, b + 1
        while a < a_end and b < b_end and self._a[a_end - 1] == self._b[b_end - 1]:
            a_end, b_end = a_end - 1, b_end - 1
        first = Run(region.a, region.b, a - region.a)
        return first, _Region(a, a_end, b, b_end), Run(a_end, b_end, region.a_end - a_end)

    def _search(self, region: _Region) -> tuple[list[Run], list[_Region]]:
        """Return runs of a region, and the part at its end that would have taken too long."""
        in_a = set(self._a[region.a : region.a_end])
        in_b = set(self._b[region.b : region.b_end])
        # Lines that stand in one text only match nothing, and would be most of the work.
        a = [at for at in range(region.a, region.a_end) if self._a[at] in in_b]
        b = [at for at in range(region.b, region.b_end) if self._b[at] in in_a]
        path = _Path(
            [self._a[at] for at in a],
            [self._b[at] for at in b],
        )
        way = path.search()
        self._left -= path.cost
        end = way.last
        runs = list(_in_texts(way.runs(), a, b))
        if end.a == len(a) or end.b == len(b):
            return runs, []
        return runs, [_Region(a[end.a], region.a_end, b[end.b], region.b_end)]

    def _split(self, region: _Region) -> list[_Region | Run]:
        """Return the lines that stand once in both, in order, and what is between; or nothing."""
        a, b = region.a, region.b
        self._left -= region.a_end - a + region.b_end - b
        once_in_b = _once(self._b, b, region.b_end)
        both = [
            (at, once_in_b[line])
            for line, at in _once(self._a, a, region.a_end).items()
            if line in once_in_b
        ]
        increasing = _increasing([place for _, place in both])
        parts: list[_Region | Run] = []
        for at, place in (both[index] for index in increasing):
            parts += [_Region(a, at, b, place), Run(at, place, 1)]
            a, b = at + 1, place + 1
        return [*parts, _Region(a, region.a_end, b, region.b_end)] if parts else []


class _Path:
    """The shortest way from one list to another, by taking away and adding."""

    def __init__(self, a: list[int], b: list[int]) -> None:
        self._a = a
        self._b = b
        self._reached: dict[int, int] = {1: 0}
        """How far in `a` the best way came on each diagonal, which is `a` less `b`."""

        self._ways: dict[int, _Way | None] = {1: None}
        self.cost = len(a) + len(b)

    def search(self) -> _Way:
        """Return the way to the end of both, or the one that came furthest in the time it has."""
        limit = self.cost + _AT_ONCE
        n_steps = 0
        while self.cost <= limit:
            end = self._advance(n_steps)
            if end is not None:
                return end
            n_steps += 1
        return self._furthest()

    def _furthest(self) -> _Way:
        ends = [
            (2 * at - diagonal, at, at - diagonal, self._ways[diagonal])
            for diagonal, at in self._reached.items()
            if at <= len(self._a) and at - diagonal <= len(self._b)
        ]
        _, at, other, way = max(ends, key=lambda end: end[0])
        return _Way(Run(at, other, 0), way)

    def _advance(self, n_steps: int) -> _Way | None:
        """Take one step more and all equal lines that follow; return the way that has ended."""
        a, b, reached, ways = self._a, self._b, self._reached, self._ways
        a_end, b_end = len(a), len(b)
        # Further out lies nothing of either text.
        lowest = -n_steps + 2 * max(0, n_steps - b_end)
        highest = n_steps - 2 * max(0, n_steps - a_end)
        for diagonal in range(lowest, highest + 1, 2):
            is_added = diagonal == -n_steps or (
                diagonal != n_steps and reached[diagonal - 1] < reached[diagonal + 1]
            )
            before = diagonal + 1 if is_added else diagonal - 1
            at = start = reached[before] + (not is_added)
            other = at - diagonal
            while at < a_end and other < b_end and a[at] == b[other]:
                at, other = at + 1, other + 1
            way = ways[before]
            if at > start:
                way = _Way(Run(start, start - diagonal, at - start), way)
                self.cost += at - start
            reached[diagonal], ways[diagonal] = at, way
            if at >= a_end and other >= b_end:
                return _Way(Run(a_end, b_end, 0), way)
        self.cost += _VISIT * (highest - lowest + 2) // 2
        return None


class _Way(NamedTuple):
    """A run and the way to it; ways share their beginnings."""

    last: Run
    before: _Way | None

    def runs(self) -> list[Run]:
        """Return the runs from the first on."""
        found: list[Run] = []
        way: _Way | None = self
        while way is not None:
            found.append(way.last)
            way = way.before
        return found[::-1]


def _in_texts(runs: Iterable[Run], a: list[int], b: list[int]) -> Iterator[Run]:
    """Yield runs of chosen lines as runs of the texts, where these lines may stand apart."""
    for run in runs:
        begin = 0
        for at in range(1, run.size + 1):
            x, y = run.a + at, run.b + at
            is_last = at == run.size
            if is_last or a[x] != a[x - 1] + 1 or b[y] != b[y - 1] + 1:
                yield Run(a[run.a + begin], b[run.b + begin], at - begin)
                begin = at


def _once(lines: list[int], start: int, end: int) -> dict[int, int]:
    """Return the lines that stand once in a part of a text, and where."""
    places: dict[int, int] = {}
    for at in range(start, end):
        places[lines[at]] = -1 if lines[at] in places else at
    return {line: at for line, at in places.items() if at >= 0}


def _increasing(values: list[int]) -> list[int]:
    """Return the indices of a longest increasing part of different values."""
    ends: list[int] = []
    """The smallest value that ends an increasing part, by its length."""

    end_at: list[int] = []
    before: list[int] = []
    for index, value in enumerate(values):
        length = bisect_left(ends, value)
        before.append(end_at[length - 1] if length else -1)
        # Replaces what stands there; at the end it adds.
        ends[length : length + 1] = [value]
        end_at[length : length + 1] = [index]
    longest: list[int] = []
    at = end_at[-1] if end_at else -1
    while at >= 0:
        longest.append(at)
        at = before[at]
    return longest[::-1]


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
        yield f"--- {_NULL if change.before is None else _file_name('a/' + old)}\n"
        yield f"+++ {_NULL if change.after is None else _file_name('b/' + new)}\n"
        yield from _hunks(before, after)


class _Matcher(SequenceMatcher[str]):
    """Groups of changes between texts, by the runs that are found here."""

    def __init__(self, before: list[str], after: list[str]) -> None:
        super().__init__(None, before, after, autojunk=False)
        self._runs = common_runs(before, after)

    def get_matching_blocks(self) -> list[Match]:
        return [Match(*run) for run in self._runs]


def _hunks(before: list[str], after: list[str]) -> Iterator[str]:
    for hunk in _Matcher(before, after).get_grouped_opcodes(_CONTEXT):
        (_, a, _, b, _), (_, _, a_end, _, b_end) = hunk[0], hunk[-1]
        yield f"@@ -{_range(a, a_end)} +{_range(b, b_end)} @@\n"
        for tag, a, a_end, b, b_end in hunk:
            if tag == "equal":
                yield from _marked(" ", before[a:a_end])
            else:
                yield from _marked("-", before[a:a_end])
                yield from _marked("+", after[b:b_end])


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
    old_name = _NULL if before is None else _quoted("a/" + old)
    right = _NULL if after is None else _quoted("b/" + new)
    return f"Binary files {old_name} and {right} differ\n"


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


def _file_name(path: str) -> str:
    """Return a path as `---` and `+++` name it: a tab ends one that holds a blank."""
    quoted = _quoted(path)
    return quoted + "\t" if " " in path and quoted == path else quoted


def _quoted(path: str) -> str:
    """Return a path as git writes it, in quotes where it holds what would be misread."""
    escaped = "".join(map(_escaped, path))
    return path if escaped == path else f'"{escaped}"'


def _escaped(char: str) -> str:
    if char in _ESCAPES:
        return _ESCAPES[char]
    if char < " " or char == "\x7f" or "\ud800" <= char <= "\udfff":
        return "".join(f"\\{byte:03o}" for byte in char.encode(errors="surrogateescape"))
    return char
