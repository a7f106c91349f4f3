"""The words by which a model learns what is wrong with its arguments."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from typing import Annotated, Any, Literal, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import AfterValidator, BaseModel, Field

import rath
from rath.session import Session
from rath.session.tooling import BadArguments
from tests.flow.tool.function.kinds import Shelf

SESSION = Session.from_user_message("go")


class Item(BaseModel):
    name: str
    count: Annotated[int, Field(ge=1)]


class Strict(BaseModel, extra="forbid"):
    n: int


class Pair(NamedTuple):
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


def order(items: list[Item], day: date, how: Literal["fast", "slow"] = "slow") -> None: ...
def union(value: int | list[str] | Strict) -> None: ...
def checked(
    a: Annotated[int, AfterValidator(even)], b: Annotated[int, AfterValidator(odd)]
) -> None: ...
def keyed(counts: dict[str, int], pair: Pair | None = None) -> None: ...


def shelved(where: Shelf) -> None: ...


GOOD: dict[str, Any] = {"items": [], "day": "2026-01-02"}
SAID: list[tuple[Callable[..., Any], dict[str, Any], str]] = [
    (order, {}, "items: is required and missing; day: is required and missing"),
    (order, {**GOOD, "when": 1}, "when: is not known; there are: items, day, how"),
    (order, {**GOOD, "how": "now"}, "how: Input should be 'fast' or 'slow', not 'now'"),
    (order, {**GOOD, "items": [{"name": "a"}]}, "items[0].count: is required and missing"),
    (
        order,
        {**GOOD, "items": [{"name": "a", "count": 1}, {"name": "a", "count": 0}]},
        "items[1].count: Input should be greater than or equal to 1, not 0",
    ),
    (order, {**GOOD, "items": "tea"}, "items: Input should be a valid array, not 'tea'"),
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
def test_a_fault_is_told_by_its_place(
    function: Callable[..., Any], given: dict[str, Any], said: str
) -> None:
    text = str(fault(function, given))
    assert text == f"the arguments for tool {function.__name__!r} do not fit: {said}"


def test_what_the_model_wrote_is_shown() -> None:
    assert fault(order, {"day": "ä"}).detail == '{"day":"ä"}'


def test_long_values_are_cut() -> None:
    error = fault(order, {**GOOD, "day": "x" * 10_000})
    assert len(str(error)) < 300
    assert len(error.detail or "") == 2000


def test_many_faults_are_counted() -> None:
    error = fault(order, {**GOOD, "items": [{}] * 20})
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
    def take(day: date, item: Item, raw: bytes) -> Any:
        return [day, item.count, raw]

    given = {"day": date(2026, 1, 2), "item": Item(name="a", count=1), "raw": b"\xff"}
    assert take(SESSION, given) == ["2026-01-02", 1, "/w=="]
