"""Tools of a server that no model could be offered."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rath._core.text import one_line_preview
from rath.mcp.tail import printable

if TYPE_CHECKING:
    from mcp_types import Tool

__all__ = ["MAX_NAME_CHARS", "MAX_SCHEMA_CHARS", "usable_tools"]

MAX_NAME_CHARS = 1000
"""Longest name of a tool; the protocol advises 128. A guess."""

MAX_SCHEMA_CHARS = 200_000
"""Longest schema of a tool, which goes to the model in each request. A guess."""

_MAX_NAMED = 5
_MAX_SHOWN_CHARS = 64

_log = logging.getLogger("rath.mcp")


def usable_tools(listed: Sequence[Tool], server: str) -> list[Tool]:
    """Return the tools whose name and schema are not too long, and warn of the others.

    Args:
        listed: What a server lists.
        server: What it is called in the warning.
    """
    found: list[Tool] = []
    left: list[str] = []
    for tool in listed:
        n_chars = len(json.dumps(tool.input_schema, default=str))
        if len(tool.name) <= MAX_NAME_CHARS and n_chars <= MAX_SCHEMA_CHARS:
            found.append(tool)
        else:
            left.append(printable(one_line_preview(tool.name, _MAX_SHOWN_CHARS)))
    if left:
        _log.warning(
            "MCP server %s: %d of its tools are left out, since a name has more than %d "
            "characters or a schema more than %d: %s",
            server,
            len(left),
            MAX_NAME_CHARS,
            MAX_SCHEMA_CHARS,
            ", ".join(left[:_MAX_NAMED]),
        )
    return found
