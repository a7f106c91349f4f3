"""Read-only dicts and lists: like plain ones to read, closed to every write."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath.session import ChunkRow, Session, assistant_turn_chunk
from rath.session.chunk import FrozenDict, FrozenList, frozen_mapping
from tests.support.sessions import parts

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)
payloads = st.dictionaries(st.text(max_size=3), values, max_size=3)

WRITES_TO_A_DICT: list[Callable[[Any], object]] = [
    lambda d: d.__setitem__("a", 2),
    lambda d: d.__delitem__("a"),
    lambda d: d.__ior__({"b": 1}),
    lambda d: d.clear(),
    lambda d: d.pop("a"),
    lambda d: d.popitem(),
    lambda d: d.setdefault("b", 1),
    lambda d: d.update(b=1),
]
WRITES_TO_A_LIST: list[Callable[[Any], object]] = [
    lambda v: v.__setitem__(0, 2),
    lambda v: v.__delitem__(0),
    lambda v: v.__iadd__([1]),
    lambda v: v.__imul__(2),
    lambda v: v.append(1),
    lambda v: v.extend([1]),
    lambda v: v.insert(0, 1),
    lambda v: v.pop(),
    lambda v: v.remove(1),
    lambda v: v.clear(),
    lambda v: v.sort(),
    lambda v: v.reverse(),
]


@given(payloads)
def test_reads_like_the_plain_one(plain: dict[str, Any]) -> None:
    frozen = frozen_mapping(plain)
    assert frozen == plain
    assert json.dumps(frozen) == json.dumps(plain)
    assert pickle.loads(pickle.dumps(frozen)) == plain


@given(payloads)
def test_a_deep_copy_is_plain_all_the_way_down(plain: dict[str, Any]) -> None:
    again = copy.deepcopy(frozen_mapping(plain))
    assert again == plain
    assert _types(again) <= {dict, list, str, int, bool, type(None)}


@pytest.mark.parametrize("write", WRITES_TO_A_DICT)
def test_no_write_to_a_dict_is_let_through(write: Callable[[Any], object]) -> None:
    frozen = FrozenDict(a=1)
    with pytest.raises(TypeError, match="read-only"):
        write(frozen)
    assert frozen == {"a": 1}


@pytest.mark.parametrize("write", WRITES_TO_A_LIST)
def test_no_write_to_a_list_is_let_through(write: Callable[[Any], object]) -> None:
    frozen = FrozenList([1])
    with pytest.raises(TypeError, match="read-only"):
        write(frozen)
    assert frozen == [1]


def test_copies_can_be_written() -> None:
    frozen = frozen_mapping({"a": [1]})
    assert type(frozen.copy()) is type(copy.copy(frozen)) is type(dict(frozen)) is dict
    assert type(frozen["a"].copy()) is type(copy.copy(frozen["a"])) is list


def test_what_is_frozen_is_not_copied_again() -> None:
    frozen = frozen_mapping({"a": [1], "b": (1, [2])})
    assert frozen_mapping(frozen) is frozen
    assert frozen_mapping(dict(frozen))["a"] is frozen["a"]
    assert type(frozen["b"][1]) is FrozenList


@given(parts)
def test_a_call_cannot_be_changed_through_a_fork(part: Any) -> None:
    row = assistant_turn_chunk(tool_calls=(part,))
    session = Session.from_user_message("go")
    before = copy.deepcopy(row.payload)
    table = session.chunk_table.extend(row)
    with pytest.raises(TypeError, match="read-only"):
        table[1].payload["tool_calls"][0]["function"]["name"] = "other"
    assert row.payload == before


def test_a_payload_is_a_dict_that_json_can_write() -> None:
    row = ChunkRow("user", {"content": "hi", "extra": {"a": [1]}})
    assert isinstance(row.payload, dict)
    assert json.loads(json.dumps(row.payload)) == row.payload


def _types(value: Any) -> set[type[Any]]:
    inner: list[Any] = []
    if isinstance(value, dict):
        inner = [*cast("dict[str, object]", value).values()]
    elif isinstance(value, list):
        inner = [*cast("list[object]", value)]
    own: type[Any] = type(cast("object", value))
    return {own}.union(*[_types(item) for item in inner])
