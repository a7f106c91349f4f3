"""Sandboxes that outlive a process: where they are kept, and how to find them again."""

from __future__ import annotations

from rath.backend.persistence.paths import (
    LOCAL_SUBDIR,
    OPENSANDBOX_INDEX_SUFFIX,
    OPENSANDBOX_SUBDIR,
    SANDBOXES_DIR_NAME,
    ensure_local_root,
    ensure_opensandbox_root,
    local_root,
    local_sandbox_dir,
    opensandbox_index_path,
    opensandbox_root,
    sandboxes_dir,
)
from rath.backend.persistence.registry import (
    PersistentSandboxRegistry,
    RemoteSandboxRecord,
    prunable_forks,
    prune_forks,
)

__all__ = [
    "LOCAL_SUBDIR",
    "OPENSANDBOX_INDEX_SUFFIX",
    "OPENSANDBOX_SUBDIR",
    "SANDBOXES_DIR_NAME",
    "PersistentSandboxRegistry",
    "RemoteSandboxRecord",
    "ensure_local_root",
    "ensure_opensandbox_root",
    "local_root",
    "local_sandbox_dir",
    "opensandbox_index_path",
    "opensandbox_root",
    "prunable_forks",
    "prune_forks",
    "sandboxes_dir",
]
