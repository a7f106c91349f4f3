"""The one tool that every loop by hand offers."""

from __future__ import annotations

import json
from typing import Any

SYSTEM = "You add numbers with the tool."
QUESTION = "Add them all."
DESCRIPTION = "Add two integers."
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}


def add(arguments: str) -> str:
    """Call the tool with the model's JSON arguments."""
    parsed = json.loads(arguments)
    return str(parsed["a"] + parsed["b"])
