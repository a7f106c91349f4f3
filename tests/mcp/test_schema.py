"""What is checked of a server's schema: all that is sure to end, and nothing that is not so."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from rath.mcp.schema import MAX_DEPTH, SchemaCheck, sound_schema

PATTERN = {"type": "string", "pattern": "^a"}


def nested(keyword: str, depth: int) -> dict[str, Any]:
    """A small schema that asks for 2 ** depth steps: each level refers to the next one twice."""
    defs: dict[str, Any] = {"d0": {"type": "integer"}}
    for level in range(1, depth):
        below = {"$ref": f"#/$defs/d{level - 1}"}
        defs[f"d{level}"] = {keyword: [below, below]}
    return {"$defs": defs, "properties": {"a": {"$ref": f"#/$defs/d{depth - 1}"}}}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("value", [1, "x"], ids=["fits", "does not"])
@pytest.mark.parametrize("keyword", ["anyOf", "allOf", "oneOf"])
def test_a_schema_that_asks_for_too_many_steps_is_left_to_the_server(
    keyword: str, value: object
) -> None:
    begun = time.process_time()
    found = SchemaCheck(nested(keyword, 60)).problems({"a": value})
    assert set(found) <= {"$.a: 'x' is not of type 'integer'"}  # which is so, where it is found
    assert time.process_time() - begun < 10


@pytest.mark.parametrize(
    ("schema", "arguments"),
    [
        ({"properties": {"a": {"anyOf": [{"enum": ["y" * 90]}] * 200}}}, {"a": "x" * 900_000}),
        ({"properties": {"a": {"uniqueItems": True}}}, {"a": [{"n": n} for n in range(3000)]}),
        ({"anyOf": [{"type": "integer"}] * 5000}, {"a": "x" * 900_000}),
    ],
    ids=["long messages", "pairs", "many branches"],
)
@pytest.mark.timeout(20)
def test_what_costs_much_for_long_values_is_left_to_the_server(
    schema: dict[str, Any], arguments: dict[str, Any]
) -> None:
    assert SchemaCheck(schema).problems(arguments) == []


def test_items_that_shall_be_unique_are_compared() -> None:
    check = SchemaCheck({"properties": {"a": {"uniqueItems": True}}})
    assert check.problems({"a": [1, 2]}) == []
    assert check.problems({"a": [1, 1]}) == ["$.a: [1, 1] has non-unique elements"]


def test_what_was_found_before_it_became_too_much_is_reported() -> None:
    schema = {"required": ["b"], **nested("anyOf", 60)}
    assert SchemaCheck(schema).problems({"a": "x"}) == ["$: 'b' is a required property"]


def test_an_ordinary_schema_is_checked_complete() -> None:
    schema: dict[str, Any] = {
        "$defs": {"day": {"enum": ["mon", "tue"]}},
        "properties": {"day": {"$ref": "#/$defs/day"}, "n": {"not": {"const": 3}}},
        "additionalProperties": False,
    }
    assert sound_schema(schema) == schema
    found = SchemaCheck(schema).problems({"day": "wed", "n": 3, "more": 1})
    assert [problem.partition(":")[0] for problem in found] == ["$", "$.day", "$.n"]


def test_five_problems_are_reported_and_each_is_short() -> None:
    schema = {"properties": {f"p{n}": {"const": "x" * 2000} for n in range(9)}}
    found = SchemaCheck(schema).problems({f"p{n}": "y" for n in range(9)})
    assert len(found) == 5
    assert max(map(len, found)) <= 300


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"not": PATTERN}}},
        {"properties": {"a": {"oneOf": [PATTERN, {"type": "string", "pattern": "^b"}]}}},
        {"properties": {"a": {"if": PATTERN, "then": {"const": "a"}}}},
        {"properties": {"a": {"not": {"$ref": "#/$defs/p"}}}, "$defs": {"p": PATTERN}},
        {"properties": {"a": {"not": {"not": {"not": PATTERN}}}}},
        {"properties": {"a": {"not": {"$ref": "http://127.0.0.1:9/x"}}}},
        {"properties": {"a": {"not": {"$id": "x", "type": "string"}}}},
        {"patternProperties": {"^a": {}}, "additionalProperties": False},
        {"dependencies": {"pattern": ["a"]}, "additionalProperties": True},
        {"$schema": "http://json-schema.org/draft-07/schema#",
         "properties": {"a": {"$ref": "file:///etc/passwd", "type": "integer"}}},
        {"$schema": "http://json-schema.org/draft-03/schema#", "disallow": ["object"]},
    ],
)  # fmt: skip
def test_what_is_left_out_refuses_nothing_in_its_place(schema: dict[str, Any]) -> None:
    assert SchemaCheck(schema).problems({"a": "beta"}) == []


def test_of_alternatives_with_patterns_the_rest_is_checked() -> None:
    schema = {"properties": {"a": {"oneOf": [PATTERN, {"type": "null"}]}}}
    assert SchemaCheck(schema).problems({"a": 3}) != []
    assert SchemaCheck(schema).problems({"a": None}) == []


KEYWORDS = st.sampled_from(["allOf", "anyOf", "oneOf"])
LEAVES = st.sampled_from(
    [{}, True, False, {"type": "string"}, {"type": "integer"}, {"const": "ab"}, {"pattern": "^a"},
     {"pattern": "b$"}, {"$ref": "#/$defs/p"}, {"$ref": "#/$defs/q"}, {"minLength": 2}]
)  # fmt: skip
CLOSED = {"additionalProperties": False}
SCHEMAS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.tuples(KEYWORDS, st.lists(inner, min_size=1, max_size=3)).map(lambda it: dict([it])),
        inner.map(lambda each: {"not": each}),
        inner.map(lambda each: {"contains": each, "maxContains": 1}),
        inner.map(lambda each: {"prefixItems": [each], "items": {"pattern": "^a"}}),
        st.tuples(inner, inner).map(lambda it: {"if": it[0], "then": it[1], "else": False}),
        st.tuples(inner, inner).map(lambda it: CLOSED | {"properties": {"a": it[0]},
                                                         "patternProperties": {"^b": it[1]}}),
    ),
    max_leaves=8,
)  # fmt: skip
VALUES = st.recursive(
    st.sampled_from(["a", "ab", "ba", "b", 1, None]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=2)
    ),
    max_leaves=4,
)


@given(SCHEMAS, SCHEMAS, VALUES)
def test_what_the_complete_schema_accepts_is_accepted(inner: Any, other: Any, value: Any) -> None:
    defs = {"p": {"pattern": "^a"}, "q": other if "$ref" not in json.dumps(other) else {}}
    schema: dict[str, Any] = {"$defs": defs, "properties": {"v": inner}}
    whole: Any = Draft202012Validator(schema)
    if whole.is_valid({"v": value}):
        assert SchemaCheck(schema).problems({"v": value}) == []


@given(SCHEMAS.filter(lambda it: "attern" not in json.dumps(it) and "$ref" not in json.dumps(it)))
def test_a_schema_without_dangers_stays_as_it_is(inner: Any) -> None:
    assert sound_schema({"properties": {"v": inner}}) == {"properties": {"v": inner}}


def test_patterns_go_and_names_and_data_stay() -> None:
    schema: dict[str, Any] = {
        "properties": {"pattern": {"type": "string", "pattern": "x"}},
        "allOf": [{"pattern": "x", "minLength": 1}],
        "const": {"pattern": "x"},
        "patternProperties": {"x": {}},
        "additionalProperties": False,
    }
    assert sound_schema(schema) == {
        "properties": {"pattern": {"type": "string"}},
        "allOf": [{"minLength": 1}],
        "const": {"pattern": "x"},
    }


def test_a_schema_of_any_depth_is_read() -> None:
    schema: dict[str, Any] = {}
    for _ in range(MAX_DEPTH * 50):
        schema = {"items": schema}
    assert str(sound_schema(schema)).count("items") == MAX_DEPTH
