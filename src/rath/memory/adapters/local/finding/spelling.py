"""Which words of the notes a word of a query may mean, and how much each of them counts.

    inflected   renewing   renewed                w = |common beginning| / |longer word|
    compound    datenbank  datenbankverbindung    the same
    corrected   postgers   postgres               w = 1 - edits / |shorter word|

An edit inserts, leaves out or changes a letter or swaps two neighbours: four of five misspellings
are one edit (Damerau, "A technique for computer detection and correction of spelling errors",
CACM 7(3), 1964), and the weight is that of Lucene's FuzzyTermsEnum. One edit is allowed from 4
letters on, two from 8 on, and the first letter must be right, or be the second: it is wrong in one
misspelling of seventy (Yannakoudakis & Fawthrop, "The rules of spelling errors", 1983). Only a word
that no note has is corrected, so that a corrected word never stands before an exact one.

Beginnings stand for stems, since the language of a word is not known; words cut at five letters
serve European languages about as well as their stemmers do (McNamee, Nicholas & Mayfield,
"Addressing morphological variation in alphabetic languages", SIGIR 2009).
"""

from __future__ import annotations

import math
from typing import NamedTuple

from rath.memory.adapters.local.finding.terms import is_word
from rath.memory.adapters.local.indexing.vocabulary import MAX_WORD_CHARS, Vocabulary

MIN_CHARS = 4
"""Shorter words mean themselves."""

MAX_VARIANTS = 4

_TWO_EDITS_FROM = 8
_COMPOUND_FROM = 5
_MAX_ENDING = 3
_MIN_PART = 5
_SHARED = 0.6


class Variant(NamedTuple):
    """Another word, and its weight above 0 and below 1."""

    word: str
    weight: float


def variants(vocabulary: Vocabulary, word: str, *, is_known: bool) -> list[Variant]:
    """Return what a word of a query may also mean, the likeliest first, at most `MAX_VARIANTS`.

    Args:
        vocabulary: The words of the notes.
        word: A term of a query.
        is_known: Whether some note has it; then it is not corrected.
    """
    if not MIN_CHARS <= len(word) <= MAX_WORD_CHARS or not is_word(word):
        return []
    found = {**_inflected(vocabulary, word), **_compounds(vocabulary, word)}
    if not is_known:
        found |= _corrected(vocabulary, word)
    found.pop(word, None)
    best = sorted(found.items(), key=lambda item: (-item[1], item[0]))
    return [Variant(*item) for item in best[:MAX_VARIANTS]]


def parts(vocabulary: Vocabulary, word: str) -> list[str]:
    """Return the two words of the notes that an unknown word is made of; nothing if it is not.

    lieferantenvertrag -> lieferanten vertrag, sicherheitsregel -> sicherheit regel
    """
    if not 2 * _MIN_PART <= len(word) <= MAX_WORD_CHARS or not is_word(word):
        return []
    cuts = range(len(word) - _MIN_PART, _MIN_PART - 1, -1)
    known = vocabulary.known(each for cut in cuts for each in (word[:cut], word[cut:]))
    for cut in cuts:
        for head in (word[:cut], word[: cut - 1] if word[cut - 1] == "s" else ""):
            if head in known and word[cut:] in known:
                return [head, word[cut:]]
    return []


def is_within(edits: int, one: str, other: str) -> bool:
    """Return whether so many edits make one word the other, where each letter is edited once."""
    start = _common(one, other)
    one, other = one[start:], other[start:]
    if one == other:
        return True
    if not edits or abs(len(one) - len(other)) > edits:
        return False
    return (
        is_within(edits - 1, one[1:], other[1:])
        or is_within(edits - 1, one[1:], other)
        or is_within(edits - 1, one, other[1:])
        or (one[:2] == other[1::-1] and is_within(edits - 1, one[2:], other[2:]))
    )


def _inflected(vocabulary: Vocabulary, word: str) -> dict[str, float]:
    found: dict[str, float] = {}
    shortest = max(MIN_CHARS - 1, len(word) - _MAX_ENDING)
    for length in range(shortest, len(word) + _MAX_ENDING + 1):
        longer = max(length, len(word))
        common = max(math.ceil(_SHARED * longer), longer - _MAX_ENDING, MIN_CHARS - 1)
        for other in vocabulary.beginning_with(word[:common], shortest=length, longest=length):
            found[other] = _common(word, other) / longer
    return found


def _compounds(vocabulary: Vocabulary, word: str) -> dict[str, float]:
    if len(word) < _COMPOUND_FROM:
        return {}
    longer = vocabulary.beginning_with(
        word, shortest=len(word) + _MAX_ENDING + 1, longest=MAX_WORD_CHARS
    )
    return {other: len(word) / len(other) for other in longer}


def _corrected(vocabulary: Vocabulary, word: str) -> dict[str, float]:
    """Return the words with the fewest edits."""
    for edits in (1, 2) if len(word) >= _TWO_EDITS_FROM else (1,):
        initials = word[: 3 - edits]
        near = vocabulary.with_letters_of(word, initials=initials, edits=edits)
        found = {
            other: 1 - edits / min(len(word), len(other))
            for other in near
            if is_within(edits, word, other)
        }
        if found:
            return found
    return {}


def _common(one: str, other: str) -> int:
    """Return how many letters two words begin with both."""
    at = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        at += 1
    return at
