"""Recalled notes: fetched before a run and shown to the model as reference data."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from math import isfinite
from typing import assert_never

from msgspec.structs import replace

from rath._async.bridge import call_either
from rath._async.runtime import runtime
from rath._core.text import valid_unicode
from rath.session.calls.requests import Context, context_message, last_user_index
from rath.session.chunk import ChunkRow, ChunkTable
from rath.session.content import AssistantTurn, Opaque, SystemText, ToolFeedback, UserText, quoted
from rath.session.record import RecalledNote
from rath.session.session import Session

_log = logging.getLogger("rath.session.loop")

Note = ChunkRow | RecalledNote
Recall = Callable[[Session], Sequence[Note] | Awaitable[Sequence[Note]]]
"""Gives the notes for a run; gets a snapshot of the session that the run will answer."""


class HoldingRecall(ABC):
    """A recall that holds something open until the run has ended."""

    # A base class: a recall of the user may have a `close` that is not for the run to call.
    @abstractmethod
    def __call__(self, session: Session) -> Sequence[Note] | Awaitable[Sequence[Note]]:
        """Give the notes, as any `Recall`."""

    @abstractmethod
    def close(self) -> None:
        """Let go; called once, on the runtime, and must not block."""


MAX_CONTEXT_TOKENS = 50_000
"""Most tokens, by `n_tokens`, of all that is recalled for a run, whoever chose the notes; a guess
at what is a mistake in any window."""

_WORTH_SHOWING = 20
"""Characters below which the beginning of a note tells nothing; a guess."""


async def recall_context(recall: Recall | None, session: Session) -> Context | None:
    """Return the context message of a run, or None when nothing was recalled.

    A recall that fails is logged, and the run goes on without notes.
    """
    if recall is None:
        return None
    try:
        notes = await call_either(recall, session)
        if isinstance(notes, tuple) and not notes:
            return None
        # Rows and iterators of the user, perhaps very long ones, are not for the runtime thread.
        return await runtime().call_in_worker(partial(_context, notes, session.chunk_table))
    except Exception:  # noqa: BLE001  # a callback that fails must not end the run it serves
        _log.exception("recall failed for session %s; the run goes on without notes", session.id)
        return None


def n_tokens(text: str) -> int:
    """Return how many tokens a text has at most, estimated without a tokenizer.

        n = ceil(ASCII characters / 3 + bytes of all others in UTF-8 / 2)

    That is one for a character of Cyrillic, one and a half for a Chinese one, two for an emoji.
    Tokenizers of today make fewer of prose; of digits and base64 they may make twice as many.
    The formula is a guess on the safe side.
    """
    return -(-_sixths(text) // 6)


def within(notes: Iterable[RecalledNote], max_tokens: int) -> tuple[RecalledNote, ...]:
    """Return the notes whose context message has at most `max_tokens` tokens, by `n_tokens`.

    They are taken in their order while they fit; the first that does not is cut, and those after
    it are left out. Notes without a text are left out too.
    """
    sixths_left = 6 * max_tokens - _sixths(context_message(()).content or "")
    selected: list[RecalledNote] = []
    for note in notes:
        if not note.text.strip():
            continue
        fitting = note if _fits(note, sixths_left) else _cut(note, sixths_left)
        if fitting is not None:
            selected.append(fitting)
            sixths_left -= _line_sixths(fitting)
        if fitting is not note:
            _log.info("recalled notes are cut after %d, at %d tokens", len(selected), max_tokens)
            break
    return tuple(selected)


def _context(notes: Iterable[Note], table: ChunkTable) -> Context | None:
    fitting = within(map(_note, notes), MAX_CONTEXT_TOKENS)
    if not fitting:
        return None
    at = last_user_index(table)
    return Context(
        at=len(table) if at is None else at,
        message=context_message([note.shown for note in fitting]),
        notes=fitting,
    )


def _note(note: Note) -> RecalledNote:
    if isinstance(note, RecalledNote):
        # NaN equals nothing, itself included, and has no JSON.
        score = note.score if note.score is not None and isfinite(note.score) else None
        uri, text = valid_unicode(note.uri), valid_unicode(note.text)
        return replace(note, uri=uri, text=text, score=score)
    return RecalledNote(uri="", text=valid_unicode(_text(note)))


def _text(row: ChunkRow) -> str:
    content = row.content
    match content:
        case UserText() | ToolFeedback():
            return content.described
        case SystemText(text):
            return text
        case AssistantTurn(text):
            return text or ""
        case Opaque(payload):
            text = payload.get("content")
            return text if isinstance(text, str) else ""
        case _:
            assert_never(content)


def _cut(note: RecalledNote, left: int) -> RecalledNote | None:
    """Return as much of the beginning of a note as fits, None when that is next to nothing."""

    def beginning(n_chars: int) -> RecalledNote:
        n_left_out = note.n_left_out + len(note.text) - n_chars
        return replace(note, text=note.text[:n_chars], n_left_out=n_left_out)

    most = min(len(note.text) - 1, left // 2)
    n_chars = bisect_right(range(most + 1), left, key=lambda n: _line_sixths(beginning(n))) - 1
    return beginning(n_chars) if n_chars >= _WORTH_SHOWING else None


def _fits(note: RecalledNote, left: int) -> bool:
    # No character is worth less than two sixths: a very long text is not even looked at.
    return 2 * len(note.text) <= left and _line_sixths(note) <= left


def _line_sixths(note: RecalledNote) -> int:
    return _sixths(f"- {quoted(note.shown)}\n")


def _sixths(text: str) -> int:
    n_ascii = len(text.encode("ascii", "ignore"))
    return 2 * n_ascii + 3 * (len(text.encode(errors="replace")) - n_ascii)
