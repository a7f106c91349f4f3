"""The sessions that are alive in this process, held weakly."""

from __future__ import annotations

import threading
from dataclasses import field
from typing import TYPE_CHECKING
from uuid import UUID
from weakref import WeakValueDictionary

from rath._core.dataclasses import dataclass

if TYPE_CHECKING:
    # The graph's export finds sessions here, and a session needs the graph.
    from rath.session.session import Session


@dataclass
class SessionRegistry:
    """Finds live sessions by id; never keeps one alive."""

    _by_id: WeakValueDictionary[UUID, Session] = field(
        default_factory=WeakValueDictionary[UUID, "Session"]
    )
    _active_id: UUID | None = None
    _lock: threading.RLock = field(default_factory=threading.RLock, repr=False)

    def register(self, session: Session) -> None:
        """Make `session` findable by its id, as long as somebody holds it."""
        with self._lock:
            self._by_id[session.id] = session

    def get(self, session_id: UUID) -> Session | None:
        """Return the live session of that id, or None."""
        with self._lock:
            return self._by_id.get(session_id)

    def set_active(self, session: Session | None) -> None:
        """Note which session was made last."""
        with self._lock:
            self._active_id = None if session is None else session.id

    def get_active_id(self) -> UUID | None:
        """Return the id of the session that was made last, or None."""
        return self._active_id


_registry = SessionRegistry()


def session_registry() -> SessionRegistry:
    """Return the registry of this process."""
    return _registry
