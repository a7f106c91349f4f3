"""Sessions: the value that flows, what can be done to it, and what happened to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rath.session.chunk import (
        ChunkKind,
        ChunkRow,
        ChunkTable,
        RowId,
        assistant_turn_chunk,
        chunk_table_to_messages,
        format_chunk_row_brief,
        system_text_chunk,
        tool_feedback_chunk,
        user_text_chunk,
    )
    from rath.session.compress import run_session_compress
    from rath.session.graph import (
        LineageConsistencyError,
        LineageJournal,
        LineageKind,
        LineageRecorder,
        SessionLineage,
        ancestors_bfs,
        descendants_dfs_preorder,
        edge_pairs,
        lineage_journal_optional,
        lineage_journal_tracking,
        lineage_view_dataclass,
        session_graph_mode,
        session_graph_mode_override,
        validate_acyclic,
    )
    from rath.session.loop import run_session_loop
    from rath.session.manager import SessionRegistry, session_registry
    from rath.session.persistence import (
        PersistedSession,
        PersistedSessionHeader,
        PersistedSessionMeta,
        PersistenceError,
        SessionWriter,
        delete_session,
        list_persisted_sessions,
        load_session,
        prune_sessions,
        save_many,
    )
    from rath.session.primitives import (
        create_system_session,
        create_user_session,
        detach_session,
        fork_session,
    )
    from rath.session.provider_builtin import DefaultSessionLoopExecutor, SessionLoopExecutor
    from rath.session.run.differences import resume_differences
    from rath.session.select import select_session
    from rath.session.session import Session
else:
    from rath._core.lazy_imports import lazy_names

    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "chunk": (
                "ChunkKind",
                "ChunkRow",
                "ChunkTable",
                "RowId",
                "assistant_turn_chunk",
                "chunk_table_to_messages",
                "format_chunk_row_brief",
                "system_text_chunk",
                "tool_feedback_chunk",
                "user_text_chunk",
            ),
            "compress": ("run_session_compress",),
            "graph": (
                "LineageConsistencyError",
                "LineageJournal",
                "LineageKind",
                "LineageRecorder",
                "SessionLineage",
                "ancestors_bfs",
                "descendants_dfs_preorder",
                "edge_pairs",
                "lineage_journal_optional",
                "lineage_journal_tracking",
                "lineage_view_dataclass",
                "session_graph_mode",
                "session_graph_mode_override",
                "validate_acyclic",
            ),
            "loop": ("run_session_loop",),
            "manager": (
                "SessionRegistry",
                "session_registry",
            ),
            "persistence": (
                "PersistedSession",
                "PersistedSessionHeader",
                "PersistedSessionMeta",
                "PersistenceError",
                "SessionWriter",
                "delete_session",
                "list_persisted_sessions",
                "load_session",
                "prune_sessions",
                "save_many",
            ),
            "primitives": (
                "create_system_session",
                "create_user_session",
                "detach_session",
                "fork_session",
            ),
            "provider_builtin": ("DefaultSessionLoopExecutor", "SessionLoopExecutor"),
            "run.differences": ("resume_differences",),
            "select": ("select_session",),
            "session": ("Session",),
        },
    )

__all__ = [
    "ChunkKind",
    "ChunkRow",
    "ChunkTable",
    "DefaultSessionLoopExecutor",
    "LineageConsistencyError",
    "LineageJournal",
    "LineageKind",
    "LineageRecorder",
    "PersistedSession",
    "PersistedSessionHeader",
    "PersistedSessionMeta",
    "PersistenceError",
    "RowId",
    "Session",
    "SessionLineage",
    "SessionLoopExecutor",
    "SessionRegistry",
    "SessionWriter",
    "ancestors_bfs",
    "assistant_turn_chunk",
    "chunk_table_to_messages",
    "create_system_session",
    "create_user_session",
    "delete_session",
    "descendants_dfs_preorder",
    "detach_session",
    "edge_pairs",
    "fork_session",
    "format_chunk_row_brief",
    "lineage_journal_optional",
    "lineage_journal_tracking",
    "lineage_view_dataclass",
    "list_persisted_sessions",
    "load_session",
    "prune_sessions",
    "resume_differences",
    "run_session_compress",
    "run_session_loop",
    "save_many",
    "select_session",
    "session_graph_mode",
    "session_graph_mode_override",
    "session_registry",
    "system_text_chunk",
    "tool_feedback_chunk",
    "user_text_chunk",
    "validate_acyclic",
]
