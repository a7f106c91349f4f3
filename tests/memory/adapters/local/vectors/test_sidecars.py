"""Vectors that 1.3 left beside notes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from rath.memory.adapters.local.vectors import sidecar_vector


def lay(folder: Path, content: str, *, is_older: bool = False) -> Path:
    """Write a note with a sidecar beside it, and return the note."""
    note, sidecar = folder / "tea.v2.md", folder / "tea.v2.vec"
    note.write_text("tea")
    sidecar.write_text(content)
    os.utime(note, ns=(10**18, 10**18))
    when = 10**18 + (-1 if is_older else 0)
    os.utime(sidecar, ns=(when, when))
    return note


def test_a_vector_of_the_model_that_is_no_older_is_taken(tmp_path: Path) -> None:
    note = lay(tmp_path, json.dumps({"model": "m", "vector": [1, 2.5]}))
    assert sidecar_vector(note, "m") == [1.0, 2.5]
    assert sidecar_vector(note, "other") is None


def test_one_that_is_older_than_the_note_is_not(tmp_path: Path) -> None:
    note = lay(tmp_path, json.dumps({"model": "m", "vector": [1]}), is_older=True)
    assert sidecar_vector(note, "m") is None


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        '{"model": "m"}',
        '{"model": "m", "vector": []}',
        '{"model": "m", "vector": ["1"]}',
        '{"model": "m", "vector": [true]}',
        '{"model": "m", "vector": [1' + "0" * 400 + "]}",
        '{"model": "m", "vector": [1' + ", 1" * 600_000 + "]}",
    ],
    ids=["torn", "list", "none", "empty", "text", "bool", "too large a number", "too long"],
)
def test_what_is_no_sidecar_is_left(tmp_path: Path, content: str) -> None:
    assert sidecar_vector(lay(tmp_path, content), "m") is None


def test_there_may_be_none(tmp_path: Path) -> None:
    assert sidecar_vector(tmp_path / "tea.md", "m") is None
