"""Typed answers: the type that was asked for, and texts of a model read as that type."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import UnionType
from typing import Any, Protocol, cast, get_origin
from uuid import UUID

from rath._core.text import one_line_preview
from rath.errors import OutputError
from rath.session.chunk import ChunkRow, ChunkTable
from rath.session.content import AssistantTurn
from rath.session.outcome import Completed, Outcome, OutputMissing, OutputValue
from rath.session.output.schema import FINAL_ANSWER, WRAPPED, OutputSpec, Unfit, output_spec
from rath.session.record import Operation, Record, evidence_of, last_text

_FENCE = re.compile(r"```(?:json)?[ \t]*\n(.*?)```", re.DOTALL | re.IGNORECASE)
_NOT_IN_A_NAME = re.compile(r"[^a-zA-Z0-9_-]+")
_A_TOOL_OF_OURS = re.compile(rf"{FINAL_ANSWER}(?:_[1-9]\d*)?")
PREVIEW_CHARS = 200
"""How much of an answer an error shows."""


@dataclass(frozen=True, slots=True, eq=False)
class OutputForm:
    """A type that an answer shall have; made once for any number of answers."""

    name: str
    """Name of the type, in letters that every vendor takes."""

    schema: Mapping[str, Any]
    """JSON Schema of type object."""

    spec: OutputSpec
    """How a run asks for it, worked out once."""

    is_wrapped: bool
    """Whether the answer is the member "value" of that object, as the type makes no object."""

    read: Callable[[str], Any]
    """Gives the object that a JSON text makes, or raises Unfit; runs the type's own validators."""

    def read_said(self, text: str) -> Any:
        """Return the object that stands in what a model said: all of it, or a fenced block.

        Raises:
            Unfit: No part of the text fits; says what is wrong with the likeliest one.
        """
        problem: Unfit | None = None
        for candidate in _candidates(text):
            try:
                return self.read(_held(candidate) if self.is_wrapped else candidate)
            except Unfit as exc:
                problem = problem or exc
        raise problem or Unfit("it is empty")


def output_form(wanted: object) -> OutputForm:
    """Return the form of a type; loads pydantic.

    Raises:
        TypeError: It is no type, or one that pydantic has no JSON Schema for.
    """
    if isinstance(wanted, OutputForm):
        return wanted
    if not isinstance(wanted, type | UnionType) and get_origin(wanted) is None:
        raise TypeError(
            f"output must be a type, such as a subclass of pydantic.BaseModel, not {wanted!r:.80}"
        )
    # On first use: most runs ask for text, and `import rath.flow` must not load pydantic.
    from rath.session.output.pydantic_type import read_type  # noqa: PLC0415

    schema, is_wrapped, read = read_type(wanted)
    name = _NOT_IN_A_NAME.sub("_", getattr(wanted, "__name__", "")).strip("_")
    name = name[:64] or "answer"
    return OutputForm(name, schema, output_spec(name, schema), is_wrapped, read)


class _Ended(Protocol):
    """What is asked of a session to read its answer."""

    @property
    def id(self) -> UUID: ...

    @property
    def outcome(self) -> Outcome: ...
    @property
    def chunk_table(self) -> ChunkTable: ...
    @property
    def record(self) -> Record: ...


class TypedReading:
    """What a session says of its typed answer."""

    __slots__ = ()

    @property
    def output(self: _Ended) -> Any:
        """The object that the run was asked for with `output=`, of that type; waits for the run.

        It stays with forks, and is made by a run: one that goes on from here has its own.

        Raises:
            OutputError: There is none. The text says what came instead; `text()` is not touched.
        """
        outcome = self.outcome
        match outcome:
            case Completed(OutputValue(value)):
                return value
            case Completed(OutputMissing(problem)):
                raise OutputError(f"session {self.id} has no output: {problem}")
            case Completed():
                raise OutputError(
                    f"session {self.id} has no output: no run was asked for one. Ask with "
                    "Agent(..., output=Model); a session that was loaded from a file reads its "
                    "last answer again with session.output_as(Model)"
                )
            case _:
                raise OutputError(
                    f"session {self.id} has no output: its run ended as {outcome!r} before an "
                    "answer of the type was there"
                )

    def output_as(self: _Ended, model: object) -> Any:
        """Return the last answer of the rows as an object of a type; waits for the run.

        Serves a session that was loaded, which has rows and no object, and asks no model.

        Args:
            model: A type as for `Agent(..., output=...)`.

        Raises:
            TypeError: It is no such type.
            OutputError: The last answer does not fit it, or there is none.
        """
        form = output_form(model)
        for row in reversed(self.chunk_table):
            if isinstance(row.content, AssistantTurn):
                given = _answering(row.content, _asked_by(self.record, row))
                said = given or [row.content.text or ""]
                return _read_first(self.id, form, said)
        raise OutputError(f"session {self.id} holds no answer of a model to read as {form.name}")


def plain_answer(session: _Ended) -> Any:
    """Return the last answer as JSON can hold it: text, or what a typed answer says; waits.

    A session that was loaded has the same answer. None where there is none.
    """
    outcome = session.outcome
    if isinstance(outcome, Completed) and isinstance(outcome.output, OutputValue):
        # On first use, like all of pydantic.
        from rath.session.output.pydantic_type import to_plain  # noqa: PLC0415

        return to_plain(outcome.output.value)
    row = next((row for row in reversed(session.chunk_table) if _is_said(row)), None)
    asked = None if row is None else _asked_by(session.record, row)
    if row is not None and asked is not None and asked.output is not None:
        content = row.content
        assert isinstance(content, AssistantTurn)
        for said in _answering(content, asked) or [content.text or ""]:
            with contextlib.suppress(ValueError, RecursionError):
                return _unwrapped(json.loads(said))
    return last_text(session.chunk_table, session.record)


def _unwrapped(given: Any) -> Any:
    if not isinstance(given, dict):
        return given
    members = cast("dict[str, Any]", given)
    return members[WRAPPED] if members.keys() == {WRAPPED} else members


def _is_said(row: ChunkRow) -> bool:
    return isinstance(row.content, AssistantTurn)


def _asked_by(record: Record, row: ChunkRow) -> Operation | None:
    """Return the run that asked for the answer in `row`, None where the record does not tell."""
    call = evidence_of(record, row)
    if call is None:
        return None
    runs = (entry for entry in record if isinstance(entry, Operation))
    return next((run for run in runs if run.operation == call.operation), None)


def _answering(turn: AssistantTurn, asked_by: Operation | None) -> list[str]:
    """Return the arguments of the calls that give the answer."""
    if asked_by is not None:
        name = None if asked_by.output is None else asked_by.output.tool.name
    else:
        # A loaded session: of the names that the tool may have, the one that was free last.
        names = {call.name for call in turn.calls if _A_TOOL_OF_OURS.fullmatch(call.name)}
        name = max(names, key=lambda one: (len(one), one), default=None)
    return [call.arguments for call in turn.calls if call.name == name]


def _read_first(session: UUID, form: OutputForm, said: Sequence[str]) -> Any:
    """Return the first of `said` that fits, as the run itself did."""
    problem: Unfit | None = None
    for text in said:
        try:
            return form.read_said(text)
        except Unfit as exc:
            problem = exc
    raise OutputError(
        f"the last answer of session {session} is no {form.name}: {problem}. It begins: "
        f"{one_line_preview(said[-1], PREVIEW_CHARS)!r}"
    ) from problem


def _held(text: str) -> str:
    """Return JSON text as the member of an object, unless it is such an object already."""
    try:
        given: object = json.loads(text)
    except (ValueError, RecursionError):
        return text
    is_held = isinstance(given, dict) and WRAPPED in given
    return text if is_held else f'{{"{WRAPPED}": {text}}}'


def _candidates(text: str) -> Iterator[str]:
    """Yield the parts of a text that may be the answer, the likeliest first."""
    fenced = [found.group(1).strip() for found in _FENCE.finditer(text)]
    # What a model comes to stands at the end.
    yield from reversed(fenced)
    if text.strip():
        yield text.strip()
