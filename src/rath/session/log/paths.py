"""Names and places of the files of sessions, and the errors of the file system about them."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

from rath._core.lazy_imports import lazy_modules
from rath._core.persistent_dirs import PersistentKind
from rath.errors import PersistenceError

if TYPE_CHECKING:
    from rath.config import paths
else:
    (paths,) = lazy_modules(__name__, "rath.config.paths")

__all__ = [
    "SESSIONS_DIR_NAME",
    "SESSION_FILE_SUFFIX",
    "SESSION_PARTIAL_SUFFIX",
    "ensure_sessions_dir",
    "session_file",
    "session_partial_file",
    "sessions_dir",
]

SESSIONS_DIR_NAME = "sessions"
SESSION_FILE_SUFFIX = ".jsonl"
PARTIAL_SUFFIX = ".__partial__"
SESSION_PARTIAL_SUFFIX = SESSION_FILE_SUFFIX + PARTIAL_SUFFIX

INDEX_FILE_NAME = "index.sqlite3"
"""The index of the logs beside it; SQLite and its lock put more files with that beginning there."""

_FULL = ". Free space there, and do it again"
_FORBIDDEN = ". Give this user the right to it, or name another home by OPENRATH_HOME"
_NO_DIRECTORY = ". A file stands where a directory is needed: move it away"
_CURES = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EACCES: _FORBIDDEN,
    errno.EPERM: _FORBIDDEN,
    errno.EROFS: _FORBIDDEN,
    errno.ENOTDIR: _NO_DIRECTORY,
    errno.EEXIST: _NO_DIRECTORY,
}
"""What can be done about an error of the file system."""

_SESSION = PersistentKind("session", PersistenceError, "close its writer")


def sessions_dir() -> Path:
    """Return the directory of session files; creates nothing."""
    return paths.resolve_config_dir() / SESSIONS_DIR_NAME


def ensure_sessions_dir() -> Path:
    """Create the directory of session files where it is missing, and return it.

    Raises:
        PersistenceError: It cannot be created.
    """
    return ensure_private(sessions_dir())


def ensure_private(directory: Path) -> Path:
    """Create a directory that only its owner can read, where it is missing, and return it.

    Raises:
        PersistenceError: It cannot be created.
    """
    with os_errors(directory, "cannot be created"):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    return directory


def session_file(session_id: UUID | str) -> Path:
    """Return the file of a session that was closed.

    Raises:
        ValueError: `session_id` is not a UUID.
    """
    return sessions_dir() / f"{checked_id(session_id)}{SESSION_FILE_SUFFIX}"


def session_partial_file(session_id: UUID | str) -> Path:
    """Return the file of a session that is being written, or whose writer was cut off.

    Raises:
        ValueError: `session_id` is not a UUID.
    """
    return partial_path_of(session_file(session_id))


def partial_path_of(path: Path) -> Path:
    """Return the file under which `path` is written until it is complete."""
    return path.with_name(path.name + PARTIAL_SUFFIX)


def checked_id(session_id: UUID | str) -> UUID:
    """Return a session id as a UUID: nothing else ever becomes part of a path.

    Raises:
        ValueError: It is not one.
    """
    return _SESSION.checked_id(session_id)


@contextlib.contextmanager
def os_errors(place: object, problem: str, advice: str = "") -> Generator[None]:
    """Turn an OSError of a block into a PersistenceError that says what can be done about it.

    Its text is `<place> <problem>: <why><advice>. <cure>`.
    """
    try:
        yield
    except OSError as exc:
        cure = _CURES.get(exc.errno or 0, "")
        raise PersistenceError(f"{place} {problem}: {exc.strerror or exc}{advice}{cure}") from exc
