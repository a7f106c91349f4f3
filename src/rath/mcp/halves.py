"""Half characters in JSON: programs that cut a text cut some characters in two."""

from __future__ import annotations

import re

__all__ = ["sound_line"]

_HALF = re.compile(
    rb"\\\\"  # a backslash that is written: what follows it is no escape
    rb"|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
)
"""A surrogate without its other half, as the group; other things that begin alike are passed by."""


def sound_line(line: bytes) -> bytes:
    """Return a line of JSON with U+FFFD for each half of a character, which no parser takes."""
    return _HALF.sub(_whole, line)


def _whole(match: re.Match[bytes]) -> bytes:
    return match[0] if match[1] is None else rb"\ufffd"
