"""Kinds of parameters: schemas, values that fit or not, faults in words, and round trips."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, cast
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import AfterValidator, BaseModel, Field
from pydantic_core import to_json

import rath
from rath.session import Session
from rath.session.tooling import BadArguments
from tests.flow.tool.function.kinds import (
    KINDS,
    Address,
    Colour,
    Item,
    Level,
    Line,
    Node,
    Order,
    Pair,
    Point,
    Shelf,
)
from tests.flow.tool.function.taking import Taker, taker


def cases(field: str) -> list[Any]:
    """The examples of all kinds in one field: a name, what a model writes, and perhaps a value."""
    found: list[Any] = []
    for name, kind in KINDS.items():
        each: Any = getattr(kind, field)
        rows: list[Any] = list(each.values() if field == "good" else each)
        for at, row in enumerate(rows):
            values = row if field in ("good", "lax") else (row,)
            found.append(pytest.param(name, *values, id=f"{name}-{at}"))
    return found


@functools.cache
def taker_of(name: str) -> Taker:
    return taker(KINDS[name].hint)


def check(name: str, given: object) -> None:
    taker_of(name).check({"value": given})


def call(name: str, given: object) -> object:
    return taker_of(name).call({"value": given})


def schema_of(name: str) -> dict[str, Any]:
    return dict(taker_of(name).tool.parameters)


@functools.cache
def validator(name: str) -> Any:
    return Draft202012Validator(schema_of(name))


def test_there_are_more_than_forty_kinds() -> None:
    assert len(KINDS) > 40


@pytest.mark.parametrize("kind", KINDS)
def test_a_schema_is_one(kind: str) -> None:
    schema = schema_of(kind)
    Draft202012Validator.check_schema(schema)
    assert json.loads(json.dumps(schema)) == schema


@pytest.mark.parametrize("kind", KINDS)
def test_a_schema_is_a_plain_object_at_the_top(kind: str) -> None:
    schema = schema_of(kind)
    assert schema["type"] == "object"
    assert [*schema["properties"]] == ["value"]
    assert schema["additionalProperties"] is False
    assert schema.keys() <= {"type", "properties", "required", "additionalProperties", "$defs"}


def parts(schema: object) -> list[dict[str, Any]]:
    """All mappings in a schema."""
    if isinstance(schema, Mapping):
        inner = list(cast("Mapping[str, Any]", schema).values())
        return [cast("dict[str, Any]", schema), *parts(inner)]
    if isinstance(schema, list):
        return list(chain.from_iterable(map(parts, cast("list[object]", schema))))
    return []


@pytest.mark.parametrize("kind", KINDS)
def test_every_reference_of_a_schema_is_to_a_definition_at_its_top(kind: str) -> None:
    schema = schema_of(kind)
    known = {f"#/$defs/{name}" for name in schema.get("$defs", {})}
    assert {part["$ref"] for part in parts(schema) if "$ref" in part} <= known
    assert not any("$defs" in part for part in parts(list(schema.values())))


@pytest.mark.parametrize("kind", KINDS)
def test_every_array_of_a_schema_says_its_items(kind: str) -> None:
    arrays = [part for part in parts(schema_of(kind)) if "array" in part.values()]
    assert all("items" in part for part in arrays)


@pytest.mark.parametrize(("kind", "given", "value"), [*cases("good"), *cases("lax")])
def test_what_fits_or_is_meant_is_given_to_the_function(
    kind: str, given: object, value: object
) -> None:
    got = call(kind, given)
    assert (type(got), got) == (type(value), value)


@pytest.mark.parametrize(("kind", "given", "value"), cases("good"))
def test_what_fits_is_in_the_schema(kind: str, given: object, value: object) -> None:
    validator(kind).validate({"value": given})


@pytest.mark.parametrize(("kind", "given"), cases("bad"))
def test_what_does_not_fit_is_not_in_the_schema(kind: str, given: object) -> None:
    assert not validator(kind).is_valid({"value": given})


@pytest.mark.parametrize(("kind", "given"), [*cases("bad"), *cases("unfit")])
def test_what_does_not_fit_is_refused(kind: str, given: object) -> None:
    with pytest.raises(BadArguments, match="do not fit: value"):
        check(kind, given)


SESSION = Session.from_user_message("go")


class Article(BaseModel):
    name: str
    count: Annotated[int, Field(ge=1)]


class Strict(BaseModel, extra="forbid"):
    n: int


class Couple(NamedTuple):
    left: int
    right: int


def even(n: int) -> int:
    if n % 2:
        raise ValueError("expected an even number")
    return n


def odd(n: int) -> int:
    if n % 2 == 0:
        raise AssertionError("expected an odd number")
    return n


def order(items: list[Article], day: date, how: Literal["fast", "slow"] = "slow") -> None: ...
def union(value: int | list[str] | Strict) -> None: ...
def checked(
    a: Annotated[int, AfterValidator(even)], b: Annotated[int, AfterValidator(odd)]
) -> None: ...
def keyed(counts: dict[str, int], pair: Couple | None = None) -> None: ...


def shelved(where: Shelf) -> None: ...


GOOD_ORDER: dict[str, Any] = {"items": [], "day": "2026-01-02"}
SAID: list[tuple[Callable[..., Any], dict[str, Any], str]] = [
    (order, {}, "items: is required and missing; day: is required and missing"),
    (order, {**GOOD_ORDER, "when": 1}, "when: is not known; there are: items, day, how"),
    (order, {**GOOD_ORDER, "how": "now"}, "how: Input should be 'fast' or 'slow', not 'now'"),
    (order, {**GOOD_ORDER, "items": [{"name": "a"}]}, "items[0].count: is required and missing"),
    (
        order,
        {**GOOD_ORDER, "items": [{"name": "a", "count": 1}, {"name": "a", "count": 0}]},
        "items[1].count: Input should be greater than or equal to 1, not 0",
    ),
    (order, {**GOOD_ORDER, "items": "tea"}, "items: Input should be a valid array, not 'tea'"),
    (
        union,
        {"value": None},
        "value (as int): Input should be a valid integer, not None; "
        "value (as list[str]): Input should be a valid array, not None; "
        "value (as Strict): Input should be an object, not None",
    ),
    (
        union,
        {"value": {"n": 1, "m": 2}},
        "value (as int): Input should be a valid integer, not {'n': 1, 'm': 2}; "
        "value (as list[str]): Input should be a valid array, not {'n': 1, 'm': 2}; "
        "value.m (as Strict): is not known",
    ),
    (
        checked,
        {"a": 1, "b": 2},
        "a: expected an even number, not 1; b: expected an odd number, not 2",
    ),
    (
        keyed,
        {"counts": {"a.b": "x"}},
        "counts.a.b: Input should be a valid integer, unable to parse string as an integer, "
        "not 'x'",
    ),
    (keyed, {"counts": {}, "pair": {"left": 1}}, "pair.right: is required and missing"),
    (shelved, {"where": [1]}, "where[1]: is required and missing"),
]


def fault(function: Callable[..., Any], given: dict[str, Any]) -> BadArguments:
    with pytest.raises(BadArguments) as caught:
        rath.tool(function)(SESSION, given)
    return caught.value


@pytest.mark.parametrize(
    ("function", "given", "said"), SAID, ids=lambda it: getattr(it, "__name__", str(it))[:40]
)
def test_a_fault_is_reported_by_its_place(
    function: Callable[..., Any], given: dict[str, Any], said: str
) -> None:
    text = str(fault(function, given))
    assert text == f"the arguments for tool {function.__name__!r} do not fit: {said}"


def test_what_the_model_wrote_is_displayed() -> None:
    assert fault(order, {"day": "ä"}).detail == '{"day":"ä"}'


def test_long_values_are_cut() -> None:
    error = fault(order, {**GOOD_ORDER, "day": "x" * 10_000})
    assert len(str(error)) < 300
    assert len(error.detail or "") == 2000


def test_many_faults_are_counted() -> None:
    error = fault(order, {**GOOD_ORDER, "items": [{}] * 20})
    assert str(error).endswith("; and 30 more")


@given(st.dictionaries(st.text(), st.none() | st.text(st.characters(codec=None)), max_size=3))
def test_whatever_is_written_gives_one_plain_error(arguments: dict[str, Any]) -> None:
    text = str(fault(order, arguments))
    assert "http" not in text
    assert "\n" not in text
    text.encode()


def test_text_that_is_no_unicode_is_refused() -> None:
    error = fault(keyed, {"counts": {"\ud800": 1}})
    assert "cannot be written as JSON" in str(error)
    (error.detail or "").encode()


def test_values_of_python_are_taken_from_a_caller_in_python() -> None:
    @rath.tool
    def take(day: date, item: Article, raw: bytes) -> Any:
        return [day, item.count, raw]

    given = {"day": date(2026, 1, 2), "item": Article(name="a", count=1), "raw": b"\xff"}
    assert take(SESSION, given) == ["2026-01-02", 1, "/w=="]


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
def taker_of_type(name: str) -> Taker:
    return taker(VALUES[name][0])


@functools.cache
def validator_of_type(name: str) -> Any:
    return Draft202012Validator(dict(taker_of_type(name).tool.parameters))


def written(value: object) -> dict[str, Any]:
    """Return what a model would write for the value."""
    arguments: dict[str, Any] = json.loads(to_json({"value": value}, bytes_mode="base64"))
    return arguments


@pytest.mark.parametrize("name", VALUES)
@given(data=st.data())
def test_a_value_comes_through(name: str, data: st.DataObject) -> None:
    value = data.draw(VALUES[name][1])
    got = taker_of_type(name).call(written(value))
    assert (type(got), got) == (type(value), value)


@pytest.mark.parametrize("name", VALUES)
@given(data=st.data())
def test_the_json_of_a_value_is_in_the_schema(name: str, data: st.DataObject) -> None:
    validator_of_type(name).validate(written(data.draw(VALUES[name][1])))


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
