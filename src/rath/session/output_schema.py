"""JSON Schemas of typed answers, and how a request says them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from rath._core.dataclasses import dataclass
from rath.llm.chat_request import RathLLMFunctionTool

FINAL_ANSWER = "final_answer"
"""Name of the tool that takes a typed answer; a number follows where a tool of the run has it."""

WRAPPED = "value"
"""Member of the object that stands for an answer which is none itself."""

_DESCRIPTION = (
    "Takes your final answer. Call it once, when you have all that you need; the arguments are "
    "the answer, and nothing is read but them."
)


class Unfit(Exception):
    """A text makes no object of a type; says why, in words for the model."""

    @classmethod
    def because_of(cls, error: BaseException) -> Unfit:
        """Return the text about an error that the code of the type raised."""
        try:
            return cls(f"{type(error).__name__}: {error}")
        except BaseException:  # noqa: BLE001  # an error of the user whose own text fails
            return cls(type(error).__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputSpec:
    """The typed answer that a run asks for, in the two forms that its requests may say it.

    Which of them a model call has depends on the model: the first stands in the parameters of its
    evidence, the second among its tools.
    """

    name: str
    """Name of the schema."""

    schema: Mapping[str, Any]
    """JSON Schema of type object that the endpoint holds an answer to."""

    strict: bool
    """Whether it is asked to do so to the letter."""

    tool: RathLLMFunctionTool
    """The tool whose arguments are the answer, where the endpoint takes no schema."""

    @property
    def response_format(self) -> dict[str, Any]:
        """The first form as a parameter of a request, as OpenAI's chat protocol has it."""
        fields = {"name": self.name, "schema": dict(self.schema), "strict": self.strict}
        return {"type": "json_schema", "json_schema": fields}

    def beside(self, taken: Iterable[str]) -> OutputSpec:
        """Return the same for a run that offers tools of the names `taken`."""
        names, name, count = set(taken), FINAL_ANSWER, 1
        while name in names:
            count += 1
            name = f"{FINAL_ANSWER}_{count}"
        return self if name == self.tool.name else replace(self, tool=replace(self.tool, name=name))


def output_spec(name: str, schema: Mapping[str, Any]) -> OutputSpec:
    """Return how a run that offers no other tools asks for an answer; O(size of the schema).

    Args:
        name: Name of its type.
        schema: JSON Schema of type object.
    """
    strict = strict_schema(schema)
    return OutputSpec(
        name=name,
        schema=schema if strict is None else strict,
        strict=strict is not None,
        tool=RathLLMFunctionTool(FINAL_ANSWER, dict(schema), _DESCRIPTION),
    )


def strict_schema(schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the form of a schema that endpoints enforce to the letter, None where it has none.

    They take a part of JSON Schema only: every object names all its properties, requires them and
    allows no others. A field with a default is therefore always given. Limits of numbers, texts
    and lists become words of the description, since several vendors refuse the keywords.
    """
    try:
        return _strict(schema)
    except _NotStrictError:
        return None


class _NotStrictError(Exception):
    """The schema says something that the strict form has no words for."""


_IN_WORDS = frozenset({
    "default", "examples", "exclusiveMaximum", "exclusiveMinimum", "format", "maxItems",
    "maxLength", "maximum", "minItems", "minLength", "minimum", "multipleOf", "pattern",
    "uniqueItems",
})  # fmt: skip
_LEFT_OUT = frozenset({
    "$comment", "$schema", "contentEncoding", "contentMediaType", "deprecated", "discriminator",
    "readOnly", "writeOnly",
    # These are said anew.
    "additionalProperties", "description", "required",
})  # fmt: skip
_JSON_TYPES: dict[type, str] = {
    bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null",
}  # fmt: skip


def _strict(schema: object) -> dict[str, Any]:
    if not isinstance(schema, Mapping):
        raise _NotStrictError
    source = cast("Mapping[str, Any]", schema)
    strict: dict[str, Any] = {}
    words: list[str] = []
    for key, value in source.items():
        if key in _IN_WORDS:
            if value is not None:
                words.append(f"{key}: {json.dumps(value, ensure_ascii=False, default=str)}")
        elif key not in _LEFT_OUT:
            strict |= _part(key, value, source)
    strict |= _describe(source.get("description"), words)
    return _close_object(strict, source)


def _part(key: str, value: Any, source: Mapping[str, Any]) -> dict[str, Any]:
    """Return one keyword of a schema in the strict form."""
    match key:
        case "properties" | "$defs":
            return {key: {name: _strict(part) for name, part in value.items()}}
        case "items":
            return {key: _strict(value)}
        case "anyOf" | "oneOf":
            return {"anyOf": [_strict(part) for part in value]}
        case "enum" | "const":
            values = value if key == "enum" else [value]
            return {"enum": list(values)} if "type" in source else _choice(values)
        case "$ref" | "type" | "title":
            return {key: value}
        case _:
            raise _NotStrictError


def _close_object(schema: dict[str, Any], source: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object that has these properties and no others; refuse what has no type."""
    kind = schema.get("type")
    if kind == "object" and source.get("additionalProperties", False) is False:
        properties = schema.setdefault("properties", {})
        return {**schema, "required": list(properties), "additionalProperties": False}
    if kind == "array" and "items" in schema:
        return schema
    if isinstance(kind, str) and kind not in ("object", "array"):
        return schema
    if "$ref" in schema and len(schema) > 1:
        # Several vendors let nothing stand beside a reference.
        return {"anyOf": [{"$ref": schema.pop("$ref")}], **schema}
    if kind is None and ("$ref" in schema or "anyOf" in schema):
        return schema
    raise _NotStrictError


def _describe(description: object, words: Sequence[str]) -> dict[str, Any]:
    note = ", ".join(words)
    if isinstance(description, str) and description:
        return {"description": f"{description} ({note})" if note else description}
    return {"description": note} if note else {}


def _choice(values: Sequence[object]) -> dict[str, Any]:
    """Return a choice among values, in parts that have one type each."""
    by_type: dict[str, list[object]] = {}
    for value in values:
        kind = _JSON_TYPES.get(type(value))
        if kind is None:
            raise _NotStrictError
        by_type.setdefault(kind, []).append(value)
    parts: list[dict[str, Any]] = [
        {"type": kind} if kind == "null" else {"type": kind, "enum": same}
        for kind, same in by_type.items()
    ]
    return parts[0] if len(parts) == 1 else {"anyOf": parts}
