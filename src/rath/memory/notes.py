"""Notes that are named by their content, and the metadata of a note."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import MappingProxyType

from rath._core.dataclasses import dataclass
from rath.memory.op_types import MemoryOpWrite
from rath.memory.results import MemorySource
from rath.memory.uri import content_digest, note_uri

__all__ = ["EXPIRES_AT", "KEEP_BOTH", "MODEL", "ROWS", "SESSION_ID", "note_op", "places"]

KEEP_BOTH = MappingProxyType({"on_conflict": "keep_both"})
"""Metadata of a write that must not replace another note.

A store that knows it gives the newcomer a longer name when its place is taken by other content,
and reports that URI in the result; a store that does not know it replaces the older note.
"""

EXPIRES_AT = "expires_at"
"""Key in the metadata of a write: when the note is forgotten, an ISO 8601 time with its zone."""

SESSION_ID = "session_id"
"""Key in the metadata of a write: the session that the note comes from."""

ROWS = "rows"
"""Key in the metadata of a write: the rows of that session it comes from, as in "3,4"."""

MODEL = "model"
"""Key in the metadata of a write: the model that made the note of what was said in the session."""


def note_op(
    content: str,
    *,
    scope: str = "user",
    category: str = "preferences",
    wait: bool = False,
    ttl: timedelta | float | None = None,
    session_id: str | None = None,
    rows: Sequence[int] = (),
) -> MemoryOpWrite:
    """Return the write that stores `content` once, whoever stores it and however often.

    Args:
        content: The note.
        scope: One of `MEMORY_SCOPES`.
        category: Directory of the note within the scope.
        wait: Wait until the store is done with the note.
        ttl: How long it is kept, in seconds or as a timedelta; for ever by default.
        session_id: The session that it comes from.
        rows: Indexes of the rows of that session that it comes from.

    Raises:
        ValueError: `ttl` is not above 0, or beyond the year 9999.
    """
    metadata: dict[str, str] = dict(KEEP_BOTH)
    if ttl is not None:
        metadata[EXPIRES_AT] = _end_of(ttl).isoformat()
    if session_id is not None:
        metadata[SESSION_ID] = session_id
        metadata[ROWS] = ",".join(map(str, rows))
    uri = note_uri(scope, category, content)
    return MemoryOpWrite(uri, content, wait=wait, metadata=MappingProxyType(metadata))


def _end_of(ttl: timedelta | float) -> datetime:
    try:
        lifetime = ttl if isinstance(ttl, timedelta) else timedelta(seconds=ttl)
        end = datetime.now(UTC) + lifetime
    except (OverflowError, ValueError) as exc:
        raise ValueError(
            f"ttl must be a time that ends before the year 10000, got {ttl!r}; leave it out to "
            "keep the note for ever"
        ) from exc
    if lifetime <= timedelta(0):
        raise ValueError(f"ttl must be above 0, got {ttl!r}; to remove a note, forget it")
    return end


def places(op: MemoryOpWrite) -> Iterator[str]:
    """Yield where a note may stand, best first: one place, or more for a `KEEP_BOTH` write."""
    yield op.uri
    metadata: Mapping[str, str] = op.metadata or {}
    if metadata.get("on_conflict") == KEEP_BOTH["on_conflict"]:
        directory, _, _ = op.uri.rpartition("/")
        digest = content_digest(op.content)
        yield f"{directory}/{digest[:16]}"
        yield f"{directory}/{digest}"


@dataclass(frozen=True, slots=True)
class Metadata:
    """Sources and expiry of a note; `NO_METADATA` for most notes."""

    expires_at: float | None = None
    """Seconds since 1970; from then on the note is as good as gone."""
    sources: tuple[MemorySource, ...] = ()
    """One for each session; none for a note that was written without the name of a session."""
    is_remembered: bool = False
    """Beside its sources, it was also written without the name of a session: it outlives them."""

    def is_expired(self, now: float) -> bool:
        """Return whether the note is gone for those who look at `now`, in seconds since 1970."""
        return self.expires_at is not None and self.expires_at <= now

    def comes_from(self, session_id: str) -> bool:
        """Return whether a session is one of its sources."""
        return any(source.session_id == session_id for source in self.sources)

    def without(self, session_id: str) -> Metadata | None:
        """Return the rest without a session that is one of its sources; None for no reason left."""
        rest = tuple(source for source in self.sources if source.session_id != session_id)
        if rest or self.is_remembered:
            return replace(self, sources=rest, is_remembered=self.is_remembered and bool(rest))
        return None

    def union(self, new: Metadata) -> Metadata:
        """Return the metadata of a note that is written again with the same text.

        All sources count, and the later end: without one it is kept for ever.
        """
        ends = (self.expires_at, new.expires_at)
        by_session = {source.session_id: source for source in self.sources}
        for source in new.sources:
            known = by_session.get(source.session_id, source)
            by_session[source.session_id] = MemorySource(
                known.session_id,
                tuple(sorted({*known.rows, *source.rows})),
                known.model or source.model,
                known.learned_at if known.learned_at is not None else source.learned_at,
            )
        is_remembered = any(each.is_remembered or not each.sources for each in (self, new))
        return Metadata(
            None if None in ends else max(end for end in ends if end is not None),
            tuple(by_session.values()),
            is_remembered and bool(by_session),
        )

    @classmethod
    def from_write(cls, values: Mapping[str, str], *, now: float) -> Metadata:
        """Return the metadata that a write gives the note.

        Args:
            values: By `EXPIRES_AT`, `SESSION_ID`, `ROWS` and `MODEL`; other keys do not count.
            now: Seconds since 1970.

        Raises:
            ValueError: A value is none that was expected; the text says what was.
        """
        expires_at = _seconds(values[EXPIRES_AT]) if EXPIRES_AT in values else None
        session_id: object = values.get(SESSION_ID)
        if session_id is None:
            for key in (ROWS, MODEL):
                if key in values:
                    raise ValueError(
                        f"{key!r} without {SESSION_ID!r}, whose it would be; give both"
                    )
            return cls(expires_at)
        if not isinstance(session_id, str) or not session_id or "/" in session_id:
            raise ValueError(f"{SESSION_ID!r} is {session_id!r}; expected one plain name")
        text: object = values.get(ROWS, "")
        rows = text.split(",") if isinstance(text, str) and text else []
        if not isinstance(text, str) or not all(row.isascii() and row.isdigit() for row in rows):
            raise ValueError(f"{ROWS!r} is {text!r}; expected indexes of rows, as in '3,4'")
        indexes = tuple(sorted({int(row) for row in rows}))
        return cls(expires_at, (MemorySource(session_id, indexes, values.get(MODEL), now),))


NO_METADATA = Metadata()


def _seconds(text: object) -> float:
    try:
        moment = datetime.fromisoformat(str(text))
        if moment.tzinfo is not None:
            return moment.timestamp()
    except (ValueError, OverflowError):
        pass
    raise ValueError(
        f"{EXPIRES_AT!r} is {text!r}; expected an ISO 8601 time with its zone, as in "
        "'2030-01-31T12:00:00+00:00'"
    )
