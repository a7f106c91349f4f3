"""The strict form of a schema takes what the type takes, or there is none."""

from __future__ import annotations

import enum
import json
from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import BaseModel, Field, ValidationError, create_model

from rath.session.output_schema import output_spec, strict_schema
from tests.support.api import output_form


class Colour(enum.Enum):
    RED = "red"
    TWO = 2


class Leaf(BaseModel):
    """A leaf."""

    size: int


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    tricks: list[str]


class Tree(BaseModel):
    leaf: Leaf = Field(description="The first one.")
    branches: list[Tree] = Field(default=[], description="More of them.")


Kind = tuple[Any, st.SearchStrategy[Any]]
"""A type, and values of it."""

floats = st.floats(allow_nan=False, allow_infinity=False)
leaves = st.builds(Leaf, size=st.integers())
PLAIN: list[Kind] = [
    (int, st.integers()),
    (str, st.text(max_size=5)),
    (bool, st.booleans()),
    (float, floats),
    (type(None), st.none()),
    (Literal["a", "b"], st.sampled_from(["a", "b"])),
    (Literal["only"], st.just("only")),
    (Literal[1, "one", True], st.sampled_from([1, "one", True])),
    (Colour, st.sampled_from(Colour)),
    (Leaf, leaves),
    (Tree, st.builds(Tree, leaf=leaves, branches=st.just([]))),
    (
        Annotated[Cat | Dog, Field(discriminator="kind")],
        st.builds(Cat, kind=st.just("cat"), lives=st.integers())
        | st.builds(Dog, kind=st.just("dog"), tricks=st.just(["sit"])),
    ),
]
LIMITED: list[Kind] = [
    (Annotated[int, Field(ge=0, lt=10)], st.integers(0, 9)),
    (Annotated[str, Field(min_length=1, pattern="^x")], st.just("xy")),
    (Annotated[list[int], Field(max_length=2)], st.lists(st.integers(), max_size=2)),
    (set[int], st.sets(st.integers(), max_size=3)),
    (date, st.dates()),
    (datetime, st.datetimes()),
    (UUID, st.uuids()),
    (Decimal, st.decimals(allow_nan=False, allow_infinity=False, places=2, max_value=100)),
]
FREE: list[Kind] = [
    (dict[str, int], st.just({"a": 1})),
    (tuple[int, str], st.tuples(st.integers(), st.text(max_size=3))),
    (list[Any], st.just([1, "x"])),
    (Any, st.just({"free": 1})),
]


def containers(kinds: st.SearchStrategy[Kind]) -> st.SearchStrategy[Kind]:
    return kinds.map(list_of) | kinds.map(optional)


def list_of(kind: Kind) -> Kind:
    item: Any = kind[0]
    return list[item], st.lists(kind[1], max_size=2)


def optional(kind: Kind) -> Kind:
    return kind[0] | None, kind[1] | st.none()


plain_kinds = st.recursive(st.sampled_from(PLAIN), containers, max_leaves=3)
strict_kinds = plain_kinds | st.sampled_from(LIMITED)


@st.composite
def models(draw: st.DrawFn, kinds: st.SearchStrategy[Kind]) -> tuple[type[BaseModel], BaseModel]:
    """Draw a model and an instance; some fields have a default, a description, or both."""
    fields: dict[str, Any] = {}
    values: dict[str, Any] = {}
    for name in draw(st.lists(st.sampled_from(["a", "b", "c", "d"]), unique=True)):
        kind, instances = draw(kinds)
        info: dict[str, Any] = {}
        if draw(st.booleans()):
            info["default"] = draw(instances)
        if draw(st.booleans()):
            info["description"] = "A field."
        fields[name] = (kind, Field(**info))
        if "default" not in info or draw(st.booleans()):
            values[name] = draw(instances)
    model = create_model("Drawn", **fields)
    return model, model(**values)


def strict_of(model: type[BaseModel]) -> dict[str, Any]:
    strict = strict_schema(output_form(model).schema)
    assert strict is not None
    Draft202012Validator.check_schema(strict)
    return strict


def is_valid(schema: dict[str, Any], value: Any) -> bool:
    validator: Any = Draft202012Validator(schema)
    return bool(validator.is_valid(value))


@given(models(strict_kinds))
def test_what_a_model_holds_fits_its_strict_schema(
    drawn: tuple[type[BaseModel], BaseModel],
) -> None:
    model, instance = drawn
    assert is_valid(strict_of(model), json.loads(instance.model_dump_json()))


@given(models(plain_kinds), st.data())
def test_what_fits_the_strict_schema_makes_the_model(
    drawn: tuple[type[BaseModel], BaseModel], data: st.DataObject
) -> None:
    model, instance = drawn
    strict, value = strict_of(model), json.loads(instance.model_dump_json())
    for name in value:
        if data.draw(st.booleans()):
            _, others = data.draw(plain_kinds)
            other = create_model("Other", x=(Any, ...))(x=data.draw(others))
            value[name] = json.loads(other.model_dump_json())["x"]
    fits = is_valid(strict, value)
    try:
        model.model_validate_json(json.dumps(value))
    except ValidationError:
        assert not fits


@given(models(strict_kinds), st.data())
def test_a_strict_schema_wants_all_properties_and_no_others(
    drawn: tuple[type[BaseModel], BaseModel], data: st.DataObject
) -> None:
    model, instance = drawn
    strict, value = strict_of(model), json.loads(instance.model_dump_json())
    assert not is_valid(strict, {**value, "unknown": 1})
    if value:
        left_out = data.draw(st.sampled_from(sorted(value)))
        assert not is_valid(strict, {name: value[name] for name in value if name != left_out})


@given(models(strict_kinds), st.sampled_from(FREE))
def test_a_model_with_a_free_part_has_no_strict_schema(
    drawn: tuple[type[BaseModel], BaseModel], free: Kind
) -> None:
    model = create_model("Free", __base__=drawn[0], free=(list_of(free)[0], ...))
    assert strict_schema(model.model_json_schema()) is None


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"x": True}},
        {"type": "object", "properties": {"x": {"not": {"type": "null"}}}},
        {"type": "object", "properties": {"x": {"enum": [[1]]}}},
        {"type": "object", "properties": {"x": {"type": ["object", "null"]}}},
        {"type": "object", "patternProperties": {"x": {"type": "null"}}},
    ],
    ids=["anything", "a negation", "a choice of lists", "several types", "a pattern of names"],
)
def test_what_the_strict_form_has_no_words_for_is_not_strict(schema: dict[str, Any]) -> None:
    assert strict_schema(schema) is None


def test_limits_become_words_of_the_description() -> None:
    class Limited(BaseModel):
        size: int = Field(3, ge=0, description="How big")
        name: str = Field(max_length=5)

    properties = strict_of(Limited)["properties"]
    assert properties["size"]["description"] == "How big (default: 3, minimum: 0)"
    assert properties["name"]["description"] == "maxLength: 5"


def test_nothing_stands_next_to_a_reference() -> None:
    strict = strict_of(Tree)
    assert strict["properties"]["leaf"] == {
        "anyOf": [{"$ref": "#/$defs/Leaf"}],
        "description": "The first one.",
    }


def test_a_schema_that_cannot_be_strict_is_sent_as_it_is() -> None:
    class Table(BaseModel):
        cells: dict[str, int]

    spec = output_spec("Table", Table.model_json_schema())
    assert spec.response_format == {
        "type": "json_schema",
        "json_schema": {"name": "Table", "schema": Table.model_json_schema(), "strict": False},
    }
