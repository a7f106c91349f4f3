"""Where sandboxes that outlive a process are kept."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from uuid import UUID

from rath._core.files import make_private_directory
from rath.backend.use import LOCAL_SUBDIR, SANDBOXES_DIR_NAME
from rath.config.paths import resolve_config_dir
from rath.errors import BackendError

__all__ = [
    "LOCAL_SUBDIR",
    "OPENSANDBOX_INDEX_SUFFIX",
    "OPENSANDBOX_SUBDIR",
    "SANDBOXES_DIR_NAME",
    "ensure_local_root",
    "ensure_opensandbox_root",
    "local_root",
    "local_sandbox_dir",
    "opensandbox_index_path",
    "opensandbox_root",
    "sandboxes_dir",
]

OPENSANDBOX_SUBDIR = "opensandbox"
FORKS_SUBDIR = "forks"
OPENSANDBOX_INDEX_SUFFIX = ".json"


def sandboxes_dir() -> Path:
    """Return the directory of all sandboxes; creates nothing."""
    return resolve_config_dir() / SANDBOXES_DIR_NAME


def local_root() -> Path:
    """Return the directory of the workspaces on this host; creates nothing."""
    return sandboxes_dir() / LOCAL_SUBDIR


def local_sandbox_dir(sandbox_id: UUID | str) -> Path:
    """Return the workspace of that id; creates nothing.

    Raises:
        ValueError: `sandbox_id` is not a UUID.
    """
    return local_root() / str(checked_id(sandbox_id))


def opensandbox_root() -> Path:
    """Return the directory of what is known of remote sandboxes; creates nothing."""
    return sandboxes_dir() / OPENSANDBOX_SUBDIR


def opensandbox_index_path(sandbox_id: UUID | str) -> Path:
    """Return the file that says which remote sandbox has that id; creates nothing.

    Raises:
        ValueError: `sandbox_id` is not a UUID.
    """
    return opensandbox_root() / f"{checked_id(sandbox_id)}{OPENSANDBOX_INDEX_SUFFIX}"


def forks_root() -> Path:
    """Return the directory of what forks with a workspace of their own keep; creates nothing."""
    return sandboxes_dir() / FORKS_SUBDIR


def fork_dir(fork_id: UUID | str) -> Path:
    """Return the directory of that fork; creates nothing.

    Raises:
        ValueError: `fork_id` is not a UUID.
    """
    return forks_root() / str(checked_id(fork_id))


def ensure_local_root() -> Path:
    """Create the directory of the workspaces on this host where it is missing, and return it.

    Raises:
        BackendError: It cannot be created.
    """
    return ensure_private(local_root())


def ensure_opensandbox_root() -> Path:
    """Create the directory for remote sandboxes where it is missing, and return it.

    Raises:
        BackendError: It cannot be created.
    """
    return ensure_private(opensandbox_root())


def ensure_forks_root() -> Path:
    """Create the directory of forks where it is missing, and return it.

    Raises:
        BackendError: It cannot be created.
    """
    return ensure_private(forks_root())


def ensure_private(directory: Path) -> Path:
    """Create a directory that only its owner can read, where it is missing, and return it.

    Raises:
        BackendError: It cannot be created.
    """
    try:
        make_private_directory(directory)
    except OSError as exc:
        raise BackendError(
            f"{str(directory)!r} cannot be created: {exc.strerror or exc}; make the directory "
            "above it writable, or name another one in OPENRATH_HOME"
        ) from exc
    return directory


def listed_ids(root: Path, *, prefix: str = "", suffix: str = "") -> list[UUID]:
    """Return the ids of the directories in `root`, or of the files where a suffix is given."""
    try:
        entries = list(os.scandir(root))
    except (FileNotFoundError, NotADirectoryError):
        return []
    found: list[UUID] = []
    for entry in entries:
        is_kind = entry.is_file if suffix else entry.is_dir
        with contextlib.suppress(ValueError):
            known = UUID(entry.name.removeprefix(prefix).removesuffix(suffix))
            if entry.name == f"{prefix}{known}{suffix}" and is_kind(follow_symlinks=False):
                found.append(known)
    return sorted(found)


def checked_id(sandbox_id: UUID | str) -> UUID:
    """Return the id of a sandbox as a UUID: nothing else ever becomes part of a path.

    Raises:
        ValueError: It is not one.
    """
    if isinstance(sandbox_id, UUID):
        return sandbox_id
    try:
        return UUID(sandbox_id)
    except (ValueError, AttributeError, TypeError):
        raise ValueError(f"{sandbox_id!r} is not a sandbox id; expected a UUID") from None
