"""Questions of tools: `rath.ask` inside a call, and the answers that it was given."""

from __future__ import annotations

import contextvars
import json
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn, cast
from uuid import UUID

from rath._core.options import value_scope
from rath._core.text import valid_unicode
from rath.session.content import json_digest


@dataclass(frozen=True, slots=True)
class Question:
    """A question of a tool."""

    text: str
    schema: Mapping[str, Any] | None = None
    """JSON Schema of the answer, None where any will do."""

    @property
    def digest(self) -> str:
        """The digest that binds an answer: a tool that asks something else has no answer yet."""
        return json_digest([self.text, None if self.schema is None else dict(self.schema)])


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer to a question."""

    question: Question
    text: str
    """JSON."""


@dataclass(frozen=True, slots=True)
class InnerRun:
    """A run inside a call that waits for somebody."""

    child: UUID
    outcome: Any
    """How it stands: a `Suspended`."""

    session: Any
    """The session itself, so that one in memory is found again."""


class Suspension(BaseException):
    """Leaves a tool whose call waits; no `Exception`, so that `except Exception` lets it pass."""


class CurrentCall:
    """One making of a call: what it asks, and what it was given for that.

    Args:
        answers: What was said to its questions, in their order.
        is_edited: Whether it is made with other arguments than the model gave.
    """

    __slots__ = ("_answers", "_lock", "is_edited", "waits")

    def __init__(self, answers: Sequence[Answer] = (), *, is_edited: bool = False) -> None:
        self._answers = list(answers)
        # Tasks and threads of a tool may ask side by side.
        self._lock = threading.Lock()
        self.is_edited = is_edited
        self.waits: Question | InnerRun | None = None
        """What it waits for, once it does."""

    def answer(self, question: Question) -> str:
        """Return the next answer to a question, as JSON.

        Raises:
            Suspension: There is none yet.
        """
        with self._lock:
            fitting = (one for one in self._answers if one.question.digest == question.digest)
            matching = next(fitting, None) if self.waits is None else None
            if matching is not None:
                self._answers.remove(matching)
                return matching.text
        self.wait_for(question)

    def wait_for(self, what: Question | InnerRun) -> NoReturn:
        """Leave the tool, for what it waits for first.

        Raises:
            Suspension: Always.
        """
        self.waits = self.waits or what
        raise Suspension("the call waits, and will be made again; let this exception pass")


_current: contextvars.ContextVar[CurrentCall | None] = contextvars.ContextVar(
    "rath_current_call", default=None
)


@contextmanager
def in_call(call: CurrentCall | None) -> Generator[None]:
    """Say that what runs inside is `call`; None for what belongs to no call of its own."""
    with value_scope(_current, call):
        yield


def call_here() -> CurrentCall | None:
    """Return the call inside which the current code runs, None where it runs inside none."""
    return _current.get()


def current_call(caller: str) -> CurrentCall:
    """Return the call inside which the current code runs.

    Raises:
        RuntimeError: It runs inside none.
    """
    call = _current.get()
    if call is None:
        raise RuntimeError(
            f"{caller} was called outside of a tool call: only a tool that a model has called "
            "can wait for somebody. Call it in the tool itself; a thread that the tool started "
            "needs its context, contextvars.copy_context().run(...)"
        )
    return call


def ask(question: str, schema: Any = None) -> Any:
    """Ask whoever runs the program, from inside a tool, and return the answer.

    Where there is no answer yet the run ends with the outcome `NeedsInput`. `session.answer(...)`
    gives it, and when the run goes on the tool is called again from its start: the questions that
    were answered return their answers at once; one that is asked several times, in order. So
    everything a tool does before `ask` must be idempotent, and it must ask the same again; an
    answer to another question is not used.

    Args:
        question: What somebody shall read.
        schema: What the answer shall be: a JSON Schema, or a type that pydantic knows. Any JSON
            value by default.

    Returns:
        The answer; an object of the type where `schema` is one.

    Raises:
        RuntimeError: It is called outside of a tool call.
        TypeError: `question` is no text, or `schema` is neither a JSON Schema nor a type.
        ValueError: The answer is no value of the type, by a check that no JSON Schema can say.
    """
    call = current_call("rath.ask")
    if not isinstance(question, str):
        raise TypeError(f"a question is a str, not {type(question).__name__}")
    text = valid_unicode(question)
    if schema is None or isinstance(schema, Mapping):
        plain_schema = None if schema is None else _as_json(cast("Mapping[str, Any]", schema))
        return json.loads(call.answer(Question(text, plain_schema)))
    # On first use: few tools ask, and `import rath` must not load pydantic.
    from rath.session.output_types import answer_type  # noqa: PLC0415

    wanted = answer_type(schema)
    return wanted.read(call.answer(Question(text, wanted.schema)))


def _as_json(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a JSON Schema as the record holds it: an answer is bound to what it says.

    Raises:
        TypeError: It has no JSON form.
    """
    try:
        written = json.dumps(dict(schema), ensure_ascii=False, allow_nan=False)
        return cast("Mapping[str, Any]", json.loads(valid_unicode(written)))
    except (TypeError, ValueError, RecursionError) as exc:
        raise TypeError(
            f"the schema of a question cannot be written as JSON ({exc}); use None, bool, int, "
            "float, str, list and dict in it"
        ) from exc
