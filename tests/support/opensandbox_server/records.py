"""Sandboxes and snapshots as the lifecycle API tells of them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from tests.support.opensandbox_server.container import Container

State = Literal["Running", "Paused", "Failed"]
_MESSAGES: Mapping[State, tuple[str, str]] = {
    "Running": ("CONTAINER_RUNNING", "Sandbox container is running."),
    "Paused": ("CONTAINER_PAUSED", "Sandbox container is paused."),
    "Failed": ("CONTAINER_EXITED_ERROR", "Sandbox container exited."),
}
_STARTED = "Sandbox container started successfully."


class Clock:
    """The time of the server: that of the machine, and what a test adds to it."""

    def __init__(self) -> None:
        self._ahead = timedelta()

    def now(self) -> datetime:
        """The time, in UTC."""
        return datetime.now(UTC) + self._ahead

    def advance(self, seconds: float) -> None:
        """Go forward."""
        self._ahead += timedelta(seconds=seconds)


@dataclass(slots=True)
class Sandbox:
    """One sandbox."""

    id: str
    source: Mapping[str, Any]
    """`image` or `snapshotId`, as asked for."""
    entrypoint: Sequence[str]
    metadata: dict[str, str]
    created_at: datetime
    expires_at: datetime | None
    changed_at: datetime
    """When it came into its state."""
    container: Container
    port: int = 0
    """Where its daemon is reached."""
    is_paused: bool = False
    may_answer: asyncio.Event = field(default_factory=asyncio.Event)
    """Not set while it is paused: requests to its daemon wait."""

    @property
    def state(self) -> State:
        """What it is doing."""
        if not self.container.is_running:
            return "Failed"
        return "Paused" if self.is_paused else "Running"

    def created(self) -> dict[str, Any]:
        """What the one who made it is told."""
        told = self.told()
        told["status"]["message"] = _STARTED
        return {name: value for name, value in told.items() if name not in self.source}

    def told(self) -> dict[str, Any]:
        """What everybody else is told."""
        why, message = _MESSAGES[self.state]
        status = {"state": self.state, "reason": why, "message": message}
        status["lastTransitionAt"] = stamp(self.changed_at)
        told = {"id": self.id, **self.source, "status": status}
        if self.metadata:
            told["metadata"] = dict(self.metadata)
        told["entrypoint"] = list(self.entrypoint)
        if self.expires_at is not None:
            told["expiresAt"] = stamp(self.expires_at)
        told["createdAt"] = stamp(self.created_at)
        return told


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The files of a sandbox at one moment."""

    id: str
    sandbox_id: str
    name: str | None
    created_at: datetime
    root: Path
    source: Mapping[str, Any]
    """What the sandbox was made of."""

    def told(self, state: str = "Ready") -> dict[str, Any]:
        """What is told of it."""
        told: dict[str, Any] = {"id": self.id, "sandboxId": self.sandbox_id}
        if self.name is not None:
            told["name"] = self.name
        told["status"] = {
            "state": state,
            "reason": "snapshot_ready" if state == "Ready" else "snapshot_accepted",
            "lastTransitionAt": stamp(self.created_at),
        }
        told["createdAt"] = stamp(self.created_at)
        return told


def stamp(moment: datetime) -> str:
    """A time as the lifecycle API writes it."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
