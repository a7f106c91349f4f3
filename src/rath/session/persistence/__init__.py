"""Sessions on disk: one JSON Lines file for each."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rath.session.loading import load_stored as load_stored
    from rath.session.log.paths import (
        SESSION_FILE_SUFFIX,
        SESSION_PARTIAL_SUFFIX,
        SESSIONS_DIR_NAME,
        ensure_sessions_dir,
        session_file,
        session_partial_file,
        sessions_dir,
    )
    from rath.session.log.records import PersistedSessionHeader
    from rath.session.persistence.errors import PersistenceError
    from rath.session.persistence.loader import (
        PersistedSession,
        PersistedSessionMeta,
        delete_session,
        list_persisted_sessions,
        load_session,
        prune_sessions,
    )
    from rath.session.persistence.migrations import (
        CURRENT_SCHEMA_VERSION,
        register_chunk_migration,
        register_header_migration,
    )
    from rath.session.persistence.writer import SessionWriter
else:
    from rath._core.late import late_names

    __getattr__, __dir__ = late_names(
        __name__,
        {
            "errors": ("PersistenceError",),
            "loader": (
                "PersistedSession",
                "PersistedSessionMeta",
                "delete_session",
                "list_persisted_sessions",
                "load_session",
                "prune_sessions",
            ),
            "rath.session.loading": ("load_stored",),
            "migrations": (
                "CURRENT_SCHEMA_VERSION",
                "register_chunk_migration",
                "register_header_migration",
            ),
            "rath.session.log.paths": (
                "SESSIONS_DIR_NAME",
                "SESSION_FILE_SUFFIX",
                "SESSION_PARTIAL_SUFFIX",
                "ensure_sessions_dir",
                "session_file",
                "session_partial_file",
                "sessions_dir",
            ),
            "rath.session.log.records": ("PersistedSessionHeader",),
            "writer": ("SessionWriter",),
        },
    )

__all__ = [
    "CURRENT_SCHEMA_VERSION",
    "SESSIONS_DIR_NAME",
    "SESSION_FILE_SUFFIX",
    "SESSION_PARTIAL_SUFFIX",
    "PersistedSession",
    "PersistedSessionHeader",
    "PersistedSessionMeta",
    "PersistenceError",
    "SessionWriter",
    "delete_session",
    "ensure_sessions_dir",
    "list_persisted_sessions",
    "load_session",
    "prune_sessions",
    "register_chunk_migration",
    "register_header_migration",
    "session_file",
    "session_partial_file",
    "sessions_dir",
]
