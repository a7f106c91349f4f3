"""What no tool can be made of: the error names the place, the parameter and what to do."""

from __future__ import annotations

import functools
import math
import re
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator
from enum import Enum
from typing import Any, Literal

import pytest
from pydantic import BaseModel

import rath
from rath.flow.tool import FlowToolCall
from rath.session import Session
from rath.testing import ScriptedClient
from tests.support.sessions import FunctionTool


class Opaque:
    """A class that pydantic knows nothing of."""


class Colour(Enum):
    """An enum that is no text."""

    RED = "red"


class HoldsOpaque(BaseModel, arbitrary_types_allowed=True):
    it: Opaque


class Moody:
    """A class whose schema is there at times only."""

    n_asked = 0

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        cls.n_asked += 1
        if cls.n_asked == 1:
            raise ValueError("not now\nnor later")
        return handler(int)


class Failing:
    """A class that has no schema, and says why."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        raise ValueError("not now\nnor later")


def var_args(*numbers: int) -> int:
    return sum(numbers)


def var_names(**numbers: int) -> int:
    return sum(numbers.values())


def positional(n: int, /) -> int:
    return n


def bare(n: int, m: int) -> int:
    return m


bare.__annotations__.pop("n")


def unresolved(n: int) -> None: ...


unresolved.__annotations__["n"] = "Unknown"


def broken(n: int) -> None: ...


broken.__annotations__["n"] = "list["


def opaque(n: int, it: Opaque) -> None: ...


def deep(it: list[HoldsOpaque]) -> None: ...


def called(it: Callable[[int], int]) -> None: ...


def lock(it: threading.Lock) -> None: ...


def iterator(it: Iterator[int]) -> None: ...


def iterable(it: dict[str, Iterable[int]]) -> None: ...


def failing(it: Failing) -> None: ...


def member(it: list[Literal[Colour.RED]]) -> None: ...


def kind(it: type[int]) -> None: ...


def numbers() -> Generator[int]:
    yield 1


async def later() -> AsyncIterator[int]:
    yield 1


REFUSED: list[tuple[Callable[..., Any], str]] = [
    (var_args, r"parameter '\*numbers' takes any number of values; .* numbers: list\["),
    (var_names, r"parameter '\*\*numbers' takes any names; .* numbers: dict\[str"),
    (positional, r"parameter 'n' is positional-only; .* leave out the `/`"),
    (bare, r"parameter 'n' has no hint; .* write n: str"),
    (unresolved, r"hint 'Unknown' of parameter 'n' cannot be resolved \(NameError.*TYPE_CHECKING"),
    (broken, r"hint .*list\[.* of parameter 'n' cannot be resolved \(SyntaxError"),
    (opaque, r"parameter 'it' has a type that JSON cannot hold, Opaque"),
    (deep, r"parameter 'it' has a type that JSON cannot hold, list\[.*HoldsOpaque\]"),
    (called, r"parameter 'it' has a type that JSON cannot hold"),
    (lock, r"parameter 'it' has a type that JSON cannot hold"),
    (iterator, r"parameter 'it' has .* collections.abc.Iterator\[int\] \(pydantic does not know"),
    (iterable, r"parameter 'it' has .*; write list\[\.\.\.\] or Sequence"),
    (failing, r"parameter 'it' has a type that JSON cannot hold, Failing \(not now\); "),
    (member, r"parameter 'it' has .*Colour.RED.* takes no JSON value; write Literal\['red'\]"),
    (kind, r"parameter 'it' has a type that JSON cannot hold, type\[int\] \(a class is no JSON"),
    (numbers, "generator function, .* return a list"),
    (later, "generator function, .* return a list"),
]


@pytest.mark.parametrize(("function", "said"), REFUSED, ids=lambda it: getattr(it, "__name__", ""))
def test_a_signature_is_refused(function: Callable[..., Any], said: str) -> None:
    with pytest.raises(TypeError, match=said) as caught:
        rath.tool(function)
    line = function.__code__.co_firstlineno
    place = f"{re.escape(__file__)}:{line}: function {function.__name__}: "
    assert re.match(place, str(caught.value))
    # No page of a library.
    assert "http" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_types_that_have_no_schema_together() -> None:
    def moody(it: Moody) -> None: ...

    with pytest.raises(TypeError, match=r"its parameters together have no JSON Schema \(not now\)"):
        rath.tool(moody)


def nothing() -> None: ...


@pytest.mark.parametrize(
    ("target", "said"),
    [
        (lambda: 3, "a lambda has no name that a model could call; give name="),
        (functools.partial(positional, 1), "a partial has no name that a model could call"),
        (math.hypot, r"math: function hypot: .*(no signature|takes any number)"),
        ("search", r"was given 'search', .* @rath\.tool\(name="),
        (FunctionTool("x", print), "is a tool already; leave out"),
        (FunctionTool, "is a tool already; leave out"),
        (FlowToolCall, "is a tool already; leave out"),
        (rath.tool(nothing), "is a tool already"),
        (Opaque, "class Opaque: it has no __call__ that is a method; "),
    ],
    ids=["lambda", "partial", "C", "text", "tool", "class", "base", "declared", "no call"],
)
def test_what_has_no_name_or_no_signature_is_refused(target: Any, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        rath.tool(target)


def test_one_that_tells_no_signature() -> None:
    with pytest.raises(TypeError, match=r"builtins: .* it tells no signature"):
        rath.tool(iter, name="iter")


# ---------------------------------------------------------------- in the body of a class


def of_class(cls: type, n: int) -> int:
    return n


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (positional, r"above @staticmethod"),
        (of_class, r"above @classmethod"),
        (nothing, r"first parameter is not `self`"),
    ],
)
def test_what_stands_above_it_in_a_class_is_explained(
    function: Callable[..., Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As it is while the body of a class runs.
    monkeypatch.setattr(function, "__qualname__", f"Desk.{function.__name__}")
    with pytest.raises(TypeError, match=rf"Desk\.{function.__name__}: .*{said}"):
        rath.tool(function)


def test_a_method_that_is_not_of_an_object_is_no_tool() -> None:
    class Desk:
        @rath.tool
        def look(self, n: int) -> int:
            return n

    session, model = Session.from_user_message("go"), ScriptedClient(["ok"]).provider
    with pytest.raises(TypeError, match=r"tool 'look' is a method of .*Desk.*Desk\(\.\.\.\)\.look"):
        rath.flow.Agent("Look.", model, [Desk.look])(session)
    with pytest.raises(TypeError, match="is a method of"):
        Desk.look(session, {"n": 1})


def test_a_class_whose_call_has_no_hints() -> None:
    with pytest.raises(TypeError, match=r"class .*Bad: parameter 'n' has no hint"):

        @rath.tool
        class Bad:
            def __call__(self, n: object) -> object:
                return n

            del __call__.__annotations__["n"]


def test_a_class_with_an_attribute_that_tools_have() -> None:
    with pytest.raises(TypeError, match=r"its 'timeout' would hide .* rath\.tool\(Bad\(\.\.\.\)\)"):

        @rath.tool
        class Bad:
            timeout: int

            def __call__(self, n: int) -> int:
                return n


def test_a_class_with_a_metaclass() -> None:
    with pytest.raises(TypeError, match=r"metaclass ModelMetaclass.*rath\.tool\(Bad\(\.\.\.\)\)"):

        @rath.tool
        class Bad(BaseModel):
            def __call__(self, n: int) -> int:
                return n


# ---------------------------------------------------------------- options

OPTIONS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"name": 3}, TypeError, "name must be a str, not 3"),
    ({"description": 3}, TypeError, "description must be a str, not 3"),
    ({"parallel_safe": 1}, TypeError, "parallel_safe must be True or False, not 1"),
    ({"resource": 3}, TypeError, "resource must be a str or a tuple of str"),
    ({"resource": ()}, TypeError, "resource must be a str or a tuple of str"),
    ({"resource": ("a", 1)}, TypeError, "resource must be a str or a tuple of str"),
    ({"effects": "none"}, ValueError, "effects must be one of 'read_only', "),
    ({"timeout": "5"}, TypeError, "timeout must be seconds or None, not '5'"),
    ({"timeout": True}, TypeError, "timeout must be seconds or None, not True"),
    ({"timeout": 0}, ValueError, "timeout must be a number of seconds above 0"),
    ({"timeout": float("inf")}, ValueError, "timeout must be a number of seconds above 0"),
    ({"approval": "perhaps"}, ValueError, "approval must be 'never', 'always' or a function"),
]


@pytest.mark.parametrize(("options", "kind", "said"), OPTIONS, ids=lambda it: str(it)[:30])
def test_an_option_is_refused(options: dict[str, Any], kind: type[Exception], said: str) -> None:
    with pytest.raises(kind, match=said):
        rath.tool(**options)
