"""What is known about a note beside its text: where it comes from, and when it expires."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Source:
    """A session that a note was learned from."""

    session_id: str
    rows: tuple[int, ...] = ()
    """Indexes of the rows of the session; none where they are not known."""
    model: str | None = None
    """The model that wrote the note, where one did."""
    learned_at: float | None = None
    """Seconds since 1970."""


@dataclass(frozen=True, slots=True)
class NoteAbout:
    """What stands in the file `<leaf>.meta.json` beside a note; there is none to say nothing."""

    expires_at: float | None = None
    """Seconds since 1970; from then on the note is as good as gone."""
    sources: tuple[Source, ...] = ()


NOTHING_KNOWN = NoteAbout()
