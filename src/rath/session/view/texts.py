"""Texts of a page: valid, within the limits, and harmless inside a script element."""

from __future__ import annotations

from typing import TypeAlias

Shown: TypeAlias = "str | list[str | int]"
"""A text; or head, number of characters left out, and tail of one that was too long."""

_HARMLESS = str.maketrans(
    {char: f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}
)  # In JSON these stand inside of strings only.


def shown(text: str, max_chars: int) -> Shown:
    """Return a text of at most `max_chars` characters, with what is left out said."""
    if len(text) <= max_chars:
        return text
    head = max_chars - max_chars // 3
    tail = len(text) - max_chars // 3
    return [text[:head], tail - head, text[tail:]]


def harmless(json_text: str) -> str:
    """Return the same JSON so that no HTML parser finds the end of a script in it."""
    return json_text.translate(_HARMLESS)
