"""The labelled set: the notes and queries beside this file, one JSON object a line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Note:
    """What an agent remembered."""

    uri: str
    text: str


@dataclass(frozen=True, slots=True)
class Query:
    """What is asked, and which notes answer it."""

    text: str
    category: str
    relevant: frozenset[str]
    """URIs of notes."""
    is_held_out: bool
    """One third of each category, which no rule or weight of the ranking was chosen by."""


def read_notes() -> list[Note]:
    """Return all notes, each with a URI of its own."""
    return [Note(each["uri"], each["text"]) for each in _lines("notes.jsonl")]


def read_queries() -> list[Query]:
    """Return all queries, those of a category together."""
    return [
        Query(each["query"], each["category"], frozenset(each["relevant"]), each["held_out"])
        for each in _lines("queries.jsonl")
    ]


def _lines(name: str) -> Iterator[dict[str, Any]]:
    with (_FOLDER / name).open(encoding="utf-8") as file:
        yield from map(json.loads, file)
