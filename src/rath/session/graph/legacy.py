"""The short lineage record of a run; the full one is `provenance`."""

from __future__ import annotations

from uuid import UUID

from rath._core.dataclasses import dataclass

__all__ = ["SessionLineage"]


@dataclass(frozen=True, slots=True)
class SessionLineage:
    """The two sessions that a run was given."""

    producer_user_session_id: UUID
    producer_system_session_id: UUID
    operator: str = "run_session_loop"
