"""Capabilities of a memory backend."""

from __future__ import annotations

from enum import Enum

from rath._core.dataclasses import dataclass

__all__ = ["MemoryCapabilities", "ScopeModel"]


class ScopeModel(str, Enum):
    """Storage model of a backend."""

    KV = "kv"
    FS = "fs"
    VECTOR = "vector"
    HYBRID = "hybrid"


@dataclass(frozen=True, slots=True)
class MemoryCapabilities:
    """Capabilities of a memory backend as it is now."""

    scope_model: ScopeModel
    supports_write: bool
    supports_read: bool
    supports_list: bool
    supports_tree: bool
    supports_vector_search: bool
    supports_intent_search: bool
    """`MemoryOpSearch` understands what a query means, beyond what `MemoryOpFind` does."""
    supports_resource_ingest: bool
    supports_session_commit: bool
    supports_l0_l1_l2: bool
    """Reading at level "abstract" or "overview" gives less than "detail"."""
    supports_forget: bool = False
    """`MemoryOpForget` removes notes, and what came from a session."""
    supports_namespaces: bool = False
    """`MemoryStoreSpec.namespace` separates stores that would be one otherwise."""
