"""Kinds of parameters: what a model may give for each, and what it may not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from fractions import Fraction
from ipaddress import IPv4Address
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    NamedTuple,
    NewType,
    NotRequired,
    TypeVar,
)
from uuid import UUID

from annotated_types import Len
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr
from pydantic_core import core_schema
from typing_extensions import TypeAliasType, TypedDict

T = TypeVar("T")


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Unit(StrEnum):
    METRE = "m"


class Item(BaseModel):
    name: str
    count: int = Field(default=1, ge=1)


class Order(BaseModel):
    model_config = ConfigDict(extra="forbid")

    items: list[Item]
    note: str | None = None


class Node(BaseModel):
    value: int
    children: list[Node] = []


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    name: str


class Box(BaseModel, Generic[T]):
    content: T


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True)

    day: date
    n: int


@dataclass
class Point:
    x: int
    y: int = 0


@dataclass(frozen=True, slots=True)
class Line:
    start: Point
    end: Point


class Address(TypedDict):
    street: str
    nr: NotRequired[int]


class Pair(NamedTuple):
    left: int
    right: str = "r"


class File(BaseModel):
    raw: bytes


class Shelf:
    """A class that says itself how it is made of JSON: of an array, as a call is."""

    def __init__(self, row: int, place: str) -> None:
        self.where = (row, place)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Shelf) and other.where == self.where

    __hash__ = None  # type: ignore[assignment]  # nothing needs it

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> core_schema.CoreSchema:
        taken = [
            core_schema.arguments_parameter(
                "row", core_schema.int_schema(), mode="positional_only"
            ),
            core_schema.arguments_parameter(
                "place", core_schema.str_schema(), mode="positional_only"
            ),
        ]
        return core_schema.call_schema(core_schema.arguments_schema(taken), cls)


UserId = NewType("UserId", int)
Names = TypeAliasType("Names", list[str])
Json = TypeAliasType("Json", "dict[str, Json] | list[Json] | str | int | None")


def even(n: int) -> int:
    """Give back an even number."""
    if n % 2:
        raise ValueError("expected an even number")
    return n


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of hint, and JSON values for it."""

    hint: Any
    good: Mapping[str, tuple[object, object]]
    """By any name: what a model writes, and what the function gets."""

    bad: Sequence[Any]
    """What neither the schema nor the check of the tool lets through."""

    unfit: Sequence[object] = ()
    """What the check refuses and JSON Schema alone has no words for."""

    lax: Sequence[tuple[object, object]] = ()
    """What is no such JSON to the letter, and what is made of it all the same."""


def same(*values: object) -> dict[str, tuple[object, object]]:
    return {repr(value): (value, value) for value in values}


def made(given: object, value: object) -> dict[str, tuple[object, object]]:
    return {repr(given): (given, value)}


KINDS: dict[str, Kind] = {
    "str": Kind(str, same("", "text", "π"), [1, None, ["x"]]),
    "int": Kind(int, same(0, -3, 10**30), ["x", None, 1.5, [1]], lax=[("3", 3), (True, 1)]),
    "float": Kind(float, same(0.5, 2.0), ["x", None], lax=[("0.5", 0.5)]),
    "bool": Kind(bool, same(True, False), ["maybe", None, 7], lax=[("true", True), (1, True)]),
    "none": Kind(None, same(None), [0, "None"]),
    "any": Kind(Any, same(1, "x", None, {"a": [1]}), []),
    "object": Kind(object, same(1, "x", None, {"a": [1]}), []),
    "optional": Kind(int | None, same(1, None), ["x", [1]], lax=[("3", 3)]),
    "union": Kind(int | str, same(1, "x", "3"), [None, [1]]),
    "union of lists": Kind(list[int] | dict[str, int], same([1], {"a": 1}), ["x", 1]),
    "literal": Kind(Literal["a", "b", 3], same("a", "b", 3), ["c", 4, None]),
    "literal of one": Kind(Literal["only"], same("only"), ["other"]),
    "enum": Kind(Colour, made("red", Colour.RED), ["RED", "green", 1]),
    "int enum": Kind(Level, made(2, Level.HIGH), [3, "HIGH"]),
    "str enum": Kind(Unit, made("m", Unit.METRE), ["METRE", 1]),
    "list": Kind(list[int], same([], [1, 2]), ["x", [1, "y"], {"a": 1}], lax=[(["1"], [1])]),
    "bare list": Kind(list, same([], [1, "a", None]), ["x", {"a": 1}]),
    "sequence": Kind(Sequence[str], same([], ["a"]), ["text", [1]]),
    "list of lists": Kind(list[list[int]], same([[1], []]), [[1], "x"]),
    "set": Kind(set[int], made([1, 2], {1, 2}), ["x", [[1]]], lax=[([1, 1], {1})]),
    "frozenset": Kind(frozenset[str], made(["a"], frozenset({"a"})), ["x", [1]]),
    "tuple": Kind(tuple[int, str], made([1, "a"], (1, "a")), [[1], [1, "a", 2], [{}, "a"], 1]),
    "tuple of one type": Kind(tuple[int, int], made([1, 2], (1, 2)), [[1], ["x", "y"]]),
    "open tuple": Kind(tuple[int, ...], made([1, 2, 3], (1, 2, 3)), [["x"], 1]),
    "bare tuple": Kind(tuple, made([1, "a"], (1, "a")), [1]),
    "dict": Kind(dict[str, int], same({}, {"a": 1}), [[1], {"a": "x"}]),
    "dict by number": Kind(dict[int, str], made({"1": "a"}, {1: "a"}), [[1]], [{"x": "a"}]),
    "mapping": Kind(Mapping[str, list[int]], same({"a": [1]}), [{"a": 1}, "x"]),
    "model": Kind(
        Item, made({"name": "a"}, Item(name="a")), [{}, {"name": 1}, {"name": "a", "count": 0}, "a"]
    ),
    "nested model": Kind(
        Order,
        made({"items": [{"name": "a"}]}, Order(items=[Item(name="a")])),
        [{"items": [{}]}, {"items": [], "extra": 1}, {"items": [], "note": 1}],
    ),
    "model of itself": Kind(
        Node,
        made({"value": 1, "children": [{"value": 2}]}, Node(value=1, children=[Node(value=2)])),
        [{"value": 1, "children": [{}]}],
    ),
    "strict model": Kind(
        Frozen,
        made({"day": "2026-01-02", "n": 1}, Frozen(day=date(2026, 1, 2), n=1)),
        [{"day": "2026-01-02", "n": "1"}],
        [{"day": "tomorrow", "n": 1}],
    ),
    "list of models": Kind(list[Item], made([{"name": "a"}], [Item(name="a")]), [[{}], {}]),
    "union of models": Kind(
        Cat | Dog,
        made({"kind": "dog", "name": "a"}, Dog(kind="dog", name="a")),
        [{"kind": "cow"}, {"kind": "cat", "name": "a"}],
    ),
    "told apart by kind": Kind(
        Annotated[Cat | Dog, Field(discriminator="kind")],
        made({"kind": "cat", "lives": 9}, Cat(kind="cat", lives=9)),
        [{"kind": "cow"}, {"kind": "cat", "name": "a"}],
    ),
    "model with bytes of its own": Kind(File, made({"raw": "hi"}, File(raw=b"hi")), [{"raw": 1}]),
    "a class that says its schema": Kind(Shelf, made([1, "a"], Shelf(1, "a")), [[1], ["x", "a"]]),
    "generic model": Kind(Box[int], made({"content": 1}, Box[int](content=1)), [{"content": "x"}]),
    "dataclass": Kind(Point, made({"x": 1}, Point(1)), [{}, {"x": "a"}, 1]),
    "nested dataclass": Kind(
        Line,
        made({"start": {"x": 1}, "end": {"x": 2, "y": 3}}, Line(Point(1), Point(2, 3))),
        [{"start": {"x": 1}}, {"start": {}, "end": {"x": 1}}],
    ),
    "typed dict": Kind(
        Address, same({"street": "a"}, {"street": "a", "nr": 1}), [{}, {"street": 1}]
    ),
    "named tuple": Kind(Pair, made([1, "a"], Pair(1, "a")) | made([1], Pair(1)), [[], [{}, "a"]]),
    "date": Kind(date, made("2026-01-02", date(2026, 1, 2)), [None, []], ["soon", "2026-13-01"]),
    "datetime": Kind(
        datetime,
        made("2026-01-02T03:04:05Z", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
        [None, []],
        ["soon"],
    ),
    "time": Kind(time, made("03:04:05", time(3, 4, 5)), [None, []], ["soon"]),
    "timedelta": Kind(
        timedelta,
        made("PT90S", timedelta(seconds=90)),
        [None, []],
        ["soon"],
        [(90, timedelta(0, 90))],
    ),
    "uuid": Kind(UUID, made(str(UUID(int=1)), UUID(int=1)), [1, None], ["x"]),
    "decimal": Kind(
        Decimal,
        made("1.10", Decimal("1.10")) | made(0.5, Decimal("0.5")) | made(3, Decimal(3)),
        [None, []],
        ["x"],
    ),
    "path": Kind(Path, made("a/b.txt", Path("a/b.txt")), [1, None]),
    "bytes": Kind(
        bytes,
        made("aGk=", b"hi") | made("-_8=", b"\xfb\xff") | made("+/8=", b"\xfb\xff"),
        [1, None],
        ["a*b", "a"],
    ),
    "list of bytes": Kind(list[bytes], made(["aGk="], [b"hi"]), [[1]], [["*"]]),
    "address": Kind(IPv4Address, made("10.0.0.1", IPv4Address("10.0.0.1")), [None], ["10.0.0"]),
    "fraction": Kind(Fraction, made("1/3", Fraction(1, 3)), [], ["x"]),
    "secret": Kind(SecretStr, made("s", SecretStr("s")), [1]),
    "new type": Kind(UserId, same(3), ["x"]),
    "alias": Kind(Names, same(["a"]), ["a", [1]]),
    "alias of itself": Kind(Json, same({"a": [1, {"b": None}]}), [[1.5]]),
    "type variable": Kind(T, same(1, "x"), []),
    "limits of a number": Kind(Annotated[int, Field(ge=1, le=5)], same(1, 5), [0, 6, "x"]),
    "limits of a text": Kind(
        Annotated[str, Field(pattern="^[a-z]+$", max_length=3)], same("abc"), ["abcd", "A", 1]
    ),
    "limits of a list": Kind(Annotated[list[int], Len(1, 2)], same([1]), [[], [1, 2, 3]]),
    "a check of the program": Kind(Annotated[int, AfterValidator(even)], same(2), ["x"], [3]),
}
