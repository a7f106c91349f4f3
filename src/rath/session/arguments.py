"""Arguments of a tool call: parsed, and checked against the tool's JSON Schema."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple, Protocol, runtime_checkable

from rath.llm.tool_args import parse_tool_arguments

MAX_RAW_CHARS = 2000
"""How much of unparseable arguments the model is shown again."""


class BadArguments(Exception):
    """The arguments of a call cannot be used; `detail` shows what the model wrote."""

    def __init__(self, message: str, detail: str | None = None) -> None:
        self.detail = detail
        super().__init__(message)


@runtime_checkable
class ChecksArguments(Protocol):
    """A tool that checks its arguments itself, in place of the check against its schema."""

    def check_arguments(self, arguments: Mapping[str, Any], /) -> None:
        """Check parsed arguments; raises `BadArguments` where they do not fit."""
        ...


class ArgumentChecker:
    """Checks arguments against schemas; each schema is compiled once."""

    def __init__(self) -> None:
        self._validators: dict[str, Any] = {}

    def parse(self, tool: str, text: str) -> dict[str, Any]:
        """Return the arguments that the model wrote; empty text means no arguments.

        Raises:
            BadArguments: The text is no JSON object.
        """
        arguments, is_error = parse_tool_arguments(text)
        if is_error:
            cut = text[:MAX_RAW_CHARS] + ("...(truncated)" if len(text) > MAX_RAW_CHARS else "")
            raise BadArguments(f"non-JSON or unparseable arguments for tool {tool!r}", cut)
        return arguments or {}

    def check_call(
        self, tool: object, name: str, schema: Mapping[str, Any], arguments: Mapping[str, Any]
    ) -> None:
        """Check parsed arguments by the tool's own check where it has one, else by its schema.

        Raises:
            BadArguments: They do not fit.
        """
        if isinstance(tool, ChecksArguments):
            tool.check_arguments(arguments)
        else:
            self.check(name, schema, arguments)

    def check(self, tool: str, schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
        """Check parsed arguments.

        Raises:
            BadArguments: They do not fit; the text names the place and what was expected.
        """
        validator = self._validators.get(tool)
        if validator is None:
            validator = self._validators[tool] = _compile(schema)
        errors = sorted(validator.iter_errors(dict(arguments)), key=lambda error: error.json_path)
        if errors:
            listed = "; ".join(f"{error.json_path}: {error.message}" for error in errors[:5])
            raise BadArguments(
                f"the arguments for tool {tool!r} do not fit its schema: {listed}",
                json.dumps(dict(arguments), ensure_ascii=False, default=str)[:MAX_RAW_CHARS],
            )


def check_value(schema: Mapping[str, Any], value: object) -> None:
    """Check any value that is JSON, also by the formats that the library knows, such as dates.

    Raises:
        BadArguments: It does not fit, or the schema is none.
    """
    try:
        validator = _compile(schema)
        strict = validator.evolve(format_checker=validator.FORMAT_CHECKER)
        errors = sorted(strict.iter_errors(value), key=lambda error: error.json_path)
    except Exception as exc:  # what the library says of a broken schema has many classes
        raise BadArguments(f"its schema cannot be used: {type(exc).__name__}: {exc}") from exc
    if errors:
        listed = "; ".join(f"{error.json_path}: {error.message}" for error in errors[:5])
        raise BadArguments(listed)


class _Library(NamedTuple):
    """What is used of jsonschema, which costs tens of milliseconds to import."""

    validator_for: Any
    default: Any
    registry: Any


@cache
def load_library() -> None:
    """Import the schema library; blocks, so it is called on a worker before the first check."""
    _library()


def is_library_loaded() -> bool:
    """Tell whether the schema library was imported."""
    return load_library.cache_info().currsize > 0


@cache
def _library() -> _Library:
    # On first use: many runs call no tool.
    from jsonschema import Draft202012Validator  # noqa: PLC0415
    from jsonschema.validators import validator_for  # noqa: PLC0415
    from referencing.jsonschema import EMPTY_REGISTRY  # noqa: PLC0415

    return _Library(validator_for, Draft202012Validator, EMPTY_REGISTRY)


def _compile(schema: Mapping[str, Any]) -> Any:
    library = _library()
    # With a registry of its own the library never fetches a remote reference.
    kind = library.validator_for(dict(schema), default=library.default)
    return kind(dict(schema), registry=library.registry)
