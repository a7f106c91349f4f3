"""Where logs of sessions are kept: files by default, other places by their URL."""

from __future__ import annotations

from rath._core.blobs import Blob
from rath.session.log.files import FileStore
from rath.session.log.store import (
    CompleteLog,
    SessionLog,
    SessionStore,
    StoredLog,
    StoreFactory,
    default_store,
    open_store,
    stores,
)

__all__ = [
    "Blob",
    "CompleteLog",
    "FileStore",
    "SessionLog",
    "SessionStore",
    "StoreFactory",
    "StoredLog",
    "default_store",
    "open_store",
    "stores",
]
