"""What hooks changed, by the rows in which it stands and the sessions that it concerns."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from rath.session.chunk import RowId
from rath.session.questions.lineage import Lineage
from rath.session.record import Change, ToolRun


def changes_by_row(lineage: Lineage) -> Mapping[RowId, tuple[Change, ...]]:
    """Return the changes of answers by their row, those of calls by the row of the result."""
    found: dict[RowId, tuple[Change, ...]] = {}
    open_ones: dict[tuple[UUID, str | None], tuple[Change, ...]] = {}
    for entry in lineage.record:
        if isinstance(entry, Change) and entry.what == "answer":
            for row in entry.rows:
                found[row] = (*found.get(row, ()), entry)
        elif isinstance(entry, Change):
            call = (entry.operation, entry.call_id)
            open_ones[call] = (*open_ones.get(call, ()), entry)
        elif isinstance(entry, ToolRun) and entry.rows:
            changes = open_ones.pop((entry.operation, entry.call_id), ())
            for row in entry.rows if changes else ():
                found[row] = changes
    return found


def changes_by_session(lineage: Lineage) -> Mapping[UUID, tuple[Change, ...]]:
    """Return by which hooks a session began with another one, or stands for another one."""
    found: dict[UUID, tuple[Change, ...]] = {}
    for entry in lineage.record:
        if isinstance(entry, Change) and entry.what in ("input", "output"):
            begun = lineage.operations.get(entry.operation)
            made = _session_after(entry) if begun is None else begun.session
            if made is not None:
                found[made] = (*found.get(made, ()), entry)
    return found


def sessions_of(change: Change) -> tuple[str, str]:
    """Return the ids of the sessions before and after a hook, "" where they are lost."""
    before, after = change.before.data, change.after.data
    return (before or b"").decode(), (after or b"").decode()


def _session_after(change: Change) -> UUID | None:
    _, after = sessions_of(change)
    return UUID(after) if after else None
