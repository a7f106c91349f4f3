"""Names of notes as the server keeps them: what it would change or refuse is escaped."""

from __future__ import annotations

import re

__all__ = ["from_wire_name", "to_wire_name"]

# The server turns white space into "_", cuts at "?", refuses ":", "\\" and some percent signs, and
# takes a name of dots for one without an extension: different notes would become one, or none.
# What begins with a dot it does not list; two such names are its own words on a directory.
_UNKEPT = re.compile(
    r"[\x00-\x1f\x7f:?\\]|\s|%(?=2[EeFf]|5[Cc]|00)|=(?=[0-9A-F]{2})|^\.(?!(?:abstract|overview)(?:\.md)?$)"
)
_ESCAPED = re.compile("(?:=[0-9A-F]{2})+")


def to_wire_name(name: str) -> str:
    """Return a segment of a URI as the server keeps it; names of letters and digits stay."""
    return _UNKEPT.sub(lambda found: "".join(f"={byte:02X}" for byte in found[0].encode()), name)


def from_wire_name(name: str) -> str:
    """Return the segment that `to_wire_name` made `name` of."""
    return _ESCAPED.sub(_unescaped, name)


def _unescaped(found: re.Match[str]) -> str:
    try:
        return bytes.fromhex(found[0].replace("=", "")).decode()
    except UnicodeDecodeError:
        return found[0]  # somebody else's name
