"""Typed answers: how a model is asked for one, and how its answer is read and checked."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import partial
from types import MappingProxyType, UnionType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast, get_origin, overload
from uuid import UUID

from rath._async.runtime import runtime
from rath._core.dataclasses import dataclass
from rath._core.lazy_imports import lazy_modules
from rath._core.references import Reduction, Referenced
from rath._core.text import one_line_preview
from rath.errors import InvalidRequestError, OutputError
from rath.llm.evidence import Exchange
from rath.llm.evidence import evidence_of as exchange_evidence
from rath.llm.tool_args import parse_tool_arguments
from rath.session.base import SessionBase
from rath.session.content import AssistantTurn, ToolCall, encode_failure, encode_result
from rath.session.outcome import Completed, OutputMissing, OutputValue
from rath.session.output_schema import FINAL_ANSWER, WRAPPED, OutputSpec, Unfit, output_spec
from rath.session.record import Operation, Purpose, evidence_of, last_text
from rath.session.tooling import ToolOffer, offer

if TYPE_CHECKING:
    from rath.session.calls import results
    from rath.session.calls.requests import ProviderCandidate
else:
    (results,) = lazy_modules(__name__, "rath.session.calls.results")


T = TypeVar("T")
if TYPE_CHECKING:
    import typing_extensions

    OutputT_co = typing_extensions.TypeVar("OutputT_co", default=Any, covariant=True)
else:
    # That a bare `Session` is a `Session[Any]` concerns checkers of types alone.
    OutputT_co = TypeVar("OutputT_co", covariant=True)

_FENCE = re.compile(r"```(?:json)?[ \t]*\n(.*?)```", re.DOTALL | re.IGNORECASE)
_NOT_IN_A_NAME = re.compile(r"[^a-zA-Z0-9_-]+")
_A_TOOL_OF_OURS = re.compile(rf"{FINAL_ANSWER}(?:_[1-9]\d*)?")
PREVIEW_CHARS = 200
"""How much of an answer an error shows."""


@dataclass(frozen=True, slots=True, eq=False)
class OutputForm(Referenced):
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

    wanted: Any = None
    """The type itself; None in a replay."""

    def _pickle_reference(self) -> Reduction:
        """Return the type, of which all else is made."""
        return output_form, (self.wanted,)

    def read_answer(self, text: str) -> Any:
        """Return the object that stands in what a model said: all of it, or a fenced block.

        Raises:
            Unfit: No part of the text fits; says what is wrong with the likeliest one.
        """
        problem: Unfit | None = None
        for candidate in _candidates(text):
            try:
                return self.read(_wrap(candidate) if self.is_wrapped else candidate)
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
    from rath.session.output_types import read_type  # noqa: PLC0415

    schema, is_wrapped, read = read_type(wanted)
    name = _NOT_IN_A_NAME.sub("_", getattr(wanted, "__name__", "")).strip("_")
    name = name[:64] or "answer"
    return OutputForm(name, schema, output_spec(name, schema), is_wrapped, read, wanted)


class TypedReading(SessionBase, Generic[OutputT_co]):
    """The typed answer of a session."""

    __slots__ = ()

    @property
    def output(self) -> OutputT_co:
        """The object that the run was asked for with `output=`, of that type; waits for the run.

        It stays with forks, and is made by a run: one that goes on from here has its own.

        Raises:
            OutputError: There is none. The text says what came instead; `text()` is not touched.
        """
        outcome = self.outcome
        match outcome:
            case Completed(OutputValue(value)):
                return cast("OutputT_co", value)
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

    @overload
    def output_as(self, model: type[T]) -> T: ...
    @overload
    def output_as(self, model: object) -> Any: ...
    def output_as(self, model: object) -> Any:
        """Return the last answer of the rows as an object of a type; waits for the run.

        Serves a session that was loaded, which has rows and no object, and asks no model.

        Args:
            model: A type as for `Agent(..., output=...)`.

        Raises:
            TypeError: It is no such type.
            OutputError: The last answer does not fit it, or there is none.
        """
        form = output_form(model)
        last_turn = _last_turn(self)
        if last_turn is None:
            raise OutputError(
                f"session {self.id} holds no answer of a model to read as {form.name}"
            )
        return _read_first(self.id, form, _answering(*last_turn) or [last_turn[0].text or ""])


def plain_answer(session: SessionBase) -> Any:
    """Return the last answer as JSON can hold it: text, or what a typed answer says; waits.

    A session that was loaded has the same answer. None where there is none.
    """
    outcome = session.outcome
    if isinstance(outcome, Completed) and isinstance(outcome.output, OutputValue):
        # On first use, like all of pydantic.
        from rath.session.output_types import to_plain  # noqa: PLC0415

        return to_plain(outcome.output.value)
    last_turn = _last_turn(session)
    if last_turn is not None:
        turn, operation = last_turn
        if operation is not None and operation.output is not None:
            for text in _answering(turn, operation) or [turn.text or ""]:
                with contextlib.suppress(ValueError, RecursionError):
                    value: Any = json.loads(text)
                    members = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
                    return members[WRAPPED] if members.keys() == {WRAPPED} else cast("Any", value)
    return last_text(session.chunk_table, session.record)


def _last_turn(session: SessionBase) -> tuple[AssistantTurn, Operation | None] | None:
    """Return the last answer of a model, and the run that asked for it where the record tells."""
    for row in reversed(session.chunk_table):
        if isinstance(row.content, AssistantTurn):
            call = evidence_of(session.record, row)
            runs = (entry for entry in session.record if isinstance(entry, Operation))
            requesters = (
                run for run in runs if call is not None and run.operation == call.operation
            )
            return row.content, next(requesters, None)
    return None


def _answering(turn: AssistantTurn, operation: Operation | None) -> list[str]:
    """Return the arguments of the calls that give the answer."""
    if operation is not None:
        name = None if operation.output is None else operation.output.tool.name
    else:
        # A loaded session: of the names that the tool may have, the one that was free last.
        names = {call.name for call in turn.calls if _A_TOOL_OF_OURS.fullmatch(call.name)}
        name = max(names, key=lambda one: (len(one), one), default=None)
    return [call.arguments for call in turn.calls if call.name == name]


def _read_first(session: UUID, form: OutputForm, answers: Sequence[str]) -> Any:
    """Return the first of `answers` that fits, as the run itself did."""
    problem: Unfit | None = None
    for text in answers:
        try:
            return form.read_answer(text)
        except Unfit as exc:
            problem = exc
    raise OutputError(
        f"the last answer of session {session} is no {form.name}: {problem}. It begins: "
        f"{one_line_preview(answers[-1], PREVIEW_CHARS)!r}"
    ) from problem


def _wrap(text: str) -> str:
    """Return JSON text as the member of an object, unless it is such an object already."""
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        return text
    is_wrapped = isinstance(value, dict) and WRAPPED in value
    return text if is_wrapped else f'{{"{WRAPPED}": {text}}}'


def _candidates(text: str) -> Iterator[str]:
    """Yield the parts of a text that may be the answer, the likeliest first."""
    fenced = [match.group(1).strip() for match in _FENCE.finditer(text)]
    # What a model comes to stands at the end.
    yield from reversed(fenced)
    if text.strip():
        yield text.strip()


_Read = OutputValue | Unfit
_SCHEMA_PARAMETERS = frozenset({"response_format", "output_config"})
"""Parameters of requests, by which a call that was asked for a schema is known afterwards."""


@dataclass(frozen=True, slots=True)
class FinalAnswer:
    """The tool that takes the answer."""

    form: OutputForm
    name: str
    description: str | None
    parameters: Mapping[str, Any]
    origin: str = "built-in"
    effects: str = "read_only"

    def resource_key(self, arguments: Mapping[str, Any]) -> tuple[str, ...]:
        return (self.name,)

    def __call__(self, session: Any, arguments: Mapping[str, Any]) -> Any:
        return self.form.read(json.dumps(arguments, ensure_ascii=False))


@dataclass(frozen=True, slots=True)
class OutputPlan:
    """The typed answer that a run was asked for, checked before it was submitted."""

    form: OutputForm
    spec: OutputSpec
    retries: int
    """Model calls that may follow an answer which does not fit."""

    offer: ToolOffer
    """The tool that takes the answer, for models that take no schema."""


def plan_output(
    output: object,
    retries: object,
    *,
    candidates: Sequence[ProviderCandidate],
    tool_names: Iterable[str],
) -> OutputPlan | None:
    """Return the plan for `output`, None without one.

    Raises:
        TypeError: `output` is no type that an answer can have.
        ValueError: `retries` is no whole number of at least 0, or a provider has a response
            format of its own.
    """
    if isinstance(retries, bool) or not isinstance(retries, int) or retries < 0:
        raise ValueError(f"output_retries must be a whole number of at least 0, not {retries!r}")
    if output is None:
        return None
    form = output_form(output)
    for provider in (candidate.provider for candidate in candidates):
        if provider.response_format is not None or "response_format" in provider.extra_create_args:
            raise ValueError(
                "output= cannot be used with a provider that has a response_format of its own; "
                "leave one of the two out"
            )
    spec = form.spec.beside(tool_names)
    tool = FinalAnswer(form, spec.tool.name, spec.tool.description, spec.tool.parameters)
    return OutputPlan(form, spec, retries, offer(tool))


def explain_refusal(error: Exception) -> None:
    """Tell what to do where an endpoint may have refused the schema of a typed answer."""
    evidence = exchange_evidence(error)
    if not isinstance(error, InvalidRequestError) or evidence is None:
        return
    if _SCHEMA_PARAMETERS & evidence.parameters.keys():
        error.add_note(
            "the request asked for an answer by JSON Schema; where the endpoint takes none, or "
            "not this one, use Provider(output_mode='tool')"
        )


@dataclass(frozen=True, slots=True)
class TurnVerdict:
    """The meaning of a turn for its run."""

    others: Sequence[ToolCall]
    """The calls that are to be made."""

    outcome: Completed | None = None
    """Set where the turn is the last one, once those calls were made."""

    own: Mapping[int, results.CallResult] = field(default_factory=lambda: MappingProxyType({}))
    """What became of the calls that gave the answer, by their index among all calls."""

    reply: str | None = None
    """What the user says to it, where there is no call to answer."""

    @property
    def places(self) -> Sequence[int]:
        """The indices of the calls that are to be made, among all calls of the turn."""
        n_calls = len(self.own) + len(self.others)
        return [index for index in range(n_calls) if index not in self.own]

    def results(self, done: Mapping[int, results.CallResult]) -> Mapping[int, results.CallResult]:
        """Return the results of all calls by their index; `done` tells of the others."""
        return {**self.own, **done} if self.own else done


def judge_plain(turn: AssistantTurn, exchange: Exchange) -> TurnVerdict:
    """Judge a turn where nothing but text was asked for."""
    has_ended = not turn.calls and not _is_paused(exchange)
    return TurnVerdict(turn.calls, Completed() if has_ended else None)


class OutputRun:
    """The state of one run's typed answer."""

    def __init__(self, plan: OutputPlan) -> None:
        self._plan = plan
        self._tool = plan.spec.tool.name
        self._n_tries = 0
        self.purpose: Purpose = "turn"
        """Of the next model call."""

    async def judge(
        self, turn: AssistantTurn, exchange: Exchange, *, may_repair: bool
    ) -> TurnVerdict:
        """Judge a turn.

        Args:
            turn: What the model said.
            exchange: The call that it came from.
            may_repair: Whether the run may make another model call.
        """
        self.purpose = "turn"
        own = {at: call for at, call in enumerate(turn.calls) if call.name == self._tool}
        if (turn.calls and not own) or _is_paused(exchange):
            return TurnVerdict(turn.calls)
        others = [call for at, call in enumerate(turn.calls) if at not in own]
        # The validators are the user's code, and may take their time.
        reading = partial(self._read, turn, own.values())
        read = [_blamed(one, exchange) for one in await runtime().call_in_worker(reading)]
        self._n_tries += 1
        first = next((one for one in read if isinstance(one, OutputValue)), None)
        if first is not None:
            return TurnVerdict(others, Completed(first), self._results(own, read, ""))
        problem = str(read[-1])
        if _is_refused(exchange) or self._n_tries > self._plan.retries or not may_repair:
            answer = list(own.values())[-1].arguments if own else turn.text or ""
            missing = OutputMissing(self._summary(exchange, problem, answer, may_repair))
            return TurnVerdict(others, Completed(missing), self._results(own, read, ""))
        self.purpose = "repair"
        if own:
            again = f" Call {self._tool} again, with the whole answer."
            return TurnVerdict(others, own=self._results(own, read, again))
        return TurnVerdict(others, reply=self._reply(exchange, problem))

    def _read(self, turn: AssistantTurn, own: Collection[ToolCall]) -> list[_Read]:
        """Read the calls that give an answer, or the text where there are none."""
        if not own:
            return [_read_safely(partial(self._plan.form.read_answer, turn.text or ""))]
        parsed = [parse_tool_arguments(call.arguments) for call in own]
        return [
            Unfit("the arguments are no JSON object")
            if is_error
            else _read_safely(partial(self._plan.offer.tool, None, arguments or {}))
            for arguments, is_error in parsed
        ]

    def _results(
        self, own: Mapping[int, ToolCall], read: Sequence[_Read], again: str
    ) -> dict[int, results.CallResult]:
        done: dict[int, results.CallResult] = {}
        # A text has no calls that wait for a result.
        for (at, call), one in zip(own.items(), read, strict=bool(own)):
            checked = results.CheckedCall(
                call, self._plan.offer, parse_tool_arguments(call.arguments)[0]
            )
            if isinstance(one, OutputValue):
                done[at] = results.CallResult(checked, encode_result(True), "done")
            else:
                problem = f"the answer cannot be used: {one}.{again}"
                failure = encode_failure("invalid_tool_arguments", problem)
                done[at] = results.CallResult(checked, failure, "failed")
        return done

    def _reply(self, exchange: Exchange, problem: str) -> str:
        wrong = f"The answer cannot be used: {problem}."
        if not _SCHEMA_PARAMETERS & exchange.evidence.parameters.keys():
            return f"{wrong} Give the whole answer by calling the tool {self._tool}."
        # Some endpoints hold the model to the schema without showing it.
        schema = json.dumps(dict(self._plan.spec.schema), ensure_ascii=False)
        return (
            f"{wrong} Give the whole answer again, as JSON and nothing else, by this JSON Schema: "
            f"{schema}"
        )

    def _summary(self, exchange: Exchange, problem: str, answer: str, may_repair: bool) -> str:
        evidence, n_tries = exchange.evidence, self._n_tries
        model = evidence.served_model or evidence.requested_model
        tries = "1 try" if n_tries == 1 else f"{n_tries} tries"
        limit = "" if may_repair else "; no further call was left in max_tool_rounds"
        return (
            f"model {model!r} at {evidence.endpoint or evidence.adapter} gave no "
            f"{self._plan.form.name} in {tries}{limit}. The last one: {problem}. It begins: "
            f"{one_line_preview(answer, PREVIEW_CHARS)!r}. Give it more tries with output_retries, "
            "or ask for less"
        )


def _read_safely(read: partial[Any]) -> _Read:
    """Call a reader; on a worker thread, where every exception is the validators'."""
    try:
        return OutputValue(read())
    except Unfit as exc:
        return exc
    except BaseException as exc:  # noqa: BLE001  # a tool's lane: the model reads what went wrong
        return Unfit.because_of(exc)


def _blamed(read: _Read, exchange: Exchange) -> _Read:
    """Say what is really wrong: an answer that was cut short is not blamed for its form."""
    if isinstance(read, OutputValue):
        return read
    reason = exchange.response.primary_choice.finish_reason
    if reason == "length":
        return Unfit("it was cut off at the limit of tokens (max_tokens) before it was whole")
    if reason == "content_filter":
        return Unfit("the endpoint's content filter stopped it")
    return Unfit("the model refused to answer") if _is_refused(exchange) else read


def _is_refused(exchange: Exchange) -> bool:
    choice = exchange.response.primary_choice
    ended = choice.finish_reason in ("refusal", "content_filter")
    return ended or bool(choice.message.refusal)


def _is_paused(exchange: Exchange) -> bool:
    return exchange.response.primary_choice.finish_reason == "pause_turn"
