"""Types as answers to questions of tools: their JSON Schemas, and objects made of the answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import PydanticUserError, TypeAdapter
from pydantic.errors import PydanticSchemaGenerationError

from rath.session.output.pydantic_type import ReadableSchemas


@dataclass(frozen=True, slots=True)
class AnswerType:
    """A type that an answer shall have."""

    schema: Mapping[str, Any]
    adapter: TypeAdapter[Any]

    def read(self, text: str) -> Any:
        """Return the object that a JSON text makes.

        Raises:
            ValueError: It makes none.
        """
        return self.adapter.validate_json(text)


def answer_type(wanted: Any) -> AnswerType:
    """Return how a type is asked for.

    Raises:
        TypeError: It is none that has a JSON Schema.
    """
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(wanted)
        return AnswerType(adapter.json_schema(schema_generator=ReadableSchemas), adapter)
    except (PydanticUserError, PydanticSchemaGenerationError) as exc:
        raise TypeError(
            f"the schema of a question must be a JSON Schema or a type that has one, not "
            f"{wanted!r:.80}: {exc}"
        ) from exc
