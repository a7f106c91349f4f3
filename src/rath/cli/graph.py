"""Lines that lead from sessions to what they were made from, drawn beside a list of them.

●    a merge
├─╮
│ ●  a branch
● │  another one
├─╯
●    what both were made from
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from uuid import UUID

from rath.session.log.index import SessionSummary

__all__ = ["drawn", "newest_first"]

NODE = "●"
Drawn = tuple[str, SessionSummary | None]
"""What stands at the beginning of a line, and the session that the line is about, if any."""


def newest_first(sessions: Sequence[SessionSummary]) -> list[SessionSummary]:
    """Return sessions by time, the newest first, but none before what was made from it.

    What came from itself, by a store that cannot be believed, stands last.
    """
    known = {session.id: session for session in sessions}
    n_waiting = dict.fromkeys(known, 0)
    for session in sessions:
        for parent in _parents(session, known):
            n_waiting[parent] += 1
    ready = [_key(session) for session in sessions if not n_waiting[session.id]]
    heapq.heapify(ready)
    ordered: list[SessionSummary] = []
    while ready:
        _, ident = heapq.heappop(ready)
        ordered.append(known[ident])
        for parent in _parents(known[ident], known):
            n_waiting[parent] -= 1
            if not n_waiting[parent]:
                heapq.heappush(ready, _key(known[parent]))
    done = {session.id for session in ordered}
    return [*ordered, *(session for session in sessions if session.id not in done)]


def drawn(sessions: Sequence[SessionSummary]) -> Iterator[Drawn]:
    """Yield the lines of the graph of sessions, which stand after all that was made from each.

    Parents that are not among them are not drawn.
    """
    known = {session.id for session in sessions}
    lanes: list[UUID | None] = []
    for session in sessions:
        here = [at for at, waited in enumerate(lanes) if waited == session.id]
        at = here[0] if here else _free(lanes)
        if at == len(lanes):
            lanes.append(None)
        yield from _joined(lanes, here)
        lanes[at] = session.id
        yield _line(lanes, at), session
        parents = [each for each in _parents(session, known) if each != session.id]
        lanes[at] = parents[0] if parents else None
        for parent in parents[1:]:
            yield _parted(lanes, at, parent), None
        while lanes and lanes[-1] is None:
            lanes.pop()


def _parents(session: SessionSummary, known: Mapping[UUID, object] | set[UUID]) -> list[UUID]:
    return [parent for parent in dict.fromkeys(session.parents) if parent in known]


def _key(session: SessionSummary) -> tuple[float, UUID]:
    return -session.created_at.timestamp(), session.id


def _free(lanes: list[UUID | None]) -> int:
    """Return the first lane that leads nowhere, or a new one."""
    return lanes.index(None) if None in lanes else len(lanes)


def _joined(lanes: list[UUID | None], here: Sequence[int]) -> Iterator[Drawn]:
    """Yield the line on which the lanes that wait for one session become one."""
    if len(here) < 2:
        return
    marks = _marks(lanes)
    _connect(marks, here[0], here[-1])
    marks[here[0]] = "├"
    for at in here[1:]:
        lanes[at] = None
        marks[at] = "╯" if at == here[-1] else "┴"
    yield _text(marks), None


def _parted(lanes: list[UUID | None], at: int, parent: UUID) -> str:
    """Return the line on which a lane to another parent leaves, and open that lane."""
    to = lanes.index(parent) if parent in lanes else _free(lanes)
    is_new = to == len(lanes) or lanes[to] is None
    if to == len(lanes):
        lanes.append(None)
    marks = _marks(lanes)
    lanes[to] = parent
    left, right = min(at, to), max(at, to)
    _connect(marks, left, right)
    marks[at] = ("├" if to > at else "┤") if lanes[at] is not None else ("╰" if to > at else "╯")
    if is_new:
        marks[to] = "╮" if to > at else "╭"
    else:
        marks[to] = "┤" if to > at else "├"
    return _text(marks)


def _marks(lanes: Sequence[UUID | None]) -> list[str]:
    return [" " if waited is None else "│" for waited in lanes]


def _connect(marks: list[str], left: int, right: int) -> None:
    """Draw over what lies between two lanes; blanks between lanes follow from that."""
    for at in range(left + 1, right):
        marks[at] = "┼" if marks[at] == "│" else "─"


def _text(marks: Sequence[str]) -> str:
    shown = ""
    for at, mark in enumerate(marks):
        shown += mark
        if at + 1 < len(marks):
            goes_on = mark in "├─┼┴╰╭" and marks[at + 1] in "─┼┴╯╮┤"
            shown += "─" if goes_on else " "
    return shown.rstrip()


def _line(lanes: Sequence[UUID | None], at: int) -> str:
    marks = _marks(lanes)
    marks[at] = NODE
    return " ".join(marks).rstrip()
