"""Where logs of sessions are kept: files by default, other places by their URL."""

from __future__ import annotations

from rath._core.blobs import Blob
from rath.session.persistence.store.abc import SessionLog, SessionStore, StoredLog
from rath.session.persistence.store.files import FileStore
from rath.session.persistence.store.registry import (
    StoreFactory,
    default_store,
    open_store,
    stores,
)

__all__ = [
    "Blob",
    "FileStore",
    "SessionLog",
    "SessionStore",
    "StoreFactory",
    "StoredLog",
    "default_store",
    "open_store",
    "stores",
]
