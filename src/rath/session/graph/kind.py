"""The kinds of operations that make sessions."""

from __future__ import annotations

from enum import Enum

from rath.errors import LineageConsistencyError

__all__ = ["LineageConsistencyError", "LineageKind"]


class LineageKind(str, Enum):
    """The operation that made a session, by its name in files."""

    UNKNOWN = "unknown"
    LEAF_USER = "leaf_user"
    LEAF_SYSTEM = "leaf_system"
    OP_CREATE = "op_create"
    OP_SESSION_LOOP = "op_session_loop"
    OP_FORK = "op_fork"
    OP_DETACH = "op_detach"
    OP_MERGE = "op_merge"
    OP_DELEGATE = "op_delegate"
    OP_INPUT = "op_input"
    OP_SESSION_COMPRESS = "op_session_compress"
