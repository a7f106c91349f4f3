"""Recall from the memory of an agent before a run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from functools import partial
from typing import Literal, Protocol, runtime_checkable

from rath._async.runtime import runtime
from rath._core.dataclasses import dataclass
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
from rath.session.recall import within
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

        They go into one message that says it is reference data, never into the transcript. Each is
        quoted there, whatever its kind; of all together, about 50,000 tokens are shown at most.

        Args:
            session: A snapshot of what the agent was called on.
            store: The agent's memory.
        """
        ...


@dataclass(frozen=True)
class DefaultRecallInjection:
    """Recalls the notes that are nearest to the last thing the user said.

    Raises:
        ValueError: `max_tokens` or `timeout` is not above 0.
    """

    top_k: int = 4
    """Most notes that are recalled."""

    target_uri: str | None = None
    """Part of the memory to search; all of it by default."""

    level: Literal["abstract", "overview", "detail"] = "abstract"
    """How much of a note the model sees: "abstract" is the snippet of the search."""

    max_tokens: int = 1000
    """Most tokens of the whole message, its opening and the addresses included.

    The nearest notes are taken while they fit; the first that does not is cut, and those after it
    are left out. There is no tokenizer: a third of a token is counted for an ASCII character, and
    half of one for each byte that any other has in UTF-8, which is more than prose takes."""

    timeout: float | None = 10.0
    """Seconds that the memory has to answer; a run goes on without notes after that. None for as
    long as it takes."""

    def __post_init__(self) -> None:
        if not self.max_tokens > 0:
            raise ValueError(f"max_tokens must be above 0, got {self.max_tokens!r}")
        if self.timeout is not None and not self.timeout > 0:
            raise ValueError(f"timeout must be above 0 or None, got {self.timeout!r}")

    def inject(self, session: Session, store: MemoryStore) -> tuple[ChunkRow, ...]:
        """Return one row for each recalled note; see `MemoryInjectionPolicy`."""
        notes = self._found(session, store)
        # A row may stand for a note without a text; nothing but its address is known then.
        fitting = iter(within(notes, self.max_tokens))
        named = [note if not note.text else next(fitting, None) for note in notes]
        return tuple(system_text_chunk(note.shown.rstrip()) for note in named if note is not None)

    def notes(self, session: Session, store: MemoryStore) -> tuple[RecalledNote, ...]:
        """Return the recalled notes that have a text, with their URI and score."""
        return within(self._found(session, store), self.max_tokens)

    def _found(self, session: Session, store: MemoryStore) -> list[RecalledNote]:
        """Return what was found; nothing, and a warning, when the memory cannot be asked."""
        query = _last_user_text(session)
        if query is None:
            return []
        try:
            label = f"the recall for session {session.id}"
            found = runtime().run(partial(self._afound, query, store), label=label)
        except MemoryBackendError as exc:
            _log.warning("nothing was recalled: %s", exc)
        except TimeoutError as exc:
            _log.warning("nothing was recalled, within %s s: %r", self.timeout, exc)
        else:
            return [RecalledNote(hit.uri, _text(hit, data), hit.score) for hit, data in found]
        return []

    async def _afound(self, query: str, store: MemoryStore) -> list[tuple[MemoryHit, object]]:
        """Return what was found, with what was read of it where more than a snippet is wanted."""
        async with asyncio.timeout(self.timeout):
            found = await store.adispatch(MemoryOpFind(query, self.target_uri, self.top_k))
            if isinstance(found, MemoryFindResult):
                return [(hit, await self._read(hit, store)) for hit in _each_once(found.hits)]
        _log.warning("nothing was recalled: the memory answered %.500r", found)
        return []

    async def _read(self, hit: MemoryHit, store: MemoryStore) -> object:
        if self.level == "abstract":
            return None
        read = await store.adispatch(MemoryOpRead(hit.uri, self.level))
        return read.data if isinstance(read, MemoryReadResult) else None


def _each_once(hits: Iterable[MemoryHit]) -> Iterable[MemoryHit]:
    """Return the best hit of each note: a memory of several parts may find one twice."""
    best: dict[str | None, MemoryHit] = {}
    for hit in hits:
        best.setdefault(hit.uri or hit.snippet, hit)
    return best.values()


def _text(hit: MemoryHit, data: object) -> str:
    """Return what was read of a note, its snippet where that is no text, else ""."""
    return _decoded(data) or _decoded(hit.snippet)


def _decoded(data: object) -> str:
    if isinstance(data, bytes):
        try:
            return data.decode().strip()
        except UnicodeDecodeError:
            return ""
    return data.strip() if isinstance(data, str) else ""


def _last_user_text(session: Session) -> str | None:
    for row in reversed(session.chunk_table):
        match row.content:
            case UserText(text) if text.strip():
                return text
            case _:
                continue
    return None
