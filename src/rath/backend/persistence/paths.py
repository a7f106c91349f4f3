"""Where sandboxes that outlive a process are kept."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

from rath.backend.workspace import LOCAL_SUBDIR, SANDBOX, SANDBOXES_DIR_NAME
from rath.config.paths import resolve_config_dir

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
    return local_root() / str(SANDBOX.checked_id(sandbox_id))


def opensandbox_root() -> Path:
    """Return the directory of what is known of remote sandboxes; creates nothing."""
    return sandboxes_dir() / OPENSANDBOX_SUBDIR


def opensandbox_index_path(sandbox_id: UUID | str) -> Path:
    """Return the file that says which remote sandbox has that id; creates nothing.

    Raises:
        ValueError: `sandbox_id` is not a UUID.
    """
    return opensandbox_root() / f"{SANDBOX.checked_id(sandbox_id)}{OPENSANDBOX_INDEX_SUFFIX}"


def forks_root() -> Path:
    """Return the directory of what forks with a workspace of their own keep; creates nothing."""
    return sandboxes_dir() / FORKS_SUBDIR


def fork_dir(fork_id: UUID | str) -> Path:
    """Return the directory of that fork; creates nothing.

    Raises:
        ValueError: `fork_id` is not a UUID.
    """
    return forks_root() / str(SANDBOX.checked_id(fork_id))


def ensure_local_root() -> Path:
    """Create the directory of the workspaces on this host where it is missing, and return it.

    Raises:
        BackendError: It cannot be created.
    """
    return SANDBOX.ensure_private(local_root())


def ensure_opensandbox_root() -> Path:
    """Create the directory for remote sandboxes where it is missing, and return it.

    Raises:
        BackendError: It cannot be created.
    """
    return SANDBOX.ensure_private(opensandbox_root())


def ensure_forks_root() -> Path:
    """Create the directory of forks where it is missing, and return it.

    Raises:
        BackendError: It cannot be created.
    """
    return SANDBOX.ensure_private(forks_root())
