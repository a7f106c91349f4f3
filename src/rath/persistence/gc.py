"""Remove what has not been used for long."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from uuid import UUID

from rath.backend.persistence.forks import prunable_forks, prune_forks
from rath.backend.persistence.registry import PersistentSandboxRegistry
from rath.session.persistence.loader import prunable_sessions, prune_sessions

__all__ = ["GCReport", "gc"]


@dataclass(slots=True)
class GCReport:
    """What was removed, or would be in a dry run."""

    sessions: list[UUID] = field(default_factory=list[UUID])
    local_sandboxes: list[UUID] = field(default_factory=list[UUID])
    remote_sandboxes: list[UUID] = field(default_factory=list[UUID])
    memory_stores: list[UUID] = field(default_factory=list[UUID])
    memory_commits: list[Path] = field(default_factory=list[Path])
    dry_run: bool = True
    forks: list[UUID] = field(default_factory=list[UUID])
    """What was left of forks with a workspace of their own whose process has gone."""


def gc(*, older_than: timedelta, dry_run: bool = True) -> GCReport:
    """Remove what was not used for longer from the home directory, or tell what that is.

    - Sessions that were begun longer ago, and images that no session names any more. Sessions that
      are being written and files that cannot be read are kept.
    - Workspaces of this host that were last used longer ago, those of forks too once their process
      has gone. Where a sandbox is open, in whichever process, nothing is removed.
    - Index files of remote sandboxes that were last used longer ago; the sandboxes themselves end
      by their own timeout.

    Memory stores are left alone.

    Args:
        older_than: Age from which something goes.
        dry_run: Remove nothing.
    """
    kept = PersistentSandboxRegistry()
    if dry_run:
        return GCReport(
            sessions=prunable_sessions(older_than=older_than),
            local_sandboxes=kept.prunable_local(older_than=older_than),
            remote_sandboxes=kept.prunable_remote(older_than=older_than),
            forks=prunable_forks(older_than=older_than),
        )
    return GCReport(
        sessions=prune_sessions(older_than=older_than),
        local_sandboxes=kept.prune_local(older_than=older_than),
        remote_sandboxes=kept.prune_remote(older_than=older_than),
        forks=prune_forks(older_than=older_than),
        dry_run=False,
    )
