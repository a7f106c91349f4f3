"""Sessions in the order of a tree, with the lines that lead to each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from uuid import UUID

from rath.session.log.index import SessionSummary

__all__ = ["Branch", "grown", "lineage_of"]

Branch = tuple[str, SessionSummary]
"""What stands before a session, and the session."""


def lineage_of(sessions: Sequence[SessionSummary]) -> list[Branch]:
    """Return sessions below the first parent of each that is among them, roots in their order.

    A session that is the only one made of its parent stands straight below it, so that a long chain
    stays readable: only where there are several does the tree grow wider.
    """
    known = {session.id for session in sessions}
    children: dict[UUID, list[SessionSummary]] = {}
    roots: list[SessionSummary] = []
    for session in sessions:
        parent = next((each for each in session.parents if each in known), None)
        if parent is None or parent == session.id:
            roots.append(session)
        else:
            children.setdefault(parent, []).append(session)
    for listed in children.values():
        listed.sort(key=lambda session: (session.created_at, session.id))
    reached: list[Branch] = []
    seen: set[UUID] = set()
    for root in roots:
        reached += grown(root, children, seen)
    # What came from itself, by a store that cannot be believed, hangs below no root.
    reached += [("", session) for session in sessions if session.id not in seen]
    return reached


def grown(
    root: SessionSummary, children: Mapping[UUID, Sequence[SessionSummary]], seen: set[UUID]
) -> Iterable[Branch]:
    """Yield a session and all that came from it, and add their ids to `seen`; no recursion."""
    waiting = [("", "", root)]
    while waiting:
        before, below, session = waiting.pop()
        if session.id in seen:
            continue
        seen.add(session.id)
        yield before, session
        made = children.get(session.id, ())
        is_chain = len(made) == 1 and session is not root
        for number, child in enumerate(reversed(made)):
            if is_chain:
                waiting.append((below, below, child))
            elif number == 0:
                waiting.append((f"{below}└─ ", f"{below}   ", child))
            else:
                waiting.append((f"{below}├─ ", f"{below}│  ", child))
