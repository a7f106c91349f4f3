"""Where the index of a store stands."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

from rath.config.paths import resolve_config_dir
from rath.session.log.files import FileStore
from rath.session.log.store import SessionStore
from rath.session.persistence.paths import INDEX_FILE_NAME

__all__ = ["index_file"]

_CACHE_DIR_NAME = "cache"
_DIGITS = 32


def index_file(store: SessionStore) -> Path | None:
    """Return where the index of a store stands or would be made; creates nothing.

    That of a store of files stands beside them, so that it goes where they go. Others have theirs
    in the home of rath, under a digest of where they are.

    Returns:
        None where there is no place for one, as in a container without a home.
    """
    if isinstance(store, FileStore):
        return store.directory / INDEX_FILE_NAME
    digest = sha256(f"{store.name} {store.where}".encode()).hexdigest()[:_DIGITS]
    try:
        return resolve_config_dir() / _CACHE_DIR_NAME / f"sessions-{digest}.sqlite3"
    except FileNotFoundError:
        return None
