"""Lineage of sessions as lines of text: a tree, and the graph of `rath log --graph`.

Lines of the graph lead from sessions to what they were made from:

●    a merge
├─╮
│ ●  a branch
● │  another one
├─╯
●    what both were made from
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from datetime import datetime
from itertools import pairwise
from uuid import UUID

from rath._core.dataclasses import dataclass
from rath.session.graph.kind import LineageKind
from rath.session.log.index import SessionSummary

DERIVED = {
    LineageKind.OP_FORK,
    LineageKind.OP_DETACH,
    LineageKind.OP_MERGE,
    LineageKind.OP_DELEGATE,
    LineageKind.OP_INPUT,
    LineageKind.OP_SESSION_COMPRESS,
}
"""Kinds of sessions whose operation is told beside their place."""

LEAST_SIBLINGS = 4
"""Branches of one shape that are drawn as one line; fewer are drawn each."""


@dataclass(frozen=True, slots=True)
class Branch:
    """What one line stands for: a session, a conversation, or branches of one shape."""

    session: SessionSummary
    """The session, or the last one of the conversation or the branches."""

    parents: tuple[UUID, ...]
    """What it hangs on: ids of other lines."""

    turns: tuple[SessionSummary, ...] = ()
    """Earlier sessions of a conversation, which have no lines of their own."""

    siblings: tuple[SessionSummary, ...] = ()
    """The last session of each of the branches, the newest first."""

    n_sessions: int = 1
    """All that have no other line."""

    @property
    def id(self) -> UUID:
        """The id of the session."""
        return self.session.id

    @property
    def created_at(self) -> datetime:
        """The time of the session."""
        return self.session.created_at


def branches_of(sessions: Iterable[SessionSummary]) -> list[Branch]:
    """Return a line for each session."""
    return [Branch(each, each.parents) for each in sessions]


def fold_conversations(lines: Sequence[Branch]) -> list[Branch]:
    """Return lines in which each conversation is one: its last session, with the turns before.

    A turn of which something else was made too keeps its line.
    """
    known = {line.id: line for line in lines}
    children = _children(lines)
    folded: dict[UUID, UUID] = {}
    """From a turn to the session that stands for it."""

    def fold(line: Branch) -> bool:
        below = children.get(line.id, ())
        if len(below) != 1 or line.session.kind is LineageKind.OP_MERGE:
            return False
        last = below[0].id
        while last in folded:
            last = folded[last]
        if last == line.id:  # it came from itself, by a store that cannot be believed
            return False
        folded[line.id] = below[0].id
        return True

    for line in lines:
        if line.session.kind is not LineageKind.OP_INPUT:
            continue
        fold(line)
        above = _first_parent(line, known)
        while above is not None and above.id not in folded and fold(above):
            above = _first_parent(above, known)
    turns: dict[UUID, list[SessionSummary]] = {}
    parents: dict[UUID, tuple[UUID, ...]] = {}
    for line in lines:
        if line.id not in folded:
            continue
        last = folded[line.id]
        while last in folded:
            last = folded[last]
        turns.setdefault(last, []).append(line.session)
        kept = tuple(parent for parent in line.parents if parent not in folded)
        parents[last] = (*parents.get(last, ()), *kept)
    return [
        replace(
            line,
            turns=tuple(turns[line.id]),
            n_sessions=1 + len(turns[line.id]),
            parents=(*(each for each in line.parents if each not in folded), *parents[line.id]),
        )
        if line.id in turns
        else line
        for line in lines
        if line.id not in folded
    ]


def fold_siblings(lines: Sequence[Branch], least: int = LEAST_SIBLINGS) -> list[Branch]:
    """Return lines in which many branches of one shape are one.

    Branches are of one shape where they begin at one session, run through the same places of a
    workflow without a branch of their own, and end there or in one merge.
    """
    known = {line.id: line for line in lines}
    children = _children(lines)
    n_parents = {line.id: len(_known_parents(line, known)) for line in lines}
    gone: set[UUID] = set()
    instead: dict[UUID, UUID] = {}
    made: dict[UUID, Branch] = {}
    for parent, firsts in children.items():
        shapes: dict[object, list[list[Branch]]] = {}
        for first in firsts:
            if n_parents[first.id] != 1:
                continue
            links, end = _chain(first, children, n_parents)
            if links:
                places = tuple((each.session.path, each.session.operator) for each in links)
                shapes.setdefault((places, end), []).append(links)
        for alike in shapes.values():
            if len(alike) < least:
                continue
            ends = sorted((each[-1] for each in alike), key=_age, reverse=True)
            shown = ends[0]
            made[shown.id] = Branch(
                shown.session,
                (parent,),
                siblings=tuple(each.session for each in ends),
                n_sessions=sum(link.n_sessions for links in alike for link in links),
            )
            gone |= {link.id for links in alike for link in links} - {shown.id}
            instead |= {each.id: shown.id for each in ends}
    return [
        made.get(line.id)
        or replace(
            line, parents=tuple(dict.fromkeys(instead.get(each, each) for each in line.parents))
        )
        for line in lines
        if line.id not in gone
    ]


def _chain(
    first: Branch, children: Mapping[UUID, Sequence[Branch]], n_parents: Mapping[UUID, int]
) -> tuple[list[Branch], UUID | None]:
    """Return the sessions from one on, each the only child, and the merge that they end in.

    Of one that branches there are none.
    """
    links = [first]
    while below := children.get(links[-1].id, ()):
        if len(below) > 1 or below[0] in links:
            return [], None
        if n_parents[below[0].id] > 1:
            return links, below[0].id
        links.append(below[0])
    return links, None


def _children(lines: Sequence[Branch]) -> dict[UUID, list[Branch]]:
    known = {line.id: line for line in lines}
    children: dict[UUID, list[Branch]] = {}
    for line in lines:
        for parent in _known_parents(line, known):
            children.setdefault(parent, []).append(line)
    return children


def _known_parents(line: Branch, known: Mapping[UUID, Branch]) -> list[UUID]:
    return [each for each in dict.fromkeys(line.parents) if each in known and each != line.id]


def _first_parent(line: Branch, known: Mapping[UUID, Branch]) -> Branch | None:
    return next((known[each] for each in _known_parents(line, known)), None)


def _age(line: Branch) -> tuple[datetime, UUID]:
    return line.created_at, line.id


def lineage_of(lines: Sequence[Branch]) -> list[tuple[str, Branch]]:
    """Return lines in the order of a tree, each with the strokes that lead to it.

    Each stands below the first of its parents that is among them, roots in their order. One that
    is the only one made of its parent stands straight below it, so that a long chain stays
    readable: only where there are several does the tree grow wider.
    """
    known = {line.id for line in lines}
    children: dict[UUID, list[Branch]] = {}
    roots: list[Branch] = []
    for line in lines:
        parent = next((each for each in line.parents if each in known), None)
        if parent is None or parent == line.id:
            roots.append(line)
        else:
            children.setdefault(parent, []).append(line)
    reached: list[tuple[str, Branch]] = []
    seen: set[UUID] = set()
    waiting = [("", "", root) for root in reversed(roots)]
    while waiting:
        before, below, line = waiting.pop()
        if line.id in seen:
            continue
        seen.add(line.id)
        reached.append((before, line))
        listed = sorted(children.get(line.id, ()), key=_age, reverse=True)
        is_chain = len(listed) == 1 and before != ""
        for number, child in enumerate(listed):
            if is_chain:
                waiting.append((below, below, child))
            elif number == 0:
                waiting.append((f"{below}└─ ", f"{below}   ", child))
            else:
                waiting.append((f"{below}├─ ", f"{below}│  ", child))
    # What came from itself, by a store that cannot be believed, hangs below no root.
    return [*reached, *(("", line) for line in lines if line.id not in seen)]


def newest_first(lines: Sequence[Branch]) -> list[Branch]:
    """Return lines by time, the newest first, but none before what was made from it.

    What came from itself, by a store that cannot be believed, stands last.
    """
    known = {line.id: line for line in lines}
    parents = {line.id: _known_parents(line, known) for line in lines}
    n_waiting = dict.fromkeys(known, 0)
    for made_from in parents.values():
        for parent in made_from:
            n_waiting[parent] += 1

    def key(ident: UUID) -> tuple[float, UUID]:
        return -known[ident].created_at.timestamp(), ident

    ready = [key(ident) for ident, count in n_waiting.items() if not count]
    heapq.heapify(ready)
    ordered: list[Branch] = []
    while ready:
        _, ident = heapq.heappop(ready)
        ordered.append(known.pop(ident))
        for parent in parents[ident]:
            n_waiting[parent] -= 1
            if not n_waiting[parent]:
                heapq.heappush(ready, key(parent))
    return [*ordered, *known.values()]


@dataclass(slots=True)
class _Lanes:
    """The lanes of a graph, each with the session that it leads to; None where it is free."""

    gap: str
    """What stands between two lanes; nothing for a narrow graph."""

    ends: list[UUID | None] = field(default_factory=list[UUID | None])

    def free(self) -> int:
        """Return the first lane that leads nowhere, or open a new one."""
        if None not in self.ends:
            self.ends.append(None)
        return self.ends.index(None)

    def marks(self, left: int = 0, right: int = 0) -> list[str]:
        """Return the marks of all lanes, with a line across what lies between two of them."""
        drawn = [" " if end is None else "│" for end in self.ends]
        for at in range(left + 1, right):
            drawn[at] = "┼" if drawn[at] == "│" else "─"
        return drawn

    def join(self, marks: Sequence[str]) -> str:
        """Return the marks of lanes with what goes on between them."""
        joined = marks[0]
        for left, right in pairwise(marks):
            is_across = left in "├─┼┴╰╭" and right in "─┼┴╯╮┤"
            joined += "─" * len(self.gap) if is_across else self.gap
            joined += right
        return joined.rstrip()


def draw_graph(
    lines: Sequence[Branch], *, is_narrow: bool = False
) -> Iterator[tuple[str, Branch | None]]:
    """Yield the lines of the graph, each with what it is about, if anything.

    Args:
        lines: Each after all that was made from it; parents not among them are not drawn.
        is_narrow: Leave no gap between two lanes.
    """
    known = {line.id: line for line in lines}
    lanes = _Lanes("" if is_narrow else " ")
    for line in lines:
        here = [at for at, end in enumerate(lanes.ends) if end == line.id]
        at = here[0] if here else lanes.free()
        if len(here) > 1:  # the lanes that wait for it become one
            drawn = lanes.marks(here[0], here[-1])
            drawn[at] = "├"
            for joined in here[1:]:
                lanes.ends[joined] = None
                drawn[joined] = "╯" if joined == here[-1] else "┴"
            yield lanes.join(drawn), None
        lanes.ends[at] = line.id
        drawn = lanes.marks()
        drawn[at] = "●"
        yield lanes.gap.join(drawn).rstrip(), line
        parents = _known_parents(line, known)
        lanes.ends[at] = parents[0] if parents else None
        for parent in parents[1:]:  # a lane to it leaves here
            to = lanes.ends.index(parent) if parent in lanes.ends else lanes.free()
            is_new = lanes.ends[to] is None
            drawn = lanes.marks(min(at, to), max(at, to))
            lanes.ends[to] = parent
            drawn[at] = "├" if to > at else "┤"
            if is_new:
                drawn[to] = "╮" if to > at else "╭"
            else:
                drawn[to] = "┤" if to > at else "├"
            yield lanes.join(drawn), None
        while lanes.ends and lanes.ends[-1] is None:
            lanes.ends.pop()
