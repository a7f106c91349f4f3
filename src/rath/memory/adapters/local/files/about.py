"""What is known about a note beside its text: where it comes from, and when it expires."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from rath.memory.notes import EXPIRES_AT, MODEL, ROWS, SESSION_ID
from rath.memory.results import MemorySource as Source

__all__ = ["NOTHING_KNOWN", "NoteAbout", "Source", "told_in", "united"]


@dataclass(frozen=True, slots=True)
class NoteAbout:
    """What stands in the file `<leaf>.meta.json` beside a note; there is none to say nothing."""

    expires_at: float | None = None
    """Seconds since 1970; from then on the note is as good as gone."""
    sources: tuple[Source, ...] = ()
    """One for each session; none for a note that was written without the name of a session."""
    is_remembered: bool = False
    """Beside its sources, it was also written without the name of a session: it outlives them."""

    def is_expired(self, now: float) -> bool:
        """Return whether the note is gone for those who look at `now`, in seconds since 1970."""
        return self.expires_at is not None and self.expires_at <= now

    def comes_from(self, session_id: str) -> bool:
        """Return whether a session is one of its sources."""
        return any(source.session_id == session_id for source in self.sources)

    def without(self, session_id: str) -> NoteAbout | None:
        """Return what is left without a session that is one of its sources; None for no reason."""
        left = tuple(source for source in self.sources if source.session_id != session_id)
        if left or self.is_remembered:
            return replace(self, sources=left, is_remembered=self.is_remembered and bool(left))
        return None


NOTHING_KNOWN = NoteAbout()


def told_in(metadata: Mapping[str, str], *, now: float) -> NoteAbout:
    """Return what the metadata of a write tell about the note.

    Args:
        metadata: See `rath.memory.notes`; other keys do not count.
        now: Seconds since 1970.

    Raises:
        ValueError: A value is none that was expected; the text says what was.
    """
    expires_at = _time(metadata[EXPIRES_AT]) if EXPIRES_AT in metadata else None
    session_id: object = metadata.get(SESSION_ID)
    if session_id is None:
        for key in (ROWS, MODEL):
            if key in metadata:
                raise ValueError(f"{key!r} without {SESSION_ID!r}, whose it would be; give both")
        return NoteAbout(expires_at)
    if not isinstance(session_id, str) or not session_id or "/" in session_id:
        raise ValueError(f"{SESSION_ID!r} is {session_id!r}; expected one plain name")
    rows = _rows(metadata.get(ROWS, ""))
    return NoteAbout(expires_at, (Source(session_id, rows, metadata.get(MODEL), now),))


def united(old: NoteAbout, new: NoteAbout) -> NoteAbout:
    """Return what is known of a note that is written again with the same text.

    All sources count, and the later end: without one it is kept for ever.
    """
    ends = (old.expires_at, new.expires_at)
    by_session = {source.session_id: source for source in old.sources}
    for source in new.sources:
        known = by_session.get(source.session_id, source)
        by_session[source.session_id] = Source(
            known.session_id,
            tuple(sorted({*known.rows, *source.rows})),
            known.model or source.model,
            known.learned_at if known.learned_at is not None else source.learned_at,
        )
    is_remembered = any(about.is_remembered or not about.sources for about in (old, new))
    return NoteAbout(
        None if None in ends else max(end for end in ends if end is not None),
        tuple(by_session.values()),
        is_remembered and bool(by_session),
    )


def _time(text: object) -> float:
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


def _rows(text: object) -> tuple[int, ...]:
    parts = text.split(",") if isinstance(text, str) and text else []
    if not isinstance(text, str) or not all(part.isascii() and part.isdigit() for part in parts):
        raise ValueError(f"{ROWS!r} is {text!r}; expected indexes of rows, as in '3,4'")
    return tuple(sorted({int(part) for part in parts}))
