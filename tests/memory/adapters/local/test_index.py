"""The words of all notes, and which of them are near another one."""

from __future__ import annotations

from contextlib import closing

from hypothesis import given
from hypothesis import strategies as st

from rath.memory.adapters.local.files import Stamp
from rath.memory.adapters.local.index import MAX_WORD_CHARS, IndexEntry, NoteIndex, vocabulary_rows
from rath.memory.adapters.local.layout import Kind

WORDS = ["tea", "teas", "teapot", "слово", "слова", "喜欢", "e4012", "a" * (MAX_WORD_CHARS + 1)]
NAMES = ["a.md", "b.md", "c.md"]
steps = st.lists(st.tuples(st.sampled_from(NAMES), st.none() | st.lists(st.sampled_from(WORDS))))


def put(index: NoteIndex, name: str, terms: list[str], kind: Kind = "note") -> None:
    """Index a document, or another in its place."""
    with index.writing():
        index.put([IndexEntry("user", name, kind, Stamp(1, 1), terms)])


def stored(index: NoteIndex) -> set[object]:
    """All words of the vocabulary."""
    return {word for (word,) in index.rows("SELECT word FROM vocabulary")}


@given(steps)
def test_the_vocabulary_holds_the_words_that_stand_in_documents(
    changes: list[tuple[str, list[str] | None]],
) -> None:
    texts: dict[str, list[str]] = {}
    with closing(NoteIndex(None)) as index:
        for name, terms in changes:
            if terms is None:
                index.remove("user", name)
                texts.pop(name, None)
            else:
                put(index, name, terms)
                texts[name] = terms
        expected = {word for terms in texts.values() for *_, word, _ in vocabulary_rows(terms)}
        assert stored(index) == expected


@given(st.text("abcdeфы", min_size=3, max_size=10), st.data())
def test_no_word_within_the_edits_is_missed(word: str, data: st.DataObject) -> None:
    other = edited(word, data)
    with closing(NoteIndex(None)) as index:
        put(index, "a.md", [word])
        near = index.words_with_letters_of(other, initials=word[0], edits=1)
    assert near == [word]


def edited(word: str, data: st.DataObject) -> str:
    """The word after one edit."""
    at = data.draw(st.integers(0, len(word) - 1))
    letter = data.draw(st.sampled_from("abcdeфы"))
    edits = [
        word[:at] + word[at + 1 :],
        word[:at] + letter + word[at:],
        word[:at] + letter + word[at + 1 :],
        word[:at] + word[at : at + 2][::-1] + word[at + 2 :],
    ]
    return data.draw(st.sampled_from(edits))
