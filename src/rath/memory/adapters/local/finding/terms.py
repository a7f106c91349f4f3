"""The terms by which notes are found: folded words, and bigrams where words are not spaced.

"Die Straße ist NASS"  ->  die strasse ist nass
"喜欢"                  ->  喜 欢 喜欢
"getUserName"          ->  get user name getusername
"get_user-name"        ->  get user name getusername
"v5.29.3"              ->  5 29 3 5ꞏ29ꞏ3
"Mara's, don't"        ->  mara dont
"""

from __future__ import annotations

import re
import unicodedata

from rath._core.text import UNSPACED

MAX_TERM_CHARS = 64
"""Longer words, as in encoded data, are cut here."""

_JOINTS = "-._'\u2010\u2019"
_UPPER, _LOWER = "A-ZÀ-ÖØ-ÞА-ЯЁ", "a-zß-öø-ÿа-яё"
_COMPOUND_AHEAD = re.compile(
    f"[^\\W_][{_JOINTS}]+[^\\W_]|[{_LOWER}0-9][{_UPPER}]|[{_UPPER}]{{2}}[{_LOWER}]"
)
_COMPOUND = re.compile(f"[^\\W_]+(?:(?:_+|[{_JOINTS}])[^\\W_]+)*")
_JOINT = re.compile(f"[{_JOINTS}]+")
_JOINT_OF_DIGITS = re.compile(r"(?<=[0-9])[-._](?=[0-9])")
# getUser|Name, HTTP|Server, but APIs.
_HUMP = re.compile(
    f"(?<=[{_LOWER}0-9])(?=[{_UPPER}])|(?<=[{_UPPER}])(?=[{_UPPER}][{_LOWER}])(?![{_UPPER}]s\\b)"
)
_VERSION = re.compile(r"[vV](?=[0-9]+\.[0-9])")
_CONTRACTION = re.compile(r"['\u2019](?:(?:s|re|ve|ll|d|m)\b|(?<=n.)(?=t\b))", re.IGNORECASE)
_DOT_OF_DIGITS = "\ua78f"
"""A letter by its category, so that a version is one word; nobody types it."""

# What NFKD leaves whole, for those whose keyboards lack it.
_PLAIN = str.maketrans(
    {
        **dict(
            zip("æœøłđðþħŧı", ("ae", "oe", "o", "l", "d", "d", "th", "h", "t", "i"), strict=True)
        ),
        # Arabic: alef maksura, teh marbuta, and the Persian yeh and kaf.
        **dict(zip("\u0649\u0629\u06cc\u06a9", "\u064a\u0647\u064a\u0643", strict=True)),
    }
)
# Accents, the points of Hebrew, the vowels and the stretching of Arabic, the nukta of Devanagari.
_SIGNS = (
    (0x300, 0x36F),
    (0x591, 0x5BD),
    (0x5BF, 0x5BF),
    (0x5C1, 0x5C2),
    (0x5C4, 0x5C5),
    (0x5C7, 0x5C7),
    (0x610, 0x61A),
    (0x640, 0x640),
    (0x64B, 0x65F),
    (0x670, 0x670),
    (0x93C, 0x93C),
)
_ZERO_WIDTH_SPACE = 0x200B


class _WordCharacters(dict[int, int | str | None]):
    """Maps what belongs to no word to a blank and accents to nothing; grows as text is seen."""

    def __missing__(self, code: int) -> int | str | None:
        mapped = self[code] = _mapped(code)
        return mapped


def _mapped(code: int) -> int | str | None:
    category = unicodedata.category(chr(code))
    if any(first <= code <= last for first, last in _SIGNS):
        return None
    if category == "Cf" and code != _ZERO_WIDTH_SPACE:
        return None  # soft hyphens, joiners, marks of direction
    return _PLAIN.get(code, code) if category[0] in "LNM" else 0x20


_word_characters = _WordCharacters()


def words(text: str) -> list[str]:
    """Return the words of a text without case, accents and compatibility forms.

    A word of several parts, as identifiers are, gives its parts and all of it as one word.
    """
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
    if _COMPOUND_AHEAD.search(text):
        text = _COMPOUND.sub(_spread, text)
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


def is_word(term: str) -> bool:
    """Return whether a term is a word of letters alone, and no piece of an unspaced run."""
    if term.isascii():
        return term.isalpha()
    return not any(map(str.isnumeric, term)) and UNSPACED.search(term) is None


def _spread(found: re.Match[str]) -> str:
    """Return the parts of a word and, where there are several, the whole."""
    word = found[0]
    if word.isascii() and word.isalpha() and (word.islower() or word[1:].islower()):
        return word
    if not word.isascii() and UNSPACED.search(word):
        # What stands between unspaced runs is spread, and not the whole.
        return _COMPOUND.sub(_spread, UNSPACED.sub(" ", word)) + " ".join(UNSPACED.findall(word))
    word = _VERSION.sub("", _CONTRACTION.sub("", word))
    parts = _JOINT.sub(" ", word)
    if len(parts) <= MAX_TERM_CHARS:
        parts = _HUMP.sub(" ", parts)
    if parts == word:
        return word
    return f"{parts} {_JOINT.sub('', _JOINT_OF_DIGITS.sub(_DOT_OF_DIGITS, word))}"


def _split(word: str, shortest: int) -> list[str]:
    if word.isascii():
        return [word[:MAX_TERM_CHARS]]
    terms: list[str] = []
    end = 0
    for run in UNSPACED.finditer(word):
        terms.append(word[end : run.start()])
        terms.extend(_grams(run.group(), shortest))
        end = run.end()
    terms.append(word[end:])
    return [term[:MAX_TERM_CHARS] for term in terms if term]


def _grams(run: str, shortest: int) -> list[str]:
    singles = list(run) if shortest == 1 or len(run) == 1 else []
    return singles + [run[at : at + 2] for at in range(len(run) - 1)]
