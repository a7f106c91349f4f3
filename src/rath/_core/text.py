"""Text at the borders: valid Unicode, bytes of other programs, previews, near names, scripts."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING
from uuid import UUID

from rath._core.lazy_imports import lazy_modules

if TYPE_CHECKING:
    import difflib
    import locale
    import unicodedata
else:
    locale, difflib, unicodedata = lazy_modules(__name__, "locale", "difflib", "unicodedata")


_PREVIEW_GAP = " ... "
_JOINERS = "\u200c\u200d"
"""Within words and emoji; without them some cannot be read."""

_LEFT_OUT = "\n[... {} characters left out ...]\n"

# Thai, Lao, Tibetan, Myanmar, Khmer, kana, Bopomofo, Han and Hangul. Hangul is spaced, but its
# particles stick to the words.
UNSPACED = re.compile(
    "[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u312f\u31a0-\u31ff\u3400-\u9fff"
    "\uac00-\ud7af\uf900-\ufaff\U0001b000-\U0001b16f\U00020000-\U0003ffff]+"
)
"""Finds runs of characters of such scripts."""


def valid_unicode(text: str) -> str:
    """Return `text` with every lone surrogate replaced by U+FFFD.

    The same object comes back when nothing was wrong, so `result is text` tells whether a
    replacement was made. Two surrogates that form a pair become the character they stand for.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def decode_output(data: bytes, *, fallback: str | None = None) -> str:
    """Return what another program wrote as text; never fails.

    Args:
        data: Bytes of a pipe or a file.
        fallback: Encoding to use when `data` is not UTF-8; the locale's own by default, and
            Latin-1 when Python does not know that name.
    """
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        pass
    try:
        return data.decode(fallback or locale.getencoding(), errors="replace")
    except LookupError:
        return data.decode("latin-1")


def one_line_preview(text: str, max_chars: int) -> str:
    r"""Return `text` on one line, line breaks as the two characters `\n`, cut in its middle.

    A limit of 8 characters or less is too small to cut at, so the text stays whole.
    """
    line = text.replace("\r\n", "\\n").replace("\r", "\\n").replace("\n", "\\n")
    if max_chars <= 8 or len(line) <= max_chars:
        return line
    edge = max(1, (max_chars - len(_PREVIEW_GAP)) // 2)
    return f"{line[:edge]}{_PREVIEW_GAP}{line[-edge:]}"


def visible(text: str, *, but: str = "\n\t") -> str:
    """Return a text with its control characters written out, except those in `but`.

    Whatever stands in a config or an answer, a terminal gets no commands from it.
    """
    if text.isprintable():
        return text
    return "".join(
        # To Python no space is printable but the one of ASCII.
        char
        if char.isprintable() or char in but + _JOINERS or unicodedata.category(char) == "Zs"
        else char.encode("unicode_escape").decode()
        for char in text
    )


def short_id(id: UUID) -> str:
    """Return the first group of an id, enough for a person to tell sessions apart."""
    return str(id).partition("-")[0]


def cut_middle(text: str, max_chars: int) -> tuple[str, int]:
    """Return `text` with its middle left out, and how many characters were left out.

    Head and tail stay in equal parts, with a line between them that says what is missing; the
    result has at most `max_chars` characters. Where there is no room for that line, only the
    head stays.
    """
    if len(text) <= max_chars:
        return text, 0
    # The note is sized for the longest number it can hold, so the result never passes the limit.
    room = max_chars - len(_LEFT_OUT.format(len(text)))
    if room < 2:
        end = max(0, max_chars)
        return text[:end], len(text) - end
    tail = room // 2
    head = room - tail
    left_out = len(text) - room
    return f"{text[:head]}{_LEFT_OUT.format(left_out)}{text[len(text) - tail :]}", left_out


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that `name` was probably meant to be, letter case aside, or None.

    That is the most similar one, or the first with `name` as one of its words, as `shell` in
    `run_shell_command`.
    """
    folded, by_folded = name.casefold(), {other.casefold(): other for other in known}
    matches = difflib.get_close_matches(folded, by_folded, n=1)
    matches += [other for other in by_folded if folded in re.split(r"[^a-z0-9]+", other) and folded]
    return by_folded[matches[0]] if matches else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the sentence " Did you mean 'x'?" with the nearest known name, or an empty text."""
    near = nearest(name, known)
    return "" if near is None else f" Did you mean {near!r}?"
