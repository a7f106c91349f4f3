"""The words of all notes and transcripts, in a table where words near another one are found.

A row says with which letter a word begins, how long it is and which letters it has: what a
misspelled word may have meant is then a range of rows, of which few pass a test of bits. It also
names one file that has the word, so that few words need a look when a file is forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import cast

from rath.memory.adapters.local.finding.terms import is_word

VOCABULARY_SCHEMA = """
CREATE TABLE vocabulary (
    initial TEXT NOT NULL, length INTEGER NOT NULL, word TEXT NOT NULL, letters INTEGER NOT NULL,
    file INTEGER NOT NULL, PRIMARY KEY (initial, length, word)) WITHOUT ROWID;
"""

MIN_WORD_CHARS = 3
MAX_WORD_CHARS = 32
"""Shorter and longer terms are no words of the vocabulary."""

MAX_EDITS = 2

Rows = Callable[..., list[tuple[object, ...]]]
"""Runs SQL with values and returns its rows."""

Entry = tuple[str, int, str, int]
"""A row of the table, without its file."""

_LAST = "\U0010ffff"
_MAX_FOUND = 64
# Letters share a bit where their code points are equal modulo this; those of one script do not.
_N_BITS = 61
_KEPT_ENTRIES = 8192


def entries(terms: Iterable[str]) -> list[Entry]:
    """Return the rows for the words among some terms."""
    return [entry for term in set(terms) if (entry := _entry(term)) is not None]


class Vocabulary:
    """Looks words up in the table; `rows` runs SQL on the index."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def beginning_with(self, prefix: str, *, shortest: int, longest: int) -> list[str]:
        """Return words that begin so, the shortest first; at most 64."""
        lengths = range(max(shortest, MIN_WORD_CHARS), min(longest, MAX_WORD_CHARS) + 1)
        sql = f"""SELECT word FROM vocabulary WHERE initial = ? AND word >= ? AND word < ?
                  AND length IN ({", ".join(map(str, lengths))}) LIMIT {_MAX_FOUND}"""
        return self._words(sql, prefix[0], prefix, prefix + _LAST)

    def known(self, words: Iterable[str]) -> set[str]:
        """Return those that are in the table."""
        sql = "SELECT word FROM vocabulary WHERE initial = ? AND length = ? AND word = ?"
        return {word for word in words if self._words(sql, word[0], len(word), word)}

    def with_letters_of(self, word: str, *, initials: Iterable[str], edits: int) -> list[str]:
        """Return all words that may become `word` by so many edits, and others.

        Args:
            word: What is near.
            initials: Letters that they begin with.
            edits: At most this many letters are inserted, left out, changed or swapped.
        """
        shortest, longest = len(word) - edits, len(word) + edits
        # An edit adds one letter at most, and takes one at most.
        added, taken = "letters & ~?4", "?4 & ~letters"
        for _ in range(edits):
            added, taken = (f"({bits}) & (({bits}) - 1)" for bits in (added, taken))
        sql = f"""SELECT word FROM vocabulary WHERE initial = ?1 AND length BETWEEN ?2 AND ?3
                  AND ({added}) = 0 AND ({taken}) = 0"""
        found: list[str] = []
        for initial in dict.fromkeys(initials):
            found += self._words(sql, initial, shortest, longest, _letters_of(word))
        return found

    def _words(self, sql: str, *values: object) -> list[str]:
        return [word for (word,) in cast("list[tuple[str]]", self._rows(sql, *values))]


@lru_cache(_KEPT_ENTRIES)
def _entry(term: str) -> Entry | None:
    if not MIN_WORD_CHARS <= len(term) <= MAX_WORD_CHARS or not is_word(term):
        return None
    return term[0], len(term), term, _letters_of(term)


def _letters_of(word: str) -> int:
    """Return a number with a bit for each letter that a word has."""
    bits = 0
    for char in word:
        bits |= 1 << ord(char) % _N_BITS
    return bits
