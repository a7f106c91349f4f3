"""Delete what has not been used for long."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from uuid import UUID

from rath.session.persistence.loader import prunable_sessions, prune_sessions

__all__ = ["GCReport", "gc"]


@dataclass(slots=True)
class GCReport:
    """What was deleted, or would be in a dry run."""

    sessions: list[UUID] = field(default_factory=list[UUID])
    local_sandboxes: list[UUID] = field(default_factory=list[UUID])
    remote_sandboxes: list[UUID] = field(default_factory=list[UUID])
    memory_stores: list[UUID] = field(default_factory=list[UUID])
    memory_commits: list[Path] = field(default_factory=list[Path])
    dry_run: bool = True


def gc(*, older_than: timedelta, dry_run: bool = True) -> GCReport:
    """Delete stored sessions that were begun longer ago, or tell which they are.

    Images that no session names any more go too. Sandboxes and memory stores are left alone.
    Sessions that are being written and files that cannot be read are kept.

    Args:
        older_than: Age from which a session goes.
        dry_run: Delete nothing.
    """
    collect = prunable_sessions if dry_run else prune_sessions
    return GCReport(sessions=collect(older_than=older_than), dry_run=dry_run)
