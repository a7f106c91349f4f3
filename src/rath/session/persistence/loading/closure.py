"""The logs that a session is made of: its own, after those of all that it came from."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from uuid import UUID

from rath.errors import SessionDamaged
from rath.session.persistence.loading.content import Content

Find = Callable[[UUID], Content | None]
"""Gives what the log of a session says, None where there is none."""


def closure(content: Content, find: Find, *, known: Container[UUID] = ()) -> list[Content]:
    """Return what a session and its ancestors say, each once, after what it builds on.

    Ancestors without a log are left out. Cost: each log is read once; no recursion.

    Args:
        content: What the session itself says.
        find: Reads the others.
        known: Those that are left out, with what they came from, since they were built before.

    Raises:
        SessionDamaged: A log cannot be believed, or a session builds on itself.
    """
    found: dict[UUID, Content | None] = {content.header.session: content}
    entered: set[UUID] = set()
    done: dict[UUID, Content] = {}
    todo = [(content.header.session, False)]
    while todo:
        session, is_after_parents = todo.pop()
        if session not in found:
            found[session] = _found(session, find, content.header.session)
        current = found[session]
        if current is None or session in done:
            continue
        if is_after_parents:
            done[session] = current
            continue
        if session in entered:
            raise SessionDamaged(
                f"session {session} builds on a session that builds on itself",
                where=current.where,
                line=1,
            )
        entered.add(session)
        todo.append((session, True))
        needed = (each for each in needed_by(current) if each not in done and each not in known)
        todo += [(each, False) for each in needed]
    return list(done.values())


def needed_by(content: Content) -> Iterator[UUID]:
    """Yield the sessions that a session builds on, each once: parents, and sources of its parts.

    Version 1 stored no parents: files that bear their names say nothing of them.
    """
    header = content.header
    if content.reader.version > 1:
        parts = (part.session for part in (*header.rows, *header.entries))
        yield from dict.fromkeys((*header.parents, *parts))


def _found(session: UUID, find: Find, wanted: UUID) -> Content | None:
    try:
        return find(session)
    except SessionDamaged as exc:
        exc.add_note(f"session {wanted} came from session {session}, whose log this is")
        raise
