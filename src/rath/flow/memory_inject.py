"""What an agent recalls from its memory before a run."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from rath.errors import MemoryBackendError
from rath.memory import (
    MemoryFindResult,
    MemoryHit,
    MemoryOpFind,
    MemoryOpRead,
    MemoryReadResult,
    MemoryStore,
)
from rath.session import ChunkRow, Session, system_text_chunk
from rath.session.content import UserText
from rath.session.record import RecalledNote

__all__ = ["DefaultRecallInjection", "MemoryInjectionPolicy"]

_log = logging.getLogger(__name__)


@runtime_checkable
class MemoryInjectionPolicy(Protocol):
    """Chooses what the model is reminded of.

    `inject` may be `def` or `async def`. What it raises is logged, and the run goes on without.
    """

    def inject(self, session: Session, store: MemoryStore) -> tuple[ChunkRow, ...]:
        """Return rows whose text the model sees before the last user row.

        They go into one message that says it is reference data, never into the transcript.

        Args:
            session: A snapshot of what the agent was called on.
            store: The agent's memory.
        """
        ...


@dataclass(frozen=True)
class DefaultRecallInjection:
    """Recalls the notes that are nearest to the last thing the user said."""

    top_k: int = 4
    """Most notes that are recalled."""

    target_uri: str | None = None
    """Part of the memory to search; all of it by default."""

    level: Literal["abstract", "overview", "detail"] = "abstract"
    """How much of a note the model sees: "abstract" is the snippet of the search."""

    def inject(self, session: Session, store: MemoryStore) -> tuple[ChunkRow, ...]:
        """Return one row for each recalled note; see `MemoryInjectionPolicy`."""
        return tuple(
            system_text_chunk(f"[memory:{hit.uri}] {text}".rstrip())
            for hit, text in self._found(session, store)
        )

    def notes(self, session: Session, store: MemoryStore) -> tuple[RecalledNote, ...]:
        """Return the recalled notes that have a text, with their URI and score."""
        return tuple(
            RecalledNote(hit.uri, text, hit.score)
            for hit, text in self._found(session, store)
            if text
        )

    def _found(self, session: Session, store: MemoryStore) -> list[tuple[MemoryHit, str]]:
        """Return hits with their texts; none, and a warning, when the memory cannot be asked."""
        query = _last_user_text(session)
        if query is None:
            return []
        try:
            found = store.dispatch(MemoryOpFind(query, self.target_uri, self.top_k))
            if isinstance(found, MemoryFindResult):
                return [(hit, self._text(hit, store)) for hit in found.hits]
            _log.warning("nothing was recalled: the memory answered %r", found)
        except MemoryBackendError as exc:
            _log.warning("nothing was recalled: %s", exc)
        return []

    def _text(self, hit: MemoryHit, store: MemoryStore) -> str:
        if self.level != "abstract":
            read = store.dispatch(MemoryOpRead(hit.uri, self.level))
            if isinstance(read, MemoryReadResult):
                return read.data if isinstance(read.data, str) else read.data.decode()
        return hit.snippet or ""


def _last_user_text(session: Session) -> str | None:
    for row in reversed(session.chunk_table):
        match row.content:
            case UserText(text) if text.strip():
                return text
            case _:
                continue
    return None
