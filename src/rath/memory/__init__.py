"""What an agent knows from one run to the next: stores, their operations and their backends."""

from __future__ import annotations

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
    MemoryHit,
    MemoryListResult,
    MemoryReadResult,
    MemoryResult,
    MemoryWriteResult,
)

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
    "MemoryHit",
    "MemoryListResult",
    "MemoryNotFound",
    "MemoryOp",
    "MemoryOpCommit",
    "MemoryOpFind",
    "MemoryOpList",
    "MemoryOpRead",
    "MemoryOpResource",
    "MemoryOpSearch",
    "MemoryOpTree",
    "MemoryOpWrite",
    "MemoryReadResult",
    "MemoryResult",
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
