"""The table of the documents that says which error of a vendor becomes which of ours."""

from __future__ import annotations

import builtins
import re
from pathlib import Path

import rath.errors
from rath.errors import ProviderError

_PAGE = Path(__file__).parents[2] / "docs" / "source" / "tutorial" / "errors.md"
_ROW = re.compile(r"\| `(\w+)\.(\w+)` \| `(\w+)` \| `(\w+)` \|")


def documented(*libraries: str) -> list[tuple[str, str, str, str]]:
    """Return the rows for these libraries: library, its class, our class, and its other base."""
    rows = [row.groups() for row in _ROW.finditer(_PAGE.read_text("utf-8"))]
    found = [(library, name, ours, base) for library, name, ours, base in rows]
    return [row for row in found if row[0] in libraries]


def assert_is(error: ProviderError, ours: str, base: str) -> None:
    """Check that an error is of the class and the base that the documents say."""
    assert type(error) is getattr(rath.errors, ours)
    assert isinstance(error, RuntimeError)
    assert isinstance(error, getattr(rath.errors, base, None) or getattr(builtins, base))
