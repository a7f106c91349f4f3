"""What is said, in the form in which FTS5 stores it, and questions in its language.

FTS5 takes a run of Han for one word. So the characters of scripts without spaces are stored apart,
and a run that is looked for is a phrase of them:

    "请修复 bug"  ->  stored as 请 修 复 bug, with spaces of no width
    "修复"        ->  the phrase "修 复"
"""

from __future__ import annotations

import re
from typing import Final

from rath._core.scripts import UNSPACED
from rath._core.text import valid_unicode

__all__ = ["match_of", "shown", "stored"]

_GAP: Final = "\u200b"
_PIECE = re.compile(r'"([^"]*)"|(\S+)')


def stored(text: str) -> str:
    """Return a text as it is stored; the same object for most."""
    if text.isascii():
        return text
    return UNSPACED.sub(lambda run: _GAP + _GAP.join(run[0]) + _GAP, valid_unicode(text))


def shown(text: str) -> str:
    """Return what is stored as it was said."""
    return text.replace(_GAP, "")


def match_of(question: str) -> str | None:
    """Return what FTS5 shall match: all words of a question, by their beginnings.

    Words in quotes are looked for as they stand there, next to each other.

    Returns:
        None for a question without a word: it finds nothing.
    """
    terms: list[str] = []
    for phrase, word in _PIECE.findall(stored(question).replace("\0", " ")):
        piece = phrase or word
        if any(char.isalnum() for char in piece):
            quoted = piece.replace('"', '""')
            terms.append(f'"{quoted}"' if phrase else f'"{quoted}"*')
    return " AND ".join(terms) or None
