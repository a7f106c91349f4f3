"""Loading by id, by path, and by the URL of a store: what `Session.load` does."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

from rath.session.log.files import FileStore
from rath.session.log.store import SessionStore, default_store, open_store
from rath.session.persistence.loading.load import Loaded, load, load_file


def load_stored(
    session: UUID | str | Path,
    *,
    store: SessionStore | str | None = None,
    recover: bool = False,
) -> Loaded:
    """Read a session by its id, or from a file.

    Args:
        session: Its id, or the path of its file: text that is no UUID is a path.
        store: Where it is, or the URL of that; by default the store of the home. For a path:
            where its parents are, by default beside it.
        recover: Where a log cannot be believed, take what stands before.

    Raises:
        PersistenceError: It is not there or cannot be read.
        SessionDamaged: Its log, or that of one it came from, is not what was written.
    """
    named = _named(session)
    if isinstance(named, UUID):
        return load(_opened(store) or default_store(), named, recover=recover)
    return load_file(named, _opened(store) or FileStore(named.parent), recover=recover)


def _named(session: UUID | str | Path) -> UUID | Path:
    if not isinstance(session, str):
        return session
    try:
        return UUID(session)
    except ValueError:
        return Path(session)


def _opened(store: SessionStore | str | None) -> SessionStore | None:
    return open_store(store) if isinstance(store, str) else store
