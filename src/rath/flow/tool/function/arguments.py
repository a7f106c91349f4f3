"""Arguments of one tool: from the JSON that a model wrote to the values that a function takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pydantic
import pydantic_core

from rath._core.text import valid_unicode
from rath.flow.tool.function.faults import in_words
from rath.flow.tool.function.schema import Adapter
from rath.session.tooling import MAX_RAW_CHARS, BadArguments


@dataclass(frozen=True, slots=True)
class Arguments:
    """What a function takes of a model."""

    schema: Mapping[str, Any]
    """Their JSON Schema, which the model is told."""

    adapter: Adapter

    def read(self, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values for the parameters, defaults among them.

        Raises:
            BadArguments: They do not fit; the text names the places and what was expected.
        """
        text = _json(tool, arguments)
        try:
            return self.adapter.validate_json(text)
        except pydantic.ValidationError as exc:
            raise BadArguments(
                f"the arguments for tool {tool!r} do not fit: "
                f"{in_words(exc, arguments, list(self.schema['properties']))}",
                text.decode()[:MAX_RAW_CHARS],
            ) from exc


def _json(tool: str, arguments: Mapping[str, Any]) -> bytes:
    """Return the arguments as JSON; values of Python are taken too, from a caller in Python."""
    given = dict(arguments)
    try:
        return pydantic_core.to_json(given, bytes_mode="base64")
    except ValueError as exc:
        raise BadArguments(
            f"the arguments for tool {tool!r} cannot be written as JSON: {exc}",
            valid_unicode(repr(given))[:MAX_RAW_CHARS],
        ) from exc
