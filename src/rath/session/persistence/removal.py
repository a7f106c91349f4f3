"""Moving stored sessions to the trash, so that what stays loads as before."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

from rath.errors import PersistenceError
from rath.session.persistence.loading.closure import needed_by
from rath.session.persistence.loading.sources import Source
from rath.session.persistence.paths import checked_id
from rath.session.persistence.rewriting import children_of, make_independent
from rath.session.persistence.store.abc import SessionStore
from rath.session.persistence.store.files import FileStore
from rath.session.persistence.store.registry import default_store

__all__ = ["delete_session", "prunable_sessions", "prune_sessions"]

_logger = logging.getLogger(__name__)


def delete_session(
    session_id: UUID | str, *, path: Path | None = None, store: SessionStore | None = None
) -> bool:
    """Move a stored session to the trash; return whether there was one.

    Sessions that begin with rows or entries of it get these into their own logs first, so that they
    load as before. Contents that nothing names any more go when the trash is emptied, which `gc`
    does. Cost: the first line of every log is read.

    Args:
        session_id: Which one.
        path: Move this file and the partial one beside it instead; nothing else is looked at.
        store: Where it is; by default the store of the home.

    Raises:
        ValueError: `session_id` is not a UUID.
        PersistenceError: It, or one that begins with what it holds, is being written, cannot be
            written, or cannot be believed; or such a one was begun meanwhile.
    """
    wanted = checked_id(session_id)
    if path is not None:
        return FileStore.at(path, wanted).delete(wanted)
    store = store or default_store()
    if store.read(wanted) is None:
        return False
    if store.is_being_written(wanted):
        raise PersistenceError(
            f"session {wanted} is being written; wait for its run to end, or cancel it, then "
            "delete it"
        )
    before = store.stamps().keys()
    for child in children_of(store, wanted):
        make_independent(store, child, of=wanted)
    deleted = store.delete(wanted)
    begun = children_of(store, wanted, known=before) if deleted else []
    if begun:
        store.restore(wanted)
        raise PersistenceError(
            f"session {wanted} is kept: session {begun[0]} was begun meanwhile with what it holds; "
            "delete it again once that run has ended"
        )
    return deleted


def prunable_sessions(*, older_than: timedelta, store: SessionStore | None = None) -> list[UUID]:
    """Return the sessions that `prune_sessions` would move to the trash now."""
    return _prunable(store or default_store(), older_than)


def prune_sessions(*, older_than: timedelta, store: SessionStore | None = None) -> list[UUID]:
    """Move the sessions that were last written longer ago to the trash, and return their ids.

    Sessions that are being written are kept, those that cannot be believed, and all that a session
    which is kept came from. When a session was last written is told by its log. What was in the
    trash before is removed for good, with contents that nothing names any more.

    Args:
        older_than: Age from which a session goes.
        store: Where; by default the store of the home.
    """
    store = store or default_store()
    store.empty_trash()
    deleted: list[UUID] = []
    for session in _prunable(store, older_than):
        try:
            if store.delete(session):
                deleted.append(session)
        except PersistenceError as exc:
            _logger.warning("session %s is kept: %s", session, exc)
    return deleted


@dataclass(frozen=True, slots=True)
class _Known:
    """What pruning knows of a log."""

    created_at: datetime
    came_from: tuple[UUID, ...]
    is_old: bool


def _prunable(store: SessionStore, older_than: timedelta) -> list[UUID]:
    """Return what goes, a session before those that it came from."""
    limit = datetime.now(UTC) - older_than
    first = store.stamps()
    known = _looked_at(store, first, limit)
    # Those that were begun meanwhile may have come from what is old.
    known |= _looked_at(store, store.stamps().keys() - first.keys(), limit)
    kept = _with_ancestors((session for session, each in known.items() if not each.is_old), known)
    # Begun later: a child, whose parents must not go first.
    old = sorted(known.keys() - kept, key=lambda session: known[session].created_at)
    return old[::-1]


def _looked_at(
    store: SessionStore, sessions: Iterable[UUID], limit: datetime
) -> dict[UUID, _Known]:
    source, known = Source(store, recover=True), dict[UUID, _Known]()
    for session in sessions:
        try:
            content = source.find(session)
        except PersistenceError as exc:
            _logger.warning("kept, with nothing that it may have come from: %s", exc)
            continue
        if content is not None:
            is_old = content.problem is None and content.last_written < limit
            is_old = is_old and not store.is_being_written(session)
            came_from = tuple(needed_by(content))
            known[session] = _Known(content.header.created_at, came_from, is_old)
    return known


def _with_ancestors(sessions: Iterable[UUID], known: Mapping[UUID, _Known]) -> Collection[UUID]:
    todo, found = list(sessions), set[UUID]()
    while todo:
        session = todo.pop()
        if session not in found and session in known:
            found.add(session)
            todo += known[session].came_from
    return found
