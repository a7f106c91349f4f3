"""Recalled notes: fetched before a run and shown to the model as reference data."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence

from rath._async.bridge import call_either
from rath.session.calls import Context
from rath.session.chunk import ChunkRow
from rath.session.content import Opaque
from rath.session.record import RecalledNote
from rath.session.request import context_message, last_user_index
from rath.session.session import Session

_log = logging.getLogger("rath.session.loop")

Note = ChunkRow | RecalledNote
Recall = Callable[[Session], Sequence[Note] | Awaitable[Sequence[Note]]]
"""Gives the notes for a run; gets a snapshot of the session that the run will answer."""


async def recall_context(recall: Recall | None, session: Session) -> Context | None:
    """Return the context message of a run, or None when nothing was recalled.

    A recall that fails is logged, and the run goes on without notes.
    """
    if recall is None:
        return None
    try:
        notes = tuple(_note(note) for note in await call_either(recall, session))
    except Exception:  # noqa: BLE001  # a callback that fails must not end the run it serves
        _log.exception("recall failed for session %s; the run goes on without notes", session.id)
        return None
    if not notes:
        return None
    at = last_user_index(session.chunk_table)
    return Context(
        at=len(session.chunk_table) if at is None else at,
        message=context_message([note.text for note in notes]),
        notes=notes,
    )


def _note(note: Note) -> RecalledNote:
    if isinstance(note, RecalledNote):
        return note
    content = note.content
    text = "" if isinstance(content, Opaque) else getattr(content, "text", None)
    return RecalledNote(uri="", text=text or "")
