"""The quick check of arguments never lets pass what the schema library refuses."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from jsonschema.exceptions import UnknownType

from rath.session.tooling import is_surely_valid

NAMES = st.sampled_from(["a", "b", "c"])
TYPES = ["string", "integer", "number", "boolean", "array", "object", "null", "text"]

values = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from([0.0, 1.0, 1.5]) | NAMES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)


def schemas_of(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Schemas, some of whose keywords the quick check does not know."""
    return st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(TYPES) | st.lists(st.sampled_from(TYPES), max_size=2),
            "properties": st.dictionaries(NAMES, inner, max_size=3),
            "required": st.lists(NAMES, max_size=2, unique=True),
            "additionalProperties": inner,
            "items": inner,
            "enum": st.lists(values, max_size=3),
            "anyOf": st.lists(inner, min_size=1, max_size=2),
            "not": inner,
            "minimum": st.integers(-1, 1) | st.just(0.5),
            "maximum": st.integers(-1, 1),
            "title": NAMES,
        },
    )


schemas = st.recursive(st.booleans() | schemas_of(st.booleans()), schemas_of, max_leaves=6)


@given(schema=schemas, value=values)
def test_what_the_quick_check_lets_pass_fits_by_the_library_too(schema: Any, value: Any) -> None:
    if is_surely_valid(schema, value):
        try:
            validator: Any = Draft202012Validator(schema)
            assert validator.is_valid(value)
        except UnknownType:
            pytest.fail("a type that JSON Schema does not know was let pass")


PLAIN = {
    "type": "object",
    "properties": {
        "path": {"type": "string", "description": "Where."},
        "n": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
        "tags": {"type": "array", "items": {"enum": ["x", "y"]}},
    },
    "required": ["path"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("arguments", "is_let_pass"),
    [
        pytest.param({"path": "a"}, True, id="fits"),
        pytest.param({"path": "a", "n": 3, "tags": ["x"]}, True, id="all-of-it"),
        pytest.param({"path": "a", "n": True}, False, id="true-is-no-integer"),
        pytest.param({"path": "a", "n": 3.0}, False, id="left-to-the-library"),
        pytest.param({"path": "a", "other": 1}, False, id="one-too-many"),
        pytest.param({"n": 3}, False, id="one-missing"),
        pytest.param({"path": "a", "tags": ["z"]}, False, id="not-listed"),
    ],
)
def test_the_schemas_of_most_tools_are_checked_quickly(
    arguments: dict[str, object], is_let_pass: bool
) -> None:
    assert is_surely_valid(PLAIN, arguments) is is_let_pass


OTHERS: dict[str, dict[str, Any]] = {
    "another-dialect": {"$schema": "http://json-schema.org/draft-04/schema#"},
    "broken": {"properties": []},
    "broken-type": {"type": ["integer", {}]},
    "broken-name": {"required": [[]]},
}


@pytest.mark.parametrize("schema", OTHERS.values(), ids=OTHERS.keys())
def test_other_schemas_are_left_to_the_library(schema: dict[str, object]) -> None:
    assert not is_surely_valid(schema, {})


PROGRAM = """
import sys
from rath.flow import Agent
from rath.session import Session
from rath.testing import ScriptedClient, tool_call

def call(*more):
    return tool_call("run_shell_command", {"cmd": "true"}, *more)

client = ScriptedClient([call(call()), call(), "done"])
session = Agent("x", client.provider)(Session.from_user_message("go").to("local"))
assert session.text() == "done"
assert all(run.status == "done" for run in session.record if hasattr(run, "call_id"))
print([name for name in sys.modules if name.startswith(("jsonschema", "referencing"))])
"""


def test_calls_that_fit_plain_schemas_load_no_schema_library() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]", done.stdout
