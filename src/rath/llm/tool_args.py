"""The arguments of a tool call, which are text that a model wrote."""

from __future__ import annotations

import json
from typing import Any, cast

__all__ = ["parse_tool_arguments"]


def parse_tool_arguments(arg_str: str | None) -> tuple[dict[str, Any] | None, bool]:
    """Return the arguments as an object, and whether the text is something else than that.

    An empty text is no object and no error: some models write nothing for a call without
    arguments.
    """
    if not arg_str or arg_str.isspace():
        return None, False
    try:
        parsed: object = json.loads(arg_str)
    except (ValueError, RecursionError):
        return None, True
    if not isinstance(parsed, dict):
        return None, True
    return cast("dict[str, Any]", parsed), False
