"""Arguments of a tool: their JSON Schema, and checking what a model wrote against it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NotRequired, cast, get_args, get_origin

import pydantic
import pydantic_core
from pydantic.errors import PydanticErrorMixin, PydanticInvalidForJsonSchema
from pydantic.fields import FieldInfo
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import SchemaError, core_schema
from typing_extensions import TypedDict

from rath._core.dataclasses import dataclass
from rath._core.text import one_line_preview, valid_unicode
from rath.flow.tool.function.source import ToolParameter, ToolSource
from rath.session.output_types import ReadableSchemas
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
    values = dict(arguments)
    try:
        return pydantic_core.to_json(values, bytes_mode="base64")
    except ValueError as exc:
        raise BadArguments(
            f"the arguments for tool {tool!r} cannot be written as JSON: {exc}",
            valid_unicode(repr(values))[:MAX_RAW_CHARS],
        ) from exc


_CONFIG = pydantic.ConfigDict(extra="forbid", val_json_bytes="base64", ser_json_bytes="base64")
_KEY = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
"""Names of arguments that every vendor takes: Anthropic's tool schemas are the narrowest."""

_MAX_REASON_CHARS = 300
_NO_SCHEMA = (
    pydantic.PydanticUserError,
    pydantic.PydanticUndefinedAnnotation,
    SchemaError,
    TypeError,
    ValueError,
    NameError,
)

Adapter = pydantic.TypeAdapter[dict[str, Any]]


def arguments_type(
    source: ToolSource, parameters: Sequence[ToolParameter], described: Mapping[str, str]
) -> tuple[Adapter, dict[str, Any]]:
    """Return what makes arguments of JSON, and the JSON Schema that a model is told.

    Raises:
        TypeError: A type has no JSON Schema, or a name is none that vendors take.
    """
    try:
        adapter, schema = _adapter_of(parameters, described)
    except _NO_SCHEMA as exc:
        raise _refusal(source, parameters, described, exc) from exc
    for key in schema["properties"]:
        if not _KEY.fullmatch(key):
            raise source.refuse(
                f"the argument {key!r} has a name that not every model takes; expected up to 64 "
                "letters of a to z, digits, and _ . -; name it anew with "
                'Annotated[..., Field(alias="...")]'
            )
    return adapter, schema


def _adapter_of(
    parameters: Sequence[ToolParameter], described: Mapping[str, str]
) -> tuple[Adapter, dict[str, Any]]:
    # A TypedDict and no model: a parameter may have any name, `schema` and `_x` among them.
    members = {one.name: _member(one, described.get(one.name)) for one in parameters}
    kind: Any = cast("Any", TypedDict)("Arguments", members)
    kind.__pydantic_config__ = _CONFIG
    adapter = Adapter(kind)
    schema = adapter.json_schema(schema_generator=_ForModels)
    schema.pop("title", None)
    return adapter, {"type": "object", "properties": {}, **schema}


def _member(one: ToolParameter, described: str | None) -> Any:
    """Return the hint of a parameter with its default and what is said of it."""
    hint, marks = one.hint, list[Any]()
    if get_origin(hint) is Annotated:
        hint, *marks = get_args(hint)
        marks = [pydantic.Field(description=m) if isinstance(m, str) else m for m in marks]
    is_field = isinstance(one.default, FieldInfo)
    if is_field:
        marks.append(one.default)
    fields = [mark for mark in marks if isinstance(mark, FieldInfo)]
    has_default = any(not field.is_required() for field in fields)
    if described and not any(field.description for field in fields):
        marks.append(pydantic.Field(description=described))
    if one.default is not inspect.Parameter.empty and not is_field:
        marks.append(pydantic.Field(default=one.default))
        has_default = True
    for mark in marks:
        hint = Annotated[hint, mark]
    return NotRequired[hint] if has_default else hint


def _refusal(
    source: ToolSource,
    parameters: Sequence[ToolParameter],
    described: Mapping[str, str],
    error: Exception,
) -> TypeError:
    """Return the error that names the parameter whose type it is."""
    for one in parameters:
        try:
            _adapter_of([one], described)
        except _NO_SCHEMA as exc:
            named = getattr(one.hint, "__name__", None) if isinstance(one.hint, type) else None
            hint = named or one_line_preview(repr(one.hint), 80)
            return source.refuse(
                f"parameter {one.name!r} has a type that JSON cannot hold, "
                f"{hint} ({_reason(exc)}); expected what "
                "pydantic makes of JSON: str, int, list, dict, a model, a dataclass, a date; take "
                "that, and make the object of it in the function"
            )
    return source.refuse(f"its parameters together have no JSON Schema ({_reason(error)})")


def _reason(error: Exception) -> str:
    if isinstance(error, PydanticErrorMixin):
        if error.code == "schema-for-unknown-type":
            return "pydantic does not know it"
        text = error.message
    else:
        text = str(error)
    return one_line_preview(text.partition("\n")[0] or type(error).__name__, _MAX_REASON_CHARS)


class _ForModels(ReadableSchemas):
    """The schemas of pydantic in the words that models and their vendors understand."""

    # A default that JSON cannot hold is still the function's default.
    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012  # as the base has it

    def field_title_should_be_set(self, schema: Any) -> bool:
        """Leave out titles, which only repeat the names."""
        return False

    def bytes_schema(self, schema: core_schema.BytesSchema) -> JsonSchemaValue:
        schema_of_type = super().bytes_schema(schema)
        if schema_of_type.get("format") == "base64url":  # both alphabets are read
            del schema_of_type["format"]
            schema_of_type["contentEncoding"] = "base64"
        return schema_of_type

    def get_decimal_pattern(self, schema: core_schema.DecimalSchema) -> str | None:
        """Leave out the pattern, whose look-aheads vendors refuse."""
        return None

    def tuple_schema(self, schema: core_schema.TupleSchema) -> JsonSchemaValue:
        return _with_items(super().tuple_schema(schema))

    def named_tuple_schema(self, schema: Any) -> JsonSchemaValue:
        return _with_items(super().named_tuple_schema(schema))

    # What older versions of pydantic make of a named tuple.
    def p_arguments_schema(
        self, arguments: list[core_schema.ArgumentsParameter], var_args_schema: Any
    ) -> JsonSchemaValue:
        return _with_items(super().p_arguments_schema(arguments, var_args_schema))

    def generator_schema(self, schema: core_schema.GeneratorSchema) -> JsonSchemaValue:
        raise PydanticInvalidForJsonSchema(
            "an iterator is checked only while it is read; write list[...] or Sequence[...]"
        )


def _with_items(schema_of_type: JsonSchemaValue) -> JsonSchemaValue:
    """Say `items` beside `prefixItems`: OpenAI refuses an array without it."""
    parts = schema_of_type.get("prefixItems", [])
    if parts and "items" not in schema_of_type:
        kinds = [part for at, part in enumerate(parts) if part not in parts[:at]]
        schema_of_type["items"] = kinds[0] if len(kinds) == 1 else {"anyOf": kinds}
    return schema_of_type


MAX_FAULTS = 10
"""How many faults of one call the model is told."""

MAX_INPUT_CHARS = 60
"""How much of a faulty value is shown."""

_ABSENT = ("missing", "missing_argument", "missing_positional_only_argument")
_PREFIXES = ("Value error, ", "Assertion failed, ")


def in_words(error: pydantic.ValidationError, arguments: object, names: Sequence[str]) -> str:
    """Return what is wrong, place by place.

    Args:
        error: What pydantic found.
        arguments: The arguments as the model wrote them.
        known: Names of the arguments there are.
    """
    errors = error.errors(include_url=False, include_context=False)
    listed = [
        _fault(cast("Mapping[str, Any]", fault), arguments, names) for fault in errors[:MAX_FAULTS]
    ]
    if len(errors) > MAX_FAULTS:
        listed.append(f"and {len(errors) - MAX_FAULTS} more")
    return "; ".join(listed)


def _fault(fault: Mapping[str, Any], arguments: object, names: Sequence[str]) -> str:
    kind, steps = fault["type"], fault["loc"]
    is_absent = kind in _ABSENT
    place = _place(steps, arguments, is_absent=is_absent)
    if is_absent:
        return f"{place}: is required and missing"
    if kind == "extra_forbidden":
        there = ", ".join(names) or "none"
        return f"{place}: is not known" + (f"; there are: {there}" if len(steps) == 1 else "")
    message: str = fault["msg"]
    for prefix in _PREFIXES:
        message = message.removeprefix(prefix)
    return f"{place}: {message}, not {one_line_preview(repr(fault['input']), MAX_INPUT_CHARS)}"


def _step_text(step: int | str) -> str:
    return f"[{step}]" if isinstance(step, int) else f".{one_line_preview(step, MAX_INPUT_CHARS)}"


def _holds(value: Any, step: int | str) -> bool:
    if isinstance(value, list):
        return isinstance(step, int) and step < len(cast("list[object]", value))
    return isinstance(value, Mapping) and step in value


def _place(steps: Sequence[int | str], arguments: object, *, is_absent: bool) -> str:
    """Return a path such as `order.items[2]`; which case of a union was tried is said behind it."""
    at: Any = arguments
    path, cases = "", list[str]()
    for nr, step in enumerate(steps, 1):
        if _holds(at, step):
            path, at = path + _step_text(step), at[step]
        elif is_absent and nr == len(steps):
            path += _step_text(step)
        else:
            cases.append(str(step))
    cases_note = f" (as {', '.join(cases)})" if cases else ""
    return (path.removeprefix(".") or "the arguments") + cases_note
