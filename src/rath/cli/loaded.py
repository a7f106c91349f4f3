"""A stored session for a verb that asks it something."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from rath.cli.sessions import Damaged, find_session, opened_store, store_of
from rath.errors import SessionDamaged
from rath.session import Session
from rath.session.loading import Loaded, load
from rath.session.log.store import SessionStore

__all__ = ["load_session", "loaded"]


@contextmanager
def loaded(*texts: str, store: str | None) -> Generator[tuple[Session, ...]]:
    """Load the sessions that a command line names.

    Args:
        texts: Ids, their beginnings, or session files.
        store: What `--store` says.

    Raises:
        Misuse: A text names no session, or several.
        Problem: There is no such session.
        Damaged: A log cannot be believed.
    """
    try:
        with opened_store(store) as opened:
            yield tuple(Session.load(find_session(text, opened), store=opened) for text in texts)
    except SessionDamaged as exc:
        raise Damaged(str(exc)) from exc


def load_session(text: str, store: SessionStore, *, recover: bool = False) -> Loaded:
    """Return the session that a command line names, with all that it came from.

    Args:
        text: See `rath.cli.sessions.find_session`.
        store: Where ids are looked for.
        recover: Take of a damaged log what can be believed; `Loaded.problem` says what cannot.

    Raises:
        Misuse: See `rath.cli.sessions.find_session`.
        Problem: See `rath.cli.sessions.find_session`.
        PersistenceError: It cannot be read.
        SessionDamaged: It, or what it came from, is not what was written.
    """
    session, place = store_of(find_session(text, store), store)
    return load(place, session, recover=recover)
