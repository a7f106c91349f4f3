"""Remove what has not been used for long."""

from __future__ import annotations

from dataclasses import field
from datetime import timedelta
from pathlib import Path
from uuid import UUID

from rath._core.dataclasses import dataclass
from rath.backend.persistence.registry import PersistentSandboxRegistry, prunable_forks, prune_forks
from rath.memory.adapters.local.forgetting import prunable_transcripts, prune_transcripts
from rath.memory.persistence.registry import PersistentMemoryRegistry
from rath.session.log.verify import prunable_sessions, prune_sessions

__all__ = ["GCReport", "gc"]


@dataclass(slots=True)
class GCReport:
    """Report of removed files, or in a dry run of those that would be."""

    sessions: list[UUID] = field(default_factory=list[UUID])
    local_sandboxes: list[UUID] = field(default_factory=list[UUID])
    remote_sandboxes: list[UUID] = field(default_factory=list[UUID])
    memory_stores: list[UUID] = field(default_factory=list[UUID])
    memory_commits: list[Path] = field(default_factory=list[Path])
    dry_run: bool = True
    forks: list[UUID] = field(default_factory=list[UUID])
    """Leftover workspaces of forks whose process has gone."""


def gc(*, older_than: timedelta, dry_run: bool = True) -> GCReport:
    """Remove what was not used for longer from the home directory, or tell what that is.

    In this order:

    - Transcripts in local memory stores that were committed longer ago. What was learned from them
      stays, and so do those that a model is still to read.
    - Sessions that were last written longer ago, to the trash of their store; what was there before
      is removed for good. Sessions that are being written are kept, files that cannot be believed,
      and all that a session which is kept came from.
    - Workspaces of this host that were last used longer ago, those of forks too once their process
      has gone. Where a sandbox is open, in whichever process, nothing is removed.
    - Index files of remote sandboxes that were last used longer ago; the sandboxes themselves end
      by their own timeout.
    - Local memory stores that were last used longer ago. The store of a project is kept while the
      directory of the project is there.

    Nothing is removed from a memory store that is open, in whichever process.

    Args:
        older_than: Age from which something goes.
        dry_run: Remove nothing.
    """
    sandboxes, stores = PersistentSandboxRegistry(), PersistentMemoryRegistry()
    if dry_run:
        return GCReport(
            memory_commits=prunable_transcripts(older_than=older_than),
            sessions=prunable_sessions(older_than=older_than),
            local_sandboxes=sandboxes.prunable_local(older_than=older_than),
            remote_sandboxes=sandboxes.prunable_remote(older_than=older_than),
            forks=prunable_forks(older_than=older_than),
            memory_stores=stores.prunable_local(older_than=older_than),
        )
    # Arguments are evaluated as they stand: this is the documented order.
    return GCReport(
        memory_commits=prune_transcripts(older_than=older_than),
        sessions=prune_sessions(older_than=older_than),
        local_sandboxes=sandboxes.prune_local(older_than=older_than),
        remote_sandboxes=sandboxes.prune_remote(older_than=older_than),
        forks=prune_forks(older_than=older_than),
        memory_stores=stores.prune_local(older_than=older_than),
        dry_run=False,
    )
