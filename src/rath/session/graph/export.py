"""Sessions as JSON Lines: one line for each, with where it came from and what it cost."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sized
from pathlib import Path
from typing import Any, Protocol

from rath._core.files import atomic_write_text
from rath._core.text import valid_unicode
from rath.llm.chat_response import RathLLMTokenUsage
from rath.session.graph.recording import LineageJournal, lineage_extras_to_jsonable
from rath.session.graph.traverse import LineageCarrier, lineage_view_dataclass
from rath.session.manager import session_registry

__all__ = [
    "cumulative_usage_to_jsonable",
    "export_journal_jsonl",
    "export_jsonl",
    "export_jsonl_string",
    "lineage_extras_to_jsonable",
    "session_to_jsonl_row",
]


class ExportableSession(LineageCarrier, Protocol):
    """A session, as far as the export needs to know it."""

    @property
    def chunk_table(self) -> Sized:
        """Its rows; waits for the run."""
        ...

    @property
    def cumulative_usage(self) -> RathLLMTokenUsage | None:
        """The token usage of its model calls; waits for the run."""
        ...


def cumulative_usage_to_jsonable(session: ExportableSession) -> dict[str, int] | None:
    """Return the three token counts of a session, or None; waits for its run."""
    return _counts(session.cumulative_usage)


def session_to_jsonl_row(session: ExportableSession) -> dict[str, Any]:
    """Return the line of the export for a session; waits for its run."""
    return _row(session, session.chunk_table, session.cumulative_usage)


def _row(session: LineageCarrier, table: Sized, usage: RathLLMTokenUsage | None) -> dict[str, Any]:
    view = lineage_view_dataclass(session)
    return {
        "id": str(view.session_id),
        "parent_session_ids": [str(parent_id) for parent_id in view.parent_session_ids],
        "lineage_operator": view.lineage_operator,
        "lineage_kind": view.lineage_kind_str,
        "lineage_extras": lineage_extras_to_jsonable(view.lineage_extras),
        "chunk_count": len(table),
        "cumulative_usage": _counts(usage),
    }


def _counts(usage: RathLLMTokenUsage | None) -> dict[str, int] | None:
    names = ("prompt_tokens", "completion_tokens", "total_tokens")
    return None if usage is None else {name: getattr(usage, name) for name in names}


def export_jsonl_string(sessions: Iterable[ExportableSession]) -> str:
    """Return one line for each session, each with its line feed; waits for their runs."""
    return _lines(map(session_to_jsonl_row, sessions))


def export_jsonl(sessions: Iterable[ExportableSession], path: str | Path) -> None:
    """Write `export_jsonl_string(sessions)` to a UTF-8 file, whose directories are created."""
    _write(map(session_to_jsonl_row, sessions), path)


def export_journal_jsonl(
    journal: LineageJournal, path: str | Path, *, skip_unknown: bool = True
) -> None:
    """Write the sessions of a journal to a file, in its order; waits for their runs.

    Sessions that are gone by now are written too, and one whose run failed as far as it came.

    Args:
        journal: Ids of sessions, and the content of those that were made while it tracked.
        path: The file; its directories are created.
        skip_unknown: Leave out ids that were added by hand and are not registered, instead of
            failing.

    Raises:
        KeyError: Nothing is known of an id and `skip_unknown` is False.
    """
    registry = session_registry()
    rows: list[dict[str, Any]] = []
    for session_id in journal.visit_order:
        session = registry.get(session_id) or journal.find(session_id)
        if session is not None:
            rows.append(_row_so_far(session))
        elif not skip_unknown:
            raise KeyError(
                f"session {session_id} of the journal was not made while it tracked, and is not "
                "registered; keep a reference to it, or pass skip_unknown=True"
            )
    _write(rows, path)


def _row_so_far(session: Any) -> dict[str, Any]:
    """Return the row of a session; where its run failed, of what it had made."""
    try:
        return session_to_jsonl_row(session)
    except Exception:
        if session.core.body.error() is None:
            raise
        latest = session.core.body.latest
        return _row(session, session.partial_table, None if latest is None else latest.usage())


def _lines(rows: Iterable[dict[str, Any]]) -> str:
    return "".join(f"{valid_unicode(json.dumps(row, ensure_ascii=False))}\n" for row in rows)


def _write(rows: Iterable[dict[str, Any]], path: str | Path) -> None:
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    atomic_write_text(target, _lines(rows))
