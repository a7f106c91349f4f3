"""What a model is told of a function and of its arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

import rath
from rath.flow.tool.function.source import ToolDocstring, read_docstring

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


def test_a_docstring_that_no_style_reads_is_taken_whole() -> None:
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


def test_what_is_said_of_other_names_is_left_out() -> None:
    def take(n: int) -> None:
        """Take.

        Args:
            n: A number.
            gone: No parameter any more.
        """

    assert described(take) == {"n": "A number."}
