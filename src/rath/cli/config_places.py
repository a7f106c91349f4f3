"""Where in the text of a JSON file a value stands."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TypeAlias

__all__ = ["Place", "place_in", "places_of"]

Path: TypeAlias = tuple[str | int, ...]
Place: TypeAlias = tuple[int, int]
"""Line and column, both from 1."""

_decoder = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\n\r]*")


def places_of(text: str) -> dict[Path, Place]:
    """Return for everything inside a JSON text where it begins: a member with its name.

    Raises:
        ValueError: It is no JSON text.
    """
    found: dict[Path, int] = {}
    _walk(text, _after_space(text, 0), (), found)
    return {path: _line_and_column(text, at) for path, at in found.items()}


def place_in(places: Mapping[Path, Place], path: Sequence[str | int]) -> Place | None:
    """Return where something stands or, where it is missing, what it is missing in."""
    for depth in range(len(path), 0, -1):
        if tuple(path[:depth]) in places:
            return places[tuple(path[:depth])]
    return None


def _walk(text: str, at: int, path: Path, found: dict[Path, int]) -> int:
    """Note what is inside the value that begins at `at`, and return where it ends."""
    if text.startswith("{", at):
        return _walk_members(text, at + 1, path, found)
    if text.startswith("[", at):
        return _walk_items(text, at + 1, path, found)
    _, end = _decoder.raw_decode(text, at)
    return end


def _walk_members(text: str, at: int, path: Path, found: dict[Path, int]) -> int:
    at = _after_space(text, at)
    while not text.startswith("}", at):
        name, end = _decoder.raw_decode(text, at)
        inner = (*path, str(name))
        found[inner] = at
        colon = _after_space(text, end)
        at = _walk(text, _after_space(text, colon + 1), inner, found)
        at = _after_comma(text, at)
    return at + 1


def _walk_items(text: str, at: int, path: Path, found: dict[Path, int]) -> int:
    at = _after_space(text, at)
    number = 0
    while not text.startswith("]", at):
        found[(*path, number)] = at
        at = _after_comma(text, _walk(text, at, (*path, number), found))
        number += 1
    return at + 1


def _after_comma(text: str, at: int) -> int:
    at = _after_space(text, at)
    return _after_space(text, at + 1) if text.startswith(",", at) else at


def _after_space(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    return at if space is None else space.end()


def _line_and_column(text: str, at: int) -> Place:
    return text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)
