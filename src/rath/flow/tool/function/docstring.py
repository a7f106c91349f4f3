"""What a docstring says to a model: what a function does, and what its arguments are."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field

import docstring_parser


@dataclass(frozen=True, slots=True)
class Described:
    """The parts of a docstring that a model reads."""

    text: str | None = None
    """Summary and long text, without the sections on arguments, results and errors."""

    parameters: Mapping[str, str] = field(default_factory=dict[str, str])
    """What is said of each parameter, on one line."""


def read_docstring(docstring: str | None) -> Described:
    """Return what a docstring of Google's, NumPy's or reST's style says.

    One that can be read in no style is taken whole.
    """
    if not docstring or not docstring.strip():
        return Described()
    try:
        parsed = docstring_parser.parse(docstring)
    # The library fails of itself on a line such as ": :".
    except (docstring_parser.ParseError, IndexError):
        return Described(inspect.cleandoc(docstring))
    between = "\n\n" if parsed.blank_after_short_description else "\n"
    said = (parsed.short_description, parsed.long_description)
    return Described(
        between.join(part.strip() for part in said if part) or None,
        {
            name.strip().lstrip("*"): " ".join(one.description.split())
            for one in parsed.params
            if one.description
            for name in one.arg_name.split(",")
        },
    )
