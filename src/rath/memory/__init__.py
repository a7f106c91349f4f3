"""State that outlives a run: memory stores, their operations and their backends."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rath.memory.abc import MemoryBackend, MemoryStore, MemoryStoreSpec
    from rath.memory.capabilities import MemoryCapabilities, ScopeModel
    from rath.memory.errors import (
        MemoryBackendError,
        MemoryBackendNotFound,
        MemoryConflict,
        MemoryNotFound,
        MemoryStoreClosed,
        UnsupportedMemoryOp,
    )
    from rath.memory.op_types import (
        MemoryOp,
        MemoryOpCommit,
        MemoryOpFind,
        MemoryOpForget,
        MemoryOpList,
        MemoryOpRead,
        MemoryOpResource,
        MemoryOpSearch,
        MemoryOpTree,
        MemoryOpWrite,
    )
    from rath.memory.registry import (
        current,
        get,
        get_class,
        is_available,
        list_names,
        preferred,
        register,
        set_default,
    )
    from rath.memory.results import (
        MemoryCommitResult,
        MemoryEntry,
        MemoryExecutionFailure,
        MemoryFindResult,
        MemoryForgetResult,
        MemoryHit,
        MemoryListResult,
        MemoryReadResult,
        MemoryResult,
        MemorySource,
        MemoryWriteResult,
    )
else:
    from rath._core.lazy_imports import lazy_names

    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "abc": ("MemoryBackend", "MemoryStore", "MemoryStoreSpec"),
            "capabilities": ("MemoryCapabilities", "ScopeModel"),
            "errors": (
                "MemoryBackendError", "MemoryBackendNotFound", "MemoryConflict", "MemoryNotFound",
                "MemoryStoreClosed", "UnsupportedMemoryOp",
            ),
            "op_types": (
                "MemoryOp", "MemoryOpCommit", "MemoryOpFind", "MemoryOpForget", "MemoryOpList",
                "MemoryOpRead", "MemoryOpResource", "MemoryOpSearch", "MemoryOpTree",
                "MemoryOpWrite",
            ),
            "registry": (
                "current", "get", "get_class", "is_available", "list_names", "preferred",
                "register", "set_default",
            ),
            "results": (
                "MemoryCommitResult", "MemoryEntry", "MemoryExecutionFailure", "MemoryFindResult",
                "MemoryForgetResult", "MemoryHit", "MemoryListResult", "MemoryReadResult",
                "MemoryResult", "MemorySource", "MemoryWriteResult",
            ),
        },
    )  # fmt: skip

__all__ = [
    "MemoryBackend",
    "MemoryBackendError",
    "MemoryBackendNotFound",
    "MemoryCapabilities",
    "MemoryCommitResult",
    "MemoryConflict",
    "MemoryEntry",
    "MemoryExecutionFailure",
    "MemoryFindResult",
    "MemoryForgetResult",
    "MemoryHit",
    "MemoryListResult",
    "MemoryNotFound",
    "MemoryOp",
    "MemoryOpCommit",
    "MemoryOpFind",
    "MemoryOpForget",
    "MemoryOpList",
    "MemoryOpRead",
    "MemoryOpResource",
    "MemoryOpSearch",
    "MemoryOpTree",
    "MemoryOpWrite",
    "MemoryReadResult",
    "MemoryResult",
    "MemorySource",
    "MemoryStore",
    "MemoryStoreClosed",
    "MemoryStoreSpec",
    "MemoryWriteResult",
    "ScopeModel",
    "UnsupportedMemoryOp",
    "current",
    "get",
    "get_class",
    "is_available",
    "list_names",
    "preferred",
    "register",
    "set_default",
]
