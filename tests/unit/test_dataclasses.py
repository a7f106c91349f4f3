"""Dataclasses whose methods are written late do all that those of the standard library do."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
import sys
import threading
from collections.abc import Callable, Generator
from types import ModuleType
from typing import Any

import pytest

import rath
from rath._core.dataclasses import dataclass

SOURCE = '''
from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import typing
from dataclasses import KW_ONLY, InitVar, field, fields, replace
from typing import ClassVar, Generic, TypeVar

T = TypeVar("T")
INT = {"z": "int"}

@dataclass(frozen=True, slots=True)
class Point:
    """A place."""

    x: int
    y: int = 2
    tags: list[str] = field(default_factory=list, compare=False)
    hidden: int = field(default=0, repr=False, kw_only=True)

    def norm(self) -> int:
        return self.x * self.x + self.y * self.y

@dataclass(frozen=True, slots=True)
class Place(Point):
    name: str = "nowhere"
    y: int = 5

@dataclass(slots=True)
class Mutable:
    x: int
    seen: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.seen.append(self.x)

@dataclass(slots=True, eq=False)
class ByIdentity:
    x: int = 1

@dataclass(slots=True, repr=False)
class WithoutRepr:
    x: int = 1

@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    first: int = 1
    second: str = "two"

@dataclass(frozen=True, slots=True, kw_only=True)
class MoreOptions(Options):
    third: float

@dataclass(frozen=True, slots=True)
class Box(Generic[T]):
    item: T

@dataclass(frozen=True, slots=True)
class OwnMethods:
    x: int

    def __init__(self, text: str) -> None:
        object.__setattr__(self, "x", len(text))

    def __repr__(self) -> str:
        return f"<{self.x}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OwnMethods)

    def __hash__(self) -> int:
        return 7

@dataclass(slots=True)
class OwnEq:
    x: int

    def __eq__(self, other: object) -> bool:
        return True

@dataclass(slots=True)
class WithClassVar:
    count: ClassVar[int] = 3
    start: InitVar[int]
    _: KW_ONLY
    x: int = 0

    def __post_init__(self, start: int) -> None:
        self.x += start

@dataclass(frozen=True, slots=True)
class WithConstant:
    read_only: ClassVar[bool] = True
    x: int = 1

@dataclass(order=True, frozen=True, slots=True)
class Ordered:
    x: int

@dataclass
class Plain:
    x: int = 1

@dataclass(slots=True)
class OnPlain(Plain):
    y: int = 2

@dataclass(slots=True)
class WithoutText:
    x: int = 1

class Derived(Point):
    __slots__ = ("extra",)

    def __init__(self, x: int) -> None:
        super().__init__(x, 9)

@dataclasses.dataclass(frozen=True)
class ByUser(Point):
    z: int = 3

class Slotted:
    __slots__ = ("x",)
    x: int

@dataclass(slots=True)
class OnSlotted(Slotted):
    x: int
    y: int = 0

def assign(value, name):
    setattr(value, name, 1)
    return getattr(value, name)

def matched(value):
    match value:
        case Point(x, 2):
            return ("two", x)
        case Point(x, y, tags):
            return (x, y, tags)
        case Mutable(x=x):
            return x
'''

PROGRAMS = """
    Point(1), Point(1, 3, ["t"], hidden=4), Point(x=1, y=0), Point(1).norm()
    Point()
    Point(1, 2, [], 4)
    Point(1, z=2)
    Point(1) == Point(1), Point(1) == Point(2), Point(1) != Point(1, tags=["t"]), Point(1) == 1
    Point(1) == Place(1), Place(1), Place(1, name="here"), Place.__match_args__
    hash(Point(1)) == hash(Point(1, tags=["t"])), len({Point(1), Point(1), Point(2)})
    hash(Mutable(1))
    hash(OwnEq(1))
    ByIdentity() == ByIdentity(), ByIdentity().__hash__() > 0
    Mutable.__hash__, OwnEq.__hash__, Mutable(3), Mutable(3).seen, Mutable(1) == Mutable(1)
    assign(Mutable(3), "x")
    assign(Mutable(3), "z")
    assign(Point(3), "x")
    delattr(Point(3), "x")
    delattr(Mutable(3), "x")
    hasattr(Point(1), "__dict__"), Point.__slots__, Place.__slots__, OnSlotted.__slots__
    OnSlotted(1), OnPlain(), OnPlain(3, 4), Plain()
    "at 0x" in repr(WithoutRepr()), repr(Point), Point.__qualname__, Point.__module__
    copy.copy(Point(1)), copy.deepcopy(Point(1, 2, ["t"])), copy.deepcopy(Mutable(1)).seen
    pickle.loads(pickle.dumps(Place(1, hidden=8))).hidden, pickle.loads(pickle.dumps(Mutable(1)))
    Point(1).__getstate__(), Mutable(1).__getstate__()
    replace(Point(1), y=7), replace(Place(1), name="x"), replace(Mutable(1), x=2).seen
    replace(Point(1), none=7)
    dataclasses.asdict(Place(1)), dataclasses.astuple(Point(1)), dataclasses.asdict(Box(Point(1)))
    [(f.name, f.type, f.kw_only, f.compare) for f in dataclasses.fields(Place)]
    dataclasses.is_dataclass(Point), dataclasses.is_dataclass(Derived), dataclasses.fields(Derived)
    repr(Point.__dataclass_params__), repr(MoreOptions.__dataclass_params__)
    matched(Point(1)), matched(Point(1, 3)), matched(Place(1)), matched(Mutable(5)), matched(None)
    Options(), MoreOptions(third=1.0), MoreOptions(third=1.0, first=3), MoreOptions.__match_args__
    Options(1)
    MoreOptions()
    Box(1), Box[str].__args__, Box.__parameters__, Box(1) == Box(1)
    OwnMethods("abc"), OwnMethods("a") == OwnMethods("b"), hash(OwnMethods("a"))
    WithClassVar(4), WithClassVar(4, x=1), WithClassVar.count, dataclasses.fields(WithClassVar)
    WithClassVar(4, 1)
    WithConstant(), WithConstant.read_only, fields(WithConstant), WithConstant.__slots__
    Ordered(1) < Ordered(2), sorted([Ordered(2), Ordered(1)])
    Point(1) < Point(2)
    Derived(4), Derived(4) == Derived(4), Derived(4).y, isinstance(Derived(4), Point)
    assign(Derived(4), "x")
    ByUser(1), ByUser(1, 2, z=7), ByUser.__match_args__, ByUser(1) == ByUser(1)
    assign(ByUser(1), "y")
    inspect.signature(Point), inspect.signature(Place.__init__), inspect.signature(Derived)
    inspect.signature(OwnMethods), inspect.signature(MoreOptions), inspect.signature(Point.__eq__)
    Point.__doc__, WithoutText.__doc__, inspect.getdoc(Place), Point.__init__.__qualname__
    typing.get_type_hints(Point), typing.get_type_hints(Point.__init__), Point.__init__.__doc__
    sorted(set(dir(Point))), sorted(vars(Place)), [n for n, _ in inspect.getmembers(Options)]
    type("Sub", (Point,), {})(1, 6), type("Sub", (Mutable,), {"__slots__": ()})(1)
    fields(dataclass(frozen=True, slots=True)(type("A", (Point,), {"__annotations__": INT})))
    fields(dataclass(slots=True)(type("A", (Point,), {"__annotations__": INT, "z": 1})))
    fields(dataclass(slots=True)(type("A", (), {"__annotations__": INT, "z": []})))
    dataclass(slots=True)(type("Twice", (), {"__slots__": ("x",), "__annotations__": {"x": "int"}}))
    dataclass(frozen=True, slots=True)(type("Own", (), {"__setattr__": None}))
"""


@pytest.fixture
def pair() -> Generator[tuple[Any, Any]]:
    """Two modules of one source: with the decorator of the standard library, and with ours."""
    modules: list[ModuleType] = []
    for name, decorator in (("twin_a", dataclasses.dataclass), ("twin_b", dataclass)):
        module = sys.modules[name] = ModuleType(name)
        vars(module)["dataclass"] = decorator
        exec(SOURCE, vars(module))
        modules.append(module)
    yield modules[0], modules[1]
    for module in modules:
        del sys.modules[module.__name__]


def outcome(module: ModuleType, program: str) -> str:
    """Return what a program gives, or the error that it ends with, as text."""
    try:
        text = repr(eval(f"({program})", vars(module)))
    except Exception as exc:  # noqa: BLE001  # the outcome of the program
        text = repr(exc)
    return text.replace(module.__name__, "module")


@pytest.mark.parametrize("program", [line.strip() for line in PROGRAMS.strip().splitlines()])
def test_a_program_ends_as_with_the_standard_library(pair: tuple[Any, Any], program: str) -> None:
    expected, got = (outcome(module, program) for module in pair)
    assert got == expected


def test_methods_are_written_on_first_use(pair: tuple[Any, Any]) -> None:
    _, ours = pair
    names = ("__init__", "__repr__", "__eq__")
    used: dict[str, object] = ours.Mutable.__dict__
    assert not any(callable(used[name]) for name in names)
    ours.Mutable(1)
    used = ours.Mutable.__dict__
    assert all(callable(used[name]) for name in names)
    unused: dict[str, object] = ours.Options.__dict__
    assert not callable(unused["__init__"])


def test_a_frozen_class_refuses_what_is_no_field(pair: tuple[Any, Any]) -> None:
    """The standard library of 3.11 fails on the class that it has replaced to add the slots."""
    _, ours = pair
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'z'"):
        ours.Point(1).z = 1
    assert ours.Box[int](2).item == 2


def first_uses() -> list[Callable[[Any], Any]]:
    return [
        lambda cls: cls(1),
        repr,
        dataclasses.fields,
        lambda cls: cls.__match_args__,
        lambda cls: cls(1) == cls(1),
        lambda cls: hash(cls(1)),
    ]


def test_threads_may_use_a_class_first_at_the_same_time(
    pair: tuple[Any, Any],
) -> None:
    for _ in range(20):
        exec(SOURCE, pair[1].__dict__)
        cls: Any = pair[1].Place
        start = threading.Barrier(len(first_uses()))
        failures: list[BaseException] = []

        def use(
            call: Callable[[Any], Any],
            cls: Any = cls,
            start: threading.Barrier = start,
            failures: list[BaseException] = failures,
        ) -> None:
            start.wait()
            try:
                call(cls)
            except BaseException as exc:  # noqa: BLE001  # the test fails by it
                failures.append(exc)

        threads = [threading.Thread(target=use, args=(call,)) for call in first_uses()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        assert repr(cls(1)) == "Place(x=1, y=5, tags=[], name='nowhere')"


def modules_of_rath() -> list[str]:
    optional = ("litellm", "postgres", "opensandbox", "openviking", "onnxruntime", ".local")
    found = pkgutil.walk_packages(rath.__path__, "rath.", onerror=lambda _: None)
    return [each.name for each in found if not any(word in each.name for word in optional)]


def test_every_class_of_rath_can_be_completed() -> None:
    """The standard library refuses a bad class where it is defined, and this at its first use."""
    for name in modules_of_rath():
        if name.endswith("__main__"):
            continue
        module = importlib.import_module(name)
        for cls in vars(module).values():
            if isinstance(cls, type) and dataclasses.is_dataclass(cls):
                assert all(each.name for each in dataclasses.fields(cls))
