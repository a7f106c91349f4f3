"""Sandbox specs as JSON."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath.backend import BackendSandboxSpec, EffectPolicy, SandboxLimits
from rath.backend.persistence.spec_json import spec_from_jsonable, spec_to_jsonable

FIVE = ["image", "entrypoint", "env", "timeout_seconds", "working_dir"]
texts = st.none() | st.text()
sizes = st.none() | st.integers(min_value=0)
limits = st.builds(SandboxLimits, memory_bytes=sizes, processes=sizes)
policies = st.builds(
    EffectPolicy,
    is_on=st.booleans(),
    ignore=st.frozensets(st.text(), max_size=3),
    max_files=st.integers(min_value=0),
    keep_contents=st.booleans(),
)
specs = st.builds(
    BackendSandboxSpec,
    image=texts,
    entrypoint=st.none() | st.lists(st.text(), max_size=3).map(tuple),
    env=st.none() | st.dictionaries(st.text(), st.text(), min_size=1, max_size=3),
    timeout=st.none() | st.integers(0, 10**9).map(lambda ms: timedelta(milliseconds=ms)),
    working_dir=texts,
    network=st.booleans(),
    limits=st.none() | limits,
    effects=st.none() | policies,
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(st.none() | specs)
def test_spec_comes_back_through_json_without_values_of_variables(
    spec: BackendSandboxSpec | None,
) -> None:
    raw = json.loads(json.dumps(spec_to_jsonable(spec)))
    assert spec_from_jsonable(raw) == (None if spec is None else replace(spec, env=None))


def test_values_of_variables_are_never_written() -> None:
    raw = spec_to_jsonable(BackendSandboxSpec(env={"TOKEN": "canary"}))
    assert raw is not None
    assert raw["env"] == {"TOKEN": None}


def test_defaults_have_the_five_documented_keys() -> None:
    assert list(spec_to_jsonable(BackendSandboxSpec()) or ()) == FIVE


def test_what_was_set_has_a_key() -> None:
    spec = BackendSandboxSpec(network=True, limits=SandboxLimits(1, 2), effects=EffectPolicy())
    assert list(spec_to_jsonable(spec) or ()) == [*FIVE, "network", "limits", "effects"]


def test_a_file_of_version_1_is_read() -> None:
    raw = {
        "image": "python:3", "entrypoint": ["sh", "-c"], "env": {"A": "b"},
        "timeout_seconds": 90.5, "working_dir": None, "of_another_version": [1],
    }  # fmt: skip
    assert spec_from_jsonable(raw) == BackendSandboxSpec(
        "python:3", ("sh", "-c"), {"A": "b"}, timedelta(seconds=90.5)
    )


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param({"entrypoint": 1}, id="entrypoint"),
        pytest.param({"env": [1]}, id="variables"),
        pytest.param({"timeout_seconds": "1"}, id="timeout"),
        pytest.param({"timeout_seconds": 1e300}, id="long timeout"),
        pytest.param({"limits": 1}, id="limits"),
    ],
)
def test_a_value_of_the_wrong_type_is_reported(raw: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="malformed sandbox spec"):
        spec_from_jsonable(raw)


KEYS = st.sampled_from([*FIVE, "network", "limits", "effects"])


@given(st.dictionaries(KEYS, json_values))
def test_any_json_is_a_spec_or_a_value_error(raw: dict[str, Any]) -> None:
    with contextlib.suppress(ValueError):
        assert isinstance(spec_from_jsonable(raw), BackendSandboxSpec)
