"""Sessions on disk: one JSON Lines file for each."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rath.session.loading import load_stored as load_stored
    from rath.session.loading import save_many as save_many
    from rath.session.log.header import PersistedSessionHeader as PersistedSessionHeader
    from rath.session.log.json_lines import CURRENT_SCHEMA_VERSION as CURRENT_SCHEMA_VERSION
    from rath.session.log.paths import SESSION_FILE_SUFFIX as SESSION_FILE_SUFFIX
    from rath.session.log.paths import SESSION_PARTIAL_SUFFIX as SESSION_PARTIAL_SUFFIX
    from rath.session.log.paths import SESSIONS_DIR_NAME as SESSIONS_DIR_NAME
    from rath.session.log.paths import ensure_sessions_dir as ensure_sessions_dir
    from rath.session.log.paths import session_file as session_file
    from rath.session.log.paths import session_partial_file as session_partial_file
    from rath.session.log.paths import sessions_dir as sessions_dir
    from rath.session.log.reader import register_chunk_migration as register_chunk_migration
    from rath.session.log.reader import register_header_migration as register_header_migration
    from rath.session.persistence.errors import PersistenceError as PersistenceError
    from rath.session.persistence.loader import PersistedSession as PersistedSession
    from rath.session.persistence.loader import PersistedSessionMeta as PersistedSessionMeta
    from rath.session.persistence.loader import delete_session as delete_session
    from rath.session.persistence.loader import list_persisted_sessions as list_persisted_sessions
    from rath.session.persistence.loader import load_session as load_session
    from rath.session.persistence.loader import prune_sessions as prune_sessions
    from rath.session.persistence.writer import SessionWriter as SessionWriter
else:
    from rath._core.lazy_imports import lazy_names

    _MODULES = {
        "errors": ("PersistenceError",),
        "loader": (
            *("PersistedSession", "PersistedSessionMeta", "delete_session", "load_session"),
            *("list_persisted_sessions", "prune_sessions"),
        ),
        "rath.session.log.reader": (
            *("CURRENT_SCHEMA_VERSION", "register_chunk_migration", "register_header_migration"),
        ),
        "paths": (
            *("SESSIONS_DIR_NAME", "SESSION_FILE_SUFFIX", "SESSION_PARTIAL_SUFFIX"),
            *("ensure_sessions_dir", "session_file", "session_partial_file", "sessions_dir"),
        ),
        "rath.session.log.header": ("PersistedSessionHeader",),
        "rath.session.loading": ("save_many",),
        "writer": ("SessionWriter",),
    }
    __all__ = [name for names in _MODULES.values() for name in names]
    _LATE = {**_MODULES, "rath.session.loading": ("load_stored", "save_many")}
    __getattr__, __dir__ = lazy_names(__name__, _LATE)
