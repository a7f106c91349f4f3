"""Values come through JSON, the loop's check and the conversion as they were."""

from __future__ import annotations

import functools
import json
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic_core import to_json

from tests.flow.tool.function.kinds import (
    Address,
    Colour,
    Item,
    Level,
    Line,
    Node,
    Order,
    Pair,
    Point,
)
from tests.flow.tool.function.taking import Taker, taker

texts = st.text(st.characters(codec="utf-8"), max_size=20)
numbers = st.integers(-(10**25), 10**25)
points = st.builds(Point, numbers, numbers)
items = st.builds(Item, name=texts, count=st.integers(1, 9))
days = st.dates()
durations = st.timedeltas(timedelta(days=-9999), timedelta(days=9999))
moments = st.datetimes(timezones=st.none() | st.timezones().filter(lambda zone: zone.key == "UTC"))
leaves = st.builds(Node, value=numbers)
nodes = st.recursive(
    leaves, lambda inner: st.builds(Node, value=numbers, children=st.lists(inner, max_size=3))
)
addresses: st.SearchStrategy[Address] = st.fixed_dictionaries(
    {"street": texts}, optional={"nr": numbers}
)  # type: ignore[assignment]  # a strategy of dicts, with the keys that it has

VALUES: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "text": (str, texts),
    "int": (int, numbers),
    "float": (float, st.floats(allow_nan=False, allow_infinity=False)),
    "bool": (bool, st.booleans()),
    "int or text": (int | str, numbers | texts),
    "list": (list[int | None], st.lists(st.none() | numbers, max_size=5)),
    "set": (set[int], st.sets(numbers, max_size=5)),
    "tuple": (tuple[int, str, bool], st.tuples(numbers, texts, st.booleans())),
    "dict": (
        dict[str, list[int]],
        st.dictionaries(texts, st.lists(numbers, max_size=3), max_size=3),
    ),
    "enum": (Colour, st.sampled_from(Colour)),
    "int enum": (list[Level], st.lists(st.sampled_from(Level), max_size=3)),
    "bytes": (bytes, st.binary(max_size=30)),
    "many bytes": (dict[str, bytes], st.dictionaries(texts, st.binary(max_size=9), max_size=3)),
    "date": (date, days),
    "datetime": (datetime, moments),
    "time": (time, st.times()),
    "timedelta": (timedelta, durations),
    "uuid": (UUID, st.uuids()),
    "decimal": (Decimal, st.decimals(allow_nan=False, allow_infinity=False)),
    "path": (Path, st.lists(st.sampled_from("ab.")).map(lambda p: Path(*p))),
    "model": (Item, items),
    "nested": (Order, st.builds(Order, items=st.lists(items, max_size=3), note=st.none() | texts)),
    "model of itself": (Node, nodes),
    "dataclass": (Line, st.builds(Line, points, points)),
    "dataclass or date": (Point | date, points | days),
    "typed dict": (Address, addresses),
    "named tuple": (Pair, st.builds(Pair, numbers, texts)),
}


@functools.cache
def taker_of(name: str) -> Taker:
    return taker(VALUES[name][0])


@functools.cache
def validator(name: str) -> Any:
    return Draft202012Validator(dict(taker_of(name).tool.parameters))


def written(value: object) -> dict[str, Any]:
    """Return what a model would write for the value."""
    arguments: dict[str, Any] = json.loads(to_json({"value": value}, bytes_mode="base64"))
    return arguments


@pytest.mark.parametrize("name", VALUES)
@given(data=st.data())
def test_a_value_comes_through(name: str, data: st.DataObject) -> None:
    value = data.draw(VALUES[name][1])
    got = taker_of(name).call(written(value))
    assert (type(got), got) == (type(value), value)


@pytest.mark.parametrize("name", VALUES)
@given(data=st.data())
def test_the_json_of_a_value_is_in_the_schema(name: str, data: st.DataObject) -> None:
    validator(name).validate(written(data.draw(VALUES[name][1])))


@given(
    st.dictionaries(
        texts,
        st.recursive(
            st.none() | st.booleans() | numbers | texts,
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
        ),
    )
)
def test_what_is_written_in_python_is_taken_as_its_json(value: dict[str, Any]) -> None:
    assert taker(dict[str, Any]).call({"value": value}) == value
