"""Every kind of parameter: its schema, what a model may give for it, and what it may not."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from itertools import chain
from typing import Any, cast

import pytest
from jsonschema import Draft202012Validator

from rath.session.tooling import BadArguments
from tests.flow.tool.function.kinds import KINDS
from tests.flow.tool.function.taking import Taker, taker

GOOD = [
    pytest.param(name, given, value, id=f"{name}-{at}")
    for name, kind in KINDS.items()
    for at, (given, value) in kind.good.items()
]
LAX = [
    pytest.param(name, given, value, id=f"{name}-{given!r}")
    for name, kind in KINDS.items()
    for given, value in kind.lax
]
BAD = [
    pytest.param(name, given, id=f"{name}-{given!r}")
    for name, kind in KINDS.items()
    for given in kind.bad
]
UNFIT = [
    pytest.param(name, given, id=f"{name}-{given!r}")
    for name, kind in KINDS.items()
    for given in kind.unfit
]


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


@pytest.mark.parametrize(("kind", "given", "value"), GOOD)
def test_what_fits_is_given_to_the_function(kind: str, given: object, value: object) -> None:
    got = call(kind, given)
    assert (type(got), got) == (type(value), value)


@pytest.mark.parametrize(("kind", "given", "value"), GOOD)
def test_what_fits_is_in_the_schema(kind: str, given: object, value: object) -> None:
    validator(kind).validate({"value": given})


@pytest.mark.parametrize(("kind", "given", "value"), LAX)
def test_what_is_meant_is_given_to_the_function(kind: str, given: object, value: object) -> None:
    got = call(kind, given)
    assert (type(got), got) == (type(value), value)


@pytest.mark.parametrize(("kind", "given"), BAD)
def test_what_does_not_fit_is_not_in_the_schema(kind: str, given: object) -> None:
    assert not validator(kind).is_valid({"value": given})


@pytest.mark.parametrize(("kind", "given"), [*BAD, *UNFIT])
def test_what_does_not_fit_is_refused(kind: str, given: object) -> None:
    with pytest.raises(BadArguments, match="do not fit: value"):
        check(kind, given)
