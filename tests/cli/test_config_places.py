"""Where in a JSON text a value stands."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath.cli.doctor_config import place_in, places_of

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


def paths_in(value: object, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """The path of everything inside a value, in the order of its text."""
    items: list[tuple[str | int, object]] = []
    if isinstance(value, dict):
        items = list(cast("dict[str | int, object]", value).items())
    elif isinstance(value, list):
        items = list(enumerate(cast("list[object]", value)))
    found: list[tuple[str | int, ...]] = []
    for name, inner in items:
        found += [(*path, name), *paths_in(inner, (*path, name))]
    return found


@given(JSON, st.sampled_from([None, 1, "\t"]))
def test_every_member_and_item_has_the_place_where_it_begins(
    value: Any, indent: int | str | None
) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    places = places_of(text)
    assert list(places) == paths_in(value)
    lines = text.split("\n")
    for path, (line, column) in places.items():
        rest = lines[line - 1][column - 1 :]
        if isinstance(path[-1], str):
            assert rest.startswith(json.dumps(path[-1], ensure_ascii=False))
        else:
            assert rest


def test_lines_and_columns_count_from_one() -> None:
    assert places_of('{"a": 1,\n  "b": [true]}') == {
        ("a",): (1, 2), ("b",): (2, 3), ("b", 0): (2, 9),
    }  # fmt: skip


def test_what_is_missing_has_the_place_of_what_it_is_missing_in() -> None:
    places = places_of('{"a": {"b": {}}}')
    assert place_in(places, ("a", "b", "c")) == (1, 8)
    assert place_in(places, ("x",)) is None
    assert place_in(places, ()) is None


@pytest.mark.parametrize("text", ["", "{", '{"a"', "[1,", "{a: 1}"])
def test_what_is_no_json_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        places_of(text)
