"""Pydantic types of answers, as JSON Schema and back; imported only where one is used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, cast

import pydantic
from pydantic import PydanticUserError, TypeAdapter
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticSchemaGenerationError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import SchemaError, core_schema, to_jsonable_python

from rath._core.dataclasses import dataclass
from rath._core.text import one_line_preview
from rath.session.output_schema import WRAPPED, Unfit

MAX_FAULTS = 10
"""How many faults of one answer the model is told."""

MAX_INPUT_CHARS = 60
"""How much of a faulty value is shown."""

Schema = dict[str, Any]
Parse = Callable[[str], Any]


class ReadableSchemas(GenerateJsonSchema):
    """Schemas of types without those of which pydantic makes no object of any JSON."""

    def literal_schema(self, schema: core_schema.LiteralSchema) -> JsonSchemaValue:
        """Refuse members of an enum that is no text or number."""
        for one in schema["expected"]:
            if isinstance(one, Enum) and not isinstance(one, str | int):
                raise PydanticInvalidForJsonSchema(
                    f"a Literal of {one!r} takes no JSON value; write Literal[{one.value!r}], the "
                    "enum itself, or make it a StrEnum"
                )
        return super().literal_schema(schema)

    def is_subclass_schema(self, schema: core_schema.IsSubclassSchema) -> JsonSchemaValue:
        raise PydanticInvalidForJsonSchema("a class is no JSON; take its name")


def read_type(wanted: object) -> tuple[Schema, bool, Parse]:
    """Return the JSON Schema of a type, whether it is wrapped, and what makes objects of JSON.

    Raises:
        TypeError: Pydantic has no JSON Schema for it.
    """
    try:
        schema, parse = _adapt(wanted)
        is_wrapped = schema.get("type") != "object"
        if is_wrapped:
            schema, parse = _adapt_value(wanted)
    except (pydantic.PydanticUserError, pydantic.PydanticUndefinedAnnotation, SchemaError) as exc:
        raise TypeError(f"output={wanted!r:.80} has no JSON Schema: {exc}") from exc

    def read(text: str) -> Any:
        try:
            return parse(text)
        except pydantic.ValidationError as exc:
            raise Unfit(_in_words(exc)) from exc
        except (Exception, SystemExit) as exc:  # as with a tool: the model reads what went wrong
            raise Unfit.because_of(exc) from exc

    return schema, is_wrapped, read


def to_plain(value: object) -> Any:
    """Return an object of such a type as JSON can hold it."""
    return to_jsonable_python(value, fallback=str)


def _adapt(wanted: object) -> tuple[Schema, Parse]:
    adapter = pydantic.TypeAdapter[Any](cast("Any", wanted))
    schema = adapter.json_schema(schema_generator=ReadableSchemas)
    return _rooted(schema), adapter.validate_json


def _adapt_value(wanted: object) -> tuple[Schema, Parse]:
    """Return the same for an object whose one member is of the type."""
    fields: dict[str, Any] = {WRAPPED: (wanted, ...)}
    holder = pydantic.create_model("Answer", **fields)

    def parse(text: str) -> Any:
        return getattr(holder.model_validate_json(text), WRAPPED)

    return holder.model_json_schema(schema_generator=ReadableSchemas), parse


def _rooted(schema: Schema) -> Schema:
    """Return a schema whose root is no reference, as that of a type that holds itself is."""
    reference = schema.get("$ref")
    if not isinstance(reference, str):
        return schema
    root: Schema = schema["$defs"][reference.removeprefix("#/$defs/")]
    return {**root, "$defs": schema["$defs"]}


def _in_words(error: pydantic.ValidationError) -> str:
    """Describe the problems, place by place."""
    faults = error.errors(include_url=False, include_context=False)
    listed = [_fault(cast("Mapping[str, Any]", fault)) for fault in faults[:MAX_FAULTS]]
    if len(faults) > MAX_FAULTS:
        listed.append(f"and {len(faults) - MAX_FAULTS} more")
    return "; ".join(listed)


def _fault(fault: Mapping[str, Any]) -> str:
    message: str = fault["msg"]
    if fault["type"] == "json_invalid":
        return f"it is not JSON: {message.removeprefix('Invalid JSON: ')}"
    place = ".".join(str(step) for step in fault["loc"]) or "the whole"
    if fault["type"] == "missing":
        return f"{place}: {message}"
    return f"{place}: {message}, not {one_line_preview(repr(fault['input']), MAX_INPUT_CHARS)}"


@dataclass(frozen=True, slots=True)
class AnswerType:
    """A type that an answer shall have."""

    schema: Mapping[str, Any]
    read: Parse
    """Gives the object that a JSON text makes, or raises a ValueError."""


def answer_type(wanted: Any) -> AnswerType:
    """Return how a type is asked for.

    Raises:
        TypeError: It is none that has a JSON Schema.
    """
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(wanted)
        schema = adapter.json_schema(schema_generator=ReadableSchemas)
        return AnswerType(schema, adapter.validate_json)
    except (PydanticUserError, PydanticSchemaGenerationError) as exc:
        raise TypeError(
            f"the schema of a question must be a JSON Schema or a type that has one, not "
            f"{wanted!r:.80}: {exc}"
        ) from exc
