"""The labelled set, and that the table in the docs is what it gives."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.recall.records import read_notes, read_queries
from benchmarks.recall.systems import has_model
from benchmarks.recall.table import MEANING, NOT_INSTALLED, WORDS, markdown, measure
from rath.memory.adapters.local.terms import words

_PAGE = Path(__file__).parents[3] / "docs/source/developer_notes/memory_recall.md"
_SMALL_WORDS = {"a", "after", "at", "for", "on", "she", "the", "to"}


def documented() -> dict[str, dict[str, str]]:
    """The columns of the table in the docs, each with its rows."""
    lines = re.findall(r"^\|(.*)\|$", _PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    start = next(at for at, line in enumerate(lines) if line.startswith(" queries |"))
    return columns(lines[start : start + 12])


def columns(lines: list[str]) -> dict[str, dict[str, str]]:
    """The columns of a table of Markdown, given its lines without their ends."""
    cells = [[cell.strip() for cell in line.split("|")] for line in lines]
    header, _, *rows = cells
    return {
        name: {row[0]: row[number] for row in rows} for number, name in enumerate(header) if number
    }


def test_the_table_of_the_docs_is_what_words_give_now() -> None:
    measured = columns([line.strip("|") for line in markdown(measure(WORDS)).splitlines()])
    shown = documented()
    assert len(measured["number"]) == 10
    assert measured == {name: shown[name] for name in ("number", *WORDS)}


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.skipif(not has_model(), reason="the embedding model is not installed")
def test_the_table_of_the_docs_is_what_vectors_give_now() -> None:
    # The model's integer arithmetic differs between processors, and with what is embedded together:
    # a query or two of a category may.
    found, shown = measure(MEANING), documented()
    for column in MEANING:
        scores = found[column]
        assert scores is not None
        assert scores == pytest.approx(
            {row: float(value) for row, value in shown[column].items()}, abs=0.12
        )


def test_a_column_without_its_model_says_so() -> None:
    table = markdown({"rath, vectors": None})
    assert table.count(NOT_INSTALLED) == 10


def test_the_set_is_as_large_as_the_docs_say() -> None:
    notes, queries = read_notes(), read_queries()
    page = _PAGE.read_text(encoding="utf-8")
    assert f"The {len(notes)} notes and {len(queries)} queries" in page
    assert len(notes) >= 220
    assert len(queries) >= 64


def test_every_note_has_a_place_and_a_text_of_its_own() -> None:
    notes = read_notes()
    assert len({note.uri for note in notes}) == len({note.text for note in notes}) == len(notes)


def test_every_relevant_note_is_there() -> None:
    uris = {note.uri for note in read_notes()}
    assert all(query.relevant and query.relevant <= uris for query in read_queries())


def test_a_third_of_each_category_is_held_out() -> None:
    queries = read_queries()
    all_of = Counter(query.category for query in queries)
    held_out = Counter(query.category for query in queries if query.is_held_out)
    assert held_out == {category: n // 3 for category, n in all_of.items()}


def test_a_paraphrase_shares_no_word_of_meaning_with_its_note() -> None:
    texts = {note.uri: note.text for note in read_notes()}
    for query in read_queries():
        if query.category == "paraphrase":
            for uri in query.relevant:
                assert set(words(query.text)) & set(words(texts[uri])) <= _SMALL_WORDS
