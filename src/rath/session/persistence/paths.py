"""Where session files are: the documented path of these names."""

from __future__ import annotations

from rath.session.log.paths import (
    SESSION_FILE_SUFFIX,
    SESSION_PARTIAL_SUFFIX,
    SESSIONS_DIR_NAME,
    ensure_sessions_dir,
    session_file,
    session_partial_file,
    sessions_dir,
)

__all__ = [
    "SESSIONS_DIR_NAME",
    "SESSION_FILE_SUFFIX",
    "SESSION_PARTIAL_SUFFIX",
    "ensure_sessions_dir",
    "session_file",
    "session_partial_file",
    "sessions_dir",
]
