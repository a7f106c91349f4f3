"""Where sessions come from: kinds of operations, recording, traversal and export."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rath.session.graph.export import (
        export_journal_jsonl,
        export_jsonl,
        export_jsonl_string,
        session_to_jsonl_row,
    )
    from rath.session.graph.kind import LineageConsistencyError, LineageKind
    from rath.session.graph.legacy import SessionLineage
    from rath.session.graph.recording import (
        LineageJournal,
        LineageRecorder,
        lineage_journal_optional,
        lineage_journal_tracking,
        session_graph_mode,
        session_graph_mode_override,
    )
    from rath.session.graph.traverse import (
        FrozenLineageView,
        ancestors_bfs,
        descendants_dfs_preorder,
        edge_pairs,
        lineage_view_dataclass,
        validate_acyclic,
    )
else:
    from rath._core.lazy_imports import lazy_names

    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "export": (
                "export_journal_jsonl",
                "export_jsonl",
                "export_jsonl_string",
                "session_to_jsonl_row",
            ),
            "kind": (
                "LineageConsistencyError",
                "LineageKind",
            ),
            "legacy": ("SessionLineage",),
            "recording": (
                "LineageJournal",
                "LineageRecorder",
                "lineage_journal_optional",
                "lineage_journal_tracking",
                "session_graph_mode",
                "session_graph_mode_override",
            ),
            "traverse": (
                "FrozenLineageView",
                "ancestors_bfs",
                "descendants_dfs_preorder",
                "edge_pairs",
                "lineage_view_dataclass",
                "validate_acyclic",
            ),
        },
    )

__all__ = [
    "FrozenLineageView",
    "LineageConsistencyError",
    "LineageJournal",
    "LineageKind",
    "LineageRecorder",
    "SessionLineage",
    "ancestors_bfs",
    "descendants_dfs_preorder",
    "edge_pairs",
    "export_journal_jsonl",
    "export_jsonl",
    "export_jsonl_string",
    "lineage_journal_optional",
    "lineage_journal_tracking",
    "lineage_view_dataclass",
    "session_graph_mode",
    "session_graph_mode_override",
    "session_to_jsonl_row",
    "validate_acyclic",
]
