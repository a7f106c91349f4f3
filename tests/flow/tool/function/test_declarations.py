"""Declarations of tools: signatures, sessions, defaults, names and docstrings."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from types import FunctionType
from typing import Annotated, Any, Generic, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

import rath
from rath.flow.tool import FlowToolCall, FunctionTool
from rath.flow.tool.function.source import ToolDocstring, read_docstring
from rath.session import Session
from rath.session.tooling import BadArguments

SESSION = Session.from_user_message("go")
T = TypeVar("T")


class Place(BaseModel):
    town: str


def test_a_function_becomes_a_flow_tool_call() -> None:
    @rath.tool
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    assert isinstance(add, FlowToolCall)
    assert (add.name, add.description) == ("add", "Add two numbers.")
    assert add.parameters == {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
        "additionalProperties": False,
    }
    assert add(SESSION, {"a": 1, "b": 2}) == 3


def test_the_function_itself_is_there() -> None:
    @rath.tool
    def add(a: int, b: int = 2) -> int:
        return a + b

    assert add.function(1) == 3


def test_a_function_without_parameters() -> None:
    @rath.tool
    def ping() -> str:
        return "pong"

    assert ping.parameters == {"type": "object", "properties": {}, "additionalProperties": False}
    assert ping(SESSION, {}) == "pong"
    with pytest.raises(BadArguments, match="x: is not known; there are: none"):
        ping(SESSION, {"x": 1})


def test_the_origin_names_the_function() -> None:
    assert module_level.origin == f"{__name__}:module_level"
    assert repr(module_level) == f"<rath.tool 'module_level' of {__name__}:module_level>"


@rath.tool
def module_level(place: Place) -> str:
    return place.town


def test_hints_are_those_of_the_module() -> None:
    assert module_level(SESSION, {"place": {"town": "Ulm"}}) == "Ulm"


def test_hints_are_those_of_the_function_around() -> None:
    class Inner(BaseModel):
        n: int

    @rath.tool
    def take(inner: Inner, many: list[Inner]) -> int:
        return inner.n + len(many)

    assert take(SESSION, {"inner": {"n": 1}, "many": [{"n": 2}]}) == 2


def test_hints_are_those_of_the_functions_it_uses() -> None:
    def made(kind: type[BaseModel]) -> FunctionTool[Any]:
        def take(value: Any) -> object:
            assert isinstance(value, kind)
            return value

        take.__annotations__["value"] = "kind"
        return declare(take)

    def declare(function: Callable[..., Any]) -> FunctionTool[Any]:
        return rath.tool(function)

    assert made(Place)(SESSION, {"value": {"town": "Ulm"}}) == {"town": "Ulm"}


def test_hints_are_those_of_the_body_of_a_class_and_around_it() -> None:
    class Outer(BaseModel):
        n: int

    class Desk:
        class Inner(BaseModel):
            n: int

        @rath.tool
        def take(self, inner: Inner, outer: Outer) -> int:
            return inner.n + outer.n

    assert Desk().take(SESSION, {"inner": {"n": 1}, "outer": {"n": 2}}) == 3


def test_hints_are_not_those_of_who_declares_it() -> None:
    Place = int  # noqa: N806  # the trap

    assert rath.tool(towns)(SESSION, {"places": [{"town": "Ulm"}]}) == "Ulm"
    assert Place is int


def towns(places: list[Place]) -> str:
    return places[0].town


def test_hints_are_those_of_the_body_of_a_declared_class() -> None:
    @rath.tool
    class Desk:
        class Inner(BaseModel):
            n: int

        def __call__(self, inner: Inner) -> int:
            return inner.n

    desk: Any = Desk()
    assert desk(SESSION, {"inner": {"n": 1}}) == 1


def test_a_method_does_not_hide_a_type_of_its_name() -> None:
    class Desk:
        @rath.tool
        def list(self) -> str:
            return "all"

        @rath.tool
        def put(self, papers: list[str]) -> str:  # type: ignore[valid-type]
            return repr(papers)

    assert Desk().list(SESSION, {}) == "all"
    assert Desk().put(SESSION, {"papers": ["a"]}) == "['a']"


def test_quoted_hints() -> None:
    def take(place: "Place", many: "list[Place]") -> str:  # noqa: UP037  # the quotes are meant
        return place.town + str(len(many))

    take.__annotations__ = {"place": "Place", "many": list["Place"]}
    assert rath.tool(take)(SESSION, {"place": {"town": "Ulm"}, "many": []}) == "Ulm0"


def test_a_result_hint_need_not_be_resolved() -> None:
    def take(n: int) -> int:
        return n

    take.__annotations__["return"] = "Nowhere"
    assert rath.tool(take)(SESSION, {"n": 1}) == 1


# ---------------------------------------------------------------- the session


def first(session: Session, n: int) -> str:
    return f"{session.id} {n}"


def last(n: int, *, here: Session) -> str:
    return f"{here.id} {n}"


def annotated(n: int, here: Annotated[Session, "Where it is."]) -> str:
    return f"{here.id} {n}"


def perhaps(n: int, here: Session | None = None) -> str:
    return f"{here and here.id} {n}"


@pytest.mark.parametrize("function", [first, last, annotated, perhaps])
def test_a_parameter_for_the_session_gets_it(function: Callable[..., Any]) -> None:
    tool = rath.tool(function)
    assert [*tool.parameters["properties"]] == ["n"]
    assert tool(SESSION, {"n": 1}) == f"{SESSION.id} 1"


def test_a_session_imported_for_checkers_only() -> None:
    def here(n: int, session: "Session") -> str:  # noqa: UP037
        return f"{session.id} {n}"

    names = {name: value for name, value in globals().items() if name != "Session"}
    moved = FunctionType(here.__code__, names, "here")
    moved.__annotations__ = {"n": "int", "session": "Session"}
    assert rath.tool(moved)(SESSION, {"n": 1}) == f"{SESSION.id} 1"


def test_a_model_gives_no_session() -> None:
    with pytest.raises(BadArguments, match="session: is not known; there are: n"):
        rath.tool(first)(SESSION, {"n": 1, "session": "x"})


# ---------------------------------------------------------------- defaults


def test_a_default_is_reported_and_taken() -> None:
    @rath.tool
    def take(n: int = 3, day: date = date(2026, 1, 2), place: Place | None = None) -> Any:
        return [n, day, place]

    assert take.parameters["properties"]["n"] == {"type": "integer", "default": 3}
    assert take.parameters["properties"]["day"]["default"] == "2026-01-02"
    assert "required" not in take.parameters
    assert take(SESSION, {}) == [3, "2026-01-02", None]


def test_a_default_of_no_json_is_taken_and_not_reported() -> None:
    nothing = object()

    @rath.tool
    def take(n: Any = nothing) -> bool:
        return n is nothing

    assert take.parameters["properties"]["n"] == {}
    assert take(SESSION, {}) is True


def test_a_default_is_new_in_each_call() -> None:
    @rath.tool
    def take(seen: list[int] = []) -> int:  # noqa: B006  # what programs write
        seen.append(1)
        return len(seen)

    assert [take(SESSION, {}), take(SESSION, {})] == [1, 1]


def test_a_default_of_another_type_is_left_alone() -> None:
    @rath.tool
    def take(n: int = None) -> str:  # type: ignore[assignment]  # noqa: RUF013  # what programs write
        return repr(n)

    assert take(SESSION, {}) == "None"


def test_a_field_as_default() -> None:
    @rath.tool
    def take(n: int = Field(3, ge=1, description="How many."), m: int = Field(ge=1)) -> int:
        return n + m

    assert take.parameters["properties"]["n"] == {
        "type": "integer",
        "minimum": 1,
        "default": 3,
        "description": "How many.",
    }
    assert take.parameters["required"] == ["m"]
    assert take(SESSION, {"m": 1}) == 4
    with pytest.raises(BadArguments, match="n: Input should be greater"):
        take(SESSION, {"n": 0, "m": 1})


def test_a_field_in_a_hint_may_have_the_default() -> None:
    @rath.tool
    def take(many: Annotated[list[int], Field(default_factory=list)]) -> list[int]:
        return many

    assert "required" not in take.parameters
    assert take(SESSION, {}) == []


# ---------------------------------------------------------------- names


def test_parameters_may_have_names_that_models_of_pydantic_use() -> None:
    @rath.tool
    def take(schema: int, json: int, model_config: int, _x: int, copy: int = 1) -> list[int]:
        return [schema, json, model_config, _x, copy]

    given = {"schema": 1, "json": 2, "model_config": 3, "_x": 4}
    assert [*take.parameters["properties"]] == [*given, "copy"]
    assert take(SESSION, given) == [1, 2, 3, 4, 1]


def test_an_alias_is_what_the_model_is_reported() -> None:
    @rath.tool
    def take(from_: Annotated[str, Field(alias="from")]) -> str:
        return from_

    assert take.parameters["required"] == ["from"]
    assert take(SESSION, {"from": "here"}) == "here"
    with pytest.raises(BadArguments, match="from: is required and missing"):
        take(SESSION, {})


def test_a_name_that_not_every_vendor_takes_is_refused() -> None:
    def take(größe: int) -> int:
        return größe

    with pytest.raises(TypeError, match="'größe' has a name that not every model takes"):
        rath.tool(take)


@pytest.mark.parametrize("name", ["a-b", "A_1", "x" * 64])
def test_a_name_may_be_given(name: str) -> None:
    assert rath.tool(name=name)(first).name == name


@pytest.mark.parametrize("name", ["", "a b", "a.b", "größe", "x" * 65])
def test_a_name_that_no_vendor_takes_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="cannot be named"):
        rath.tool(first, name=name)


def test_the_name_of_a_function_is_checked_too() -> None:
    def größe(n: int) -> int:
        return n

    with pytest.raises(ValueError, match=r"a tool cannot be named 'größe'; .*name="):
        rath.tool(größe)


# ---------------------------------------------------------------- other callables


def test_a_lambda_with_a_name() -> None:
    assert rath.tool(lambda: 3, name="three")(SESSION, {}) == 3


def test_a_partial_with_a_name() -> None:
    tool = rath.tool(functools.partial(last, n=3), name="part")
    assert tool.parameters["properties"] == {"n": {"type": "integer", "default": 3}}
    assert tool(SESSION, {}) == f"{SESSION.id} 3"


def test_a_bound_method() -> None:
    class Desk:
        def look(self, n: int) -> int:
            """Look."""
            return n + 1

    tool = rath.tool(Desk().look)
    assert (tool.name, tool.description) == ("look", "Look.")
    assert tool(SESSION, {"n": 1}) == 2


def test_an_object_with_a_call() -> None:
    @dataclass
    class Adder:
        """Adds to a number."""

        by: int

        def __call__(self, n: int) -> int:
            return n + self.by

    tool = rath.tool(Adder(2))
    assert (tool.name, tool.description) == ("Adder", "Adds to a number.")
    assert tool(SESSION, {"n": 1}) == 3


def test_a_wrapped_function() -> None:
    def louder(function: Callable[..., str]) -> Callable[..., str]:
        @functools.wraps(function)
        def wrapper(**given: Any) -> str:
            return function(**given).upper()

        return wrapper

    @rath.tool
    @louder
    def say(place: Place) -> str:
        return place.town

    assert say(SESSION, {"place": {"town": "Ulm"}}) == "ULM"


def test_a_generic_function() -> None:
    class Box(BaseModel, Generic[T]):
        content: T

    @rath.tool
    def opened(box: Box[list[int]]) -> list[int]:
        return box.content

    assert opened(SESSION, {"box": {"content": ["1"]}}) == [1]


PIECES = (
    *("Args:", "Returns:", ":param", ":param x: y", ":returns", "    x (int): y", "@param x: y"),
    *("Parameters", "-----", "x : int", ":", "    :", "text", " ", "\n", "\n\n", "    "),
)


def google(place: str, days: int = 1) -> str:
    """Tell the weather of a place.

    It is that of the nearest station,
    and may be wrong.

    Args:
        place: A town, or a town
            and its country.
        days (int): How many days.

    Returns:
        A sentence.

    Raises:
        ValueError: There is no such place.
    """
    return place * days


def numpy(place: str, days: int = 1) -> str:
    """Tell the weather of a place.

    It is that of the nearest station,
    and may be wrong.

    Parameters
    ----------
    place : str
        A town, or a town
        and its country.
    days : int, optional
        How many days.

    Returns
    -------
    str
        A sentence.
    """
    return place * days


def rest(place: str, days: int = 1) -> str:
    """Tell the weather of a place.

    It is that of the nearest station,
    and may be wrong.

    :param place: A town, or a town
        and its country.
    :param int days: How many days.
    :returns: A sentence.
    """
    return place * days


def described(function: Callable[..., Any]) -> dict[str, str | None]:
    properties = rath.tool(function).parameters["properties"]
    return {name: one.get("description") for name, one in properties.items()}


@pytest.mark.parametrize("function", [google, numpy, rest])
def test_summary_and_long_text_are_the_description(function: Callable[..., Any]) -> None:
    assert rath.tool(function).description == (
        "Tell the weather of a place.\n\nIt is that of the nearest station,\nand may be wrong."
    )


@pytest.mark.parametrize("function", [google, numpy, rest])
def test_arguments_are_described(function: Callable[..., Any]) -> None:
    assert described(function) == {
        "place": "A town, or a town and its country.",
        "days": "How many days.",
    }


def test_names_that_numpy_lists_together() -> None:
    def take(a: int, b: int) -> None:
        """Take.

        Parameters
        ----------
        a, b : int
            A number.
        """

    assert described(take) == {"a": "A number.", "b": "A number."}


def test_no_docstring() -> None:
    def take(n: int) -> None: ...

    assert rath.tool(take).description is None
    assert described(take) == {"n": None}


def test_a_blank_docstring() -> None:
    def take(n: int) -> None:
        """ """  # the fault

    assert rath.tool(take).description is None


def test_a_docstring_that_no_style_reads_is_taken_complete() -> None:
    def take(n: int) -> None: ...

    take.__doc__ = "Take.\n\n    :    :\n    Args:\n"
    assert rath.tool(take).description == "Take.\n\n:    :\nArgs:"


@given(st.lists(st.sampled_from(PIECES), max_size=9).map("".join))
def test_no_docstring_stops_a_declaration(docstring: str) -> None:
    assert isinstance(read_docstring(docstring), ToolDocstring)


def test_a_description_given_is_the_one() -> None:
    assert rath.tool(google, description="Weather.").description == "Weather."
    assert rath.tool(google, description="").description == ""


def test_words_in_a_hint_come_before_those_of_the_docstring() -> None:
    def take(
        a: Annotated[int, "From the hint."],
        b: Annotated[int, Field(description="From the field.")],
        c: Annotated[int, Field(ge=1)],
        d: Annotated[int, "First.", Field(description="Last.")] = 1,
    ) -> None:
        """Take.

        Args:
            a: From the docstring.
            b: From the docstring.
            c: From the docstring.
            d: From the docstring.
        """

    assert described(take) == {
        "a": "From the hint.",
        "b": "From the field.",
        "c": "From the docstring.",
        "d": "Last.",
    }


def test_what_is_reported_of_other_names_is_left_out() -> None:
    def take(n: int) -> None:
        """Take.

        Args:
            n: A number.
            gone: No parameter any more.
        """

    assert described(take) == {"n": "A number."}
