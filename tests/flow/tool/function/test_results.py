"""What becomes of what a function returns."""

from __future__ import annotations

import json
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from enum import Enum, StrEnum
from pathlib import Path, PurePosixPath
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

import rath
from rath.backend.results import FileWriteResult, ToolExecutionFailure
from rath.flow.tool.function.function_tool import plain_result
from rath.llm.image import Image
from rath.session import Session
from rath.testing import tool_call
from tests.support.sessions import run

PNG = Image.from_bytes(b"\x89PNG\r\n\x1a\n" + b"0" * 20)
Old: Any = namedtuple("Old", "a b")  # pyright: ignore[reportUntypedNamedTuple]  # as in old programs


class Colour(Enum):
    RED = "red"


class Word(StrEnum):
    YES = "yes"


class Found(BaseModel):
    day: date
    named: int = Field(alias="name")


@dataclass
class Place:
    town: str
    raw: bytes


RESULTS: list[tuple[object, object]] = [
    (None, None),
    ("text", "text"),
    (True, True),
    (3, 3),
    (0.5, 0.5),
    ([1, "a", None], [1, "a", None]),
    ({"a": {"b": (1, 2)}}, {"a": {"b": [1, 2]}}),
    ({1: "a", date(2026, 1, 2): "b"}, {"1": "a", "2026-01-02": "b"}),
    (Found(day=date(2026, 1, 2), name=1), {"day": "2026-01-02", "named": 1}),
    ([Found(day=date(2026, 1, 2), name=1)], [{"day": "2026-01-02", "named": 1}]),
    (Place("Ulm", b"hi"), {"town": "Ulm", "raw": "aGk="}),
    (date(2026, 1, 2), "2026-01-02"),
    (timedelta(seconds=90), "PT1M30S"),
    (b"hi", "aGk="),
    ({"raw": [b"hi"]}, {"raw": ["aGk="]}),
    # Not in the alphabet of URLs, which `base64 -d` refuses.
    (b"\xfb\xff", "+/8="),
    ({Colour.RED: (bytearray(b"\xff"), timedelta(1))}, {"red": ["/w==", "P1D"]}),
    (Colour.RED, "red"),
    (Word.YES, "yes"),
    (UUID(int=1), str(UUID(int=1))),
    (Decimal("1.10"), "1.10"),
    (Path("a/b"), "a/b"),
    ([PurePosixPath("a/b")], ["a/b"]),
    ({3}, [3]),
    (Old(1, 2), [1, 2]),
    (OrderedDict(a=1), {"a": 1}),
    (ValueError("wrong"), "wrong"),
]


@pytest.mark.parametrize(("value", "plain"), RESULTS, ids=lambda it: repr(it)[:40])
def test_a_result_becomes_plain(value: object, plain: object) -> None:
    made = plain_result(value)
    assert (type(made), made) == (type(plain), plain)
    json.dumps(made)


@pytest.mark.parametrize(
    "value", [PNG, FileWriteResult(3), ToolExecutionFailure("gone", "It is gone.")]
)
def test_pictures_and_answers_of_sandboxes_stay_what_they_are(value: object) -> None:
    assert plain_result(value) is value


def test_pictures_stay_what_they_are_beside_other_values() -> None:
    value = {"a": [PNG, b"hi", (Place("Ulm", b""),)], 1: (PNG, "text")}
    assert plain_result(value) == {
        "a": [PNG, "aGk=", [{"town": "Ulm", "raw": ""}]],
        "1": [PNG, "text"],
    }


class Scan(BaseModel, arbitrary_types_allowed=True):
    pages: list[Image]


@dataclass
class Shot:
    title: str
    scan: Scan


def nested(n_times: int) -> list[Any]:
    return [PNG] if n_times == 1 else [nested(n_times - 1)]


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (Shot("a", Scan(pages=[PNG])), {"title": "a", "scan": {"pages": [PNG]}}),
        ({PNG}, [PNG]),
        ((PNG for _ in range(2)), [PNG, PNG]),
        (nested(30), nested(30)),
        ({Colour.RED: PNG, timedelta(1): Found(day=date(2026, 1, 2), name=1)}, {
            "red": PNG, "P1D": {"day": "2026-01-02", "named": 1},
        }),
    ],
    ids=["a dataclass with a model", "a set", "a generator", "deep", "keys"],
)  # fmt: skip
def test_pictures_stay_what_they_are_inside_of_other_values(value: object, plain: object) -> None:
    assert plain_result(value) == plain


def test_the_bytes_of_a_model_are_as_it_says_also_beside_a_picture() -> None:
    class Raw(BaseModel, ser_json_bytes="hex", arbitrary_types_allowed=True):
        raw: bytes

    assert plain_result([Raw(raw=b"\xff"), PNG]) == [
        {"raw": plain_result(Raw(raw=b"\xff"))["raw"]},
        PNG,
    ]


def test_what_cannot_be_made_plain_is_left() -> None:
    ring: list[object] = []
    ring.append(ring)
    assert plain_result(ring) is ring


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_json_stays_what_it_is(value: Any) -> None:
    assert plain_result(value) == value


def test_the_result_of_an_async_function_becomes_plain_too() -> None:
    @rath.tool
    async def look() -> Place:
        return Place("Ulm", b"hi")

    out = run([tool_call("look", {}), "ok"], look)
    assert out.chunk_table[-2].payload["content"] == '{"town": "Ulm", "raw": "aGk="}'


def test_a_result_that_must_be_awaited_is_awaited() -> None:
    async def later(n: int) -> date:
        return date(2026, 1, n)

    @rath.tool
    def look(n: int) -> Any:
        return later(n)

    out = run([tool_call("look", {"n": 2}), "ok"], look)
    assert out.chunk_table[-2].payload["content"] == '"2026-01-02"'


def test_no_result() -> None:
    @rath.tool
    def look() -> None: ...

    out = run([tool_call("look", {}), "ok"], look)
    assert out.chunk_table[-2].payload["content"] == "null"


def test_a_failure_that_is_returned_is_one() -> None:
    @rath.tool
    def look() -> ToolExecutionFailure:
        return ToolExecutionFailure("gone", "It is gone.")

    out = run([tool_call("look", {}), "ok"], look)
    assert json.loads(out.chunk_table[-2].payload["content"])["error_kind"] == "gone"


def test_a_picture_is_a_result() -> None:
    @rath.tool
    def draw(session: Session) -> list[object]:
        return ["a picture", PNG]

    assert draw(Session.from_user_message("go"), {}) == ["a picture", PNG]
