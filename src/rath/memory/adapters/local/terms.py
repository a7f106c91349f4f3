"""The terms by which notes are found: folded words, and bigrams where words are not spaced.

"Die Straße ist NASS"  ->  die strasse ist nass
"喜欢"                  ->  喜 欢 喜欢
"""

from __future__ import annotations

import re
import unicodedata

MAX_TERM_CHARS = 64
"""Longer words, as in encoded data, are cut here."""

# Thai, Lao, Tibetan, Myanmar, Khmer, kana, Bopomofo, Han and Hangul. Hangul is spaced, but its
# particles stick to the words.
_UNSPACED = re.compile(
    "[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u312f\u31a0-\u31ff\u3400-\u9fff"
    "\uac00-\ud7af\uf900-\ufaff\U0001b000-\U0001b16f\U00020000-\U0003ffff]+"
)


class _WordCharacters(dict[int, int | None]):
    """Maps what belongs to no word to a blank and accents to nothing; grows as text is seen."""

    def __missing__(self, code: int) -> int | None:
        category = unicodedata.category(chr(code))
        if 0x300 <= code <= 0x36F:
            mapped = None
        else:
            mapped = code if category[0] in "LNM" else 0x20
        self[code] = mapped
        return mapped


_word_characters = _WordCharacters()


def words(text: str) -> list[str]:
    """Return the words of a text, in order, without case, accents and compatibility forms."""
    if text.isascii():
        folded = text.lower()
    else:
        folded = unicodedata.normalize("NFKD", text).casefold()
    plain = folded.translate(_word_characters)
    if not plain.isascii():
        # Hangul and kana came apart above and are put together again.
        plain = unicodedata.normalize("NFC", plain)
    return plain.split()


def index_terms(text: str) -> list[str]:
    """Return the terms under which a text is stored."""
    return [term for word in words(text) for term in _split(word, 1)]


def query_terms(text: str) -> list[str]:
    """Return the distinct terms to look for, in order; unspaced runs give bigrams where they can.

    A single unspaced character is a term of its own, which every text that has it is stored under.
    """
    return list(dict.fromkeys(term for word in words(text) for term in _split(word, 2)))


def _split(word: str, shortest: int) -> list[str]:
    terms: list[str] = []
    end = 0
    for run in _UNSPACED.finditer(word) if not word.isascii() else ():
        terms.append(word[end : run.start()])
        terms.extend(_grams(run.group(), shortest))
        end = run.end()
    terms.append(word[end:])
    return [term[:MAX_TERM_CHARS] for term in terms if term]


def _grams(run: str, shortest: int) -> list[str]:
    singles = list(run) if shortest == 1 or len(run) == 1 else []
    return singles + [run[at : at + 2] for at in range(len(run) - 1)]
