"""An agent as a tool: a model hands it a task, and reads its answer."""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Awaitable, Callable, Generator, Mapping
from typing import Any, Literal, assert_never, get_args

from rath._core.dataclasses import dataclass
from rath._core.lazy_imports import lazy_function
from rath._core.options import origin_of
from rath._core.references import Reduction, Referenced
from rath.backend.results import ToolExecutionFailure
from rath.flow.tool.base import FlowToolCall
from rath.flow.tool.options import TOOL_NAME, CallOptions, check_kind
from rath.llm.image import Image
from rath.session import Session
from rath.session.content import AssistantTurn
from rath.session.outcome import (
    BudgetExceeded,
    Cancelled,
    Completed,
    DeadlineExceeded,
    NeedsApproval,
    NeedsDecision,
    NeedsInput,
    Outcome,
    OutputMissing,
    RoundLimit,
)
from rath.session.output import plain_answer
from rath.session.run.hook_calls import pass_on
from rath.session.tooling import ApprovalRule, ToolEffects, call_here

__all__ = ["AgentTool", "AgentToolOptions", "PassedImages"]

# It reads and writes logs, which most programs do not.
_recording_as = lazy_function("rath.session.run.recorder", "recording_as")

PassedImages = Literal["none", "last"]
"""`last`: the agent sees the pictures of the last row in which the user shows some."""

_WORD_ENDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_SCHEMA = {
    "type": "object",
    "properties": {
        "task": {
            "type": "string",
            "description": "What to do, in full: nothing else of this conversation is seen.",
        }
    },
    "required": ["task"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentToolOptions(CallOptions):
    """Options of calls of an agent as a tool.

    Raises:
        TypeError: A value is of the wrong type.
        ValueError: A value is of the right type and means nothing.
    """

    images: PassedImages = "none"

    def __post_init__(self) -> None:
        CallOptions.__post_init__(self)
        if self.images not in get_args(PassedImages):
            raise ValueError(f"unknown images {self.images!r}: expected 'none' or 'last'")


class AgentTool(FlowToolCall):
    """Hands a task to a workflow, in a session of its own, and returns the answer.

    The session is a child of the calling one: it has its sandbox, and of its rows none. It is made
    at the place of the call, so that a call which is made again finds what it had made.

    Args:
        workflow: What does the task: an agent or any other workflow.
        name: Name under which a model calls it: up to 64 of a-z, A-Z, 0-9, "_" and "-".
        description: What it is good for, for the model.
        options: How calls are made.

    Raises:
        TypeError: Name or description is no text.
        ValueError: The name cannot be that of a tool.
    """

    def __init__(
        self,
        workflow: Callable[[Session], Session],
        name: str,
        *,
        description: str,
        options: AgentToolOptions | None = None,
    ) -> None:
        check_kind("name", name, str, "a str")
        if TOOL_NAME.fullmatch(name) is None:
            raise ValueError(
                f"{name!r} cannot be the name of a tool; give 1 to 64 letters, digits, '_' or '-', "
                "such as as_tool('researcher')"
            )
        check_kind("description", description, str, "a str")
        chosen = self._options = options or AgentToolOptions()
        self._workflow = workflow
        self._name = name
        self._description = description
        self._images = chosen.images
        self._n_calls = itertools.count()
        self.effects: ToolEffects = chosen.effects
        self.timeout: float | None = chosen.timeout
        self.parallel_safe: bool = chosen.parallel_safe
        self.approval: ApprovalRule = chosen.approval

    def _pickle_reference(self) -> Reduction:
        """Return what does the task, which is pickled by its own rule, and how it is called."""
        return _agent_tool_again, (
            type(self), self._workflow, self._name, self._description, self._options
        )  # fmt: skip

    @property
    def workflow(self) -> Callable[[Session], Session]:
        """Workflow that does the task."""
        return self._workflow

    @property
    def name(self) -> str:
        """Name under which the model calls it."""
        return self._name

    @property
    def description(self) -> str:
        """Purpose of the tool, for the model."""
        return self._description or ""

    @property
    def parameters(self) -> Mapping[str, Any]:
        """JSON Schema of the one argument, `task`."""
        return _SCHEMA

    @property
    def origin(self) -> str:
        """Origin of the tool, for the record: `module:qualname` of its workflow."""
        return origin_of(type(self._workflow))

    def resource_key(self, arguments: Mapping[str, Any]) -> tuple[str, ...]:
        """Return a key of its own for each call where calls may run beside each other."""
        if not self.parallel_safe:
            return super().resource_key(arguments)
        return ("agent", self._name, str(next(self._n_calls)))

    def __call__(self, session: Session, arguments: Mapping[str, Any]) -> Awaitable[Any]:
        """Begin the task, and return what waits for its answer."""
        candidates = _last_images(session) if self._images == "last" else ()
        pictures = [image.blob.data for image in candidates if image.blob.data is not None]
        with _recording_as(session.id):
            child = session.delegate(str(arguments["task"]), images=pictures)
            child_run = self._workflow(child)
        return _Answer(child_run)


def _agent_tool_again(
    kind: type[AgentTool],
    workflow: Callable[[Session], Session],
    name: str,
    description: str,
    options: AgentToolOptions,
) -> AgentTool:
    return kind(workflow, name, description=description, options=options)


class _Answer:
    """Waits for the answer; no coroutine, which would complain where nobody waits any more."""

    def __init__(self, child_run: Session) -> None:
        self._session = child_run

    def __await__(self) -> Generator[Any, Any, object]:
        return _answer(self._session).__await__()


async def _answer(child_run: Session) -> object:
    try:
        await child_run
    except Exception as exc:  # noqa: BLE001  # a tool's lane: the model reads what went wrong
        return _failure("agent_failed", child_run, f"failed: {type(exc).__name__}: {exc}")
    outcome = child_run.outcome
    match outcome:
        case Completed(OutputMissing(problem)):
            return _failure(
                "agent_output_missing", child_run, f"gave no answer of its type: {problem}"
            )
        case Completed():
            text = plain_answer(child_run)
            if text in (None, ""):
                return _failure("agent_no_answer", child_run, "ended without a word")
            return text
        case RoundLimit() | BudgetExceeded() | DeadlineExceeded() | Cancelled():
            kind, words = _STOPPED[type(outcome)]
            return _failure(kind, child_run, words.format(outcome))
        case NeedsApproval() | NeedsInput() | NeedsDecision():
            return _suspended(child_run, outcome)
        case _:
            assert_never(outcome)


def _suspended(child_run: Session, outcome: NeedsApproval | NeedsInput | NeedsDecision) -> object:
    """Let the calling run wait too; where the tool was called by hand, say what it waits for."""
    if call_here() is not None:
        pass_on(child_run)
    return _failure(
        "agent_waits",
        child_run,
        f"waits for somebody: {outcome}. Load session {outcome.session}, say what it waits for, "
        "and go on with it there",
    )


def _failure(kind: str, child_run: Session, problem: str) -> ToolExecutionFailure:
    """Return what the model reads, with what the agent had said by then."""
    turns = (row.content for row in reversed(child_run.partial_table))
    text = next(
        (turn.text for turn in turns if isinstance(turn, AssistantTurn) and turn.text), None
    )
    return ToolExecutionFailure(kind, f"the agent's session {child_run.id} {problem}", text)


def _last_images(session: Session) -> tuple[Image, ...]:
    candidates = (row.images for row in reversed(session.chunk_table) if row.kind_name == "user")
    return next((images for images in candidates if images), ())


_STOPPED: Mapping[type[Outcome], tuple[str, str]] = {
    RoundLimit: ("agent_round_limit", "was not done after {0.max_tool_rounds} model calls"),
    BudgetExceeded: ("agent_budget_exceeded", "was stopped by its budget ({0})"),
    DeadlineExceeded: ("agent_deadline_exceeded", "was not done after {0.timeout:g} s"),
    Cancelled: ("agent_cancelled", "was cancelled"),
}
"""The kind of failure and its words, by the outcome of a run that was stopped."""


class TaskTaking(Referenced):
    """What a model can hand a task, once it is made a tool."""

    __slots__ = ()

    def __call__(self, session: Session) -> Session:
        """Do what the user of a session says last; subclasses implement it."""
        raise NotImplementedError(f"{type(self).__name__} implements no __call__(session)")

    def as_tool(
        self,
        name: str | None = None,
        description: str | None = None,
        *,
        effects: ToolEffects = "non_idempotent",
        timeout: float | None = None,
        parallel_safe: bool = False,
        approval: ApprovalRule = "never",
        images: PassedImages = "none",
    ) -> AgentTool:
        """Return a tool by which a model hands this workflow, or this agent, a task.

        Each call runs in a session of its own, a child of the calling one, with the task as its
        only row and in the same sandbox. What it uses counts for the caller too.

        Args:
            name: Name of the tool; by default the name of the class in snake case, which an
                `Agent` that is no subclass does not have.
            description: What it is good for; by default its own description, else its docstring.
            effects: What making a call twice would do. Where the calling run is recorded, a call
                that is made again finds what it had made, and goes on with it.
            timeout: Seconds a call may take; None takes the loop's own limit.
            parallel_safe: Whether calls may run beside others; they share one sandbox.
            approval: Whether somebody must allow a call first.
            images: `last` shows it the pictures that the user of the calling session showed last.

        Raises:
            TypeError: An option is of the wrong type.
            ValueError: There is no name, or one that no tool can have; or an option means nothing.
        """
        options = AgentToolOptions(
            effects=effects,
            timeout=timeout,
            parallel_safe=parallel_safe,
            approval=approval,
            images=images,
        )
        text = (
            description or description_of(self) or "Does a task on its own, and returns the answer."
        )
        return AgentTool(self, name or tool_name_of(self), description=text, options=options)


def tool_name_of(workflow: object) -> str:
    """Return the name of the class of a workflow, in snake case.

    Raises:
        ValueError: The class is one of rath's own, whose name says nothing.
    """
    kind = type(workflow)
    if _is_ours(kind):
        raise ValueError(
            f"{kind.__name__} has no name of its own that a model could call it by; give one, for "
            "example as_tool('researcher', 'Looks things up.')"
        )
    return _WORD_ENDS.sub("_", kind.__name__.strip("_")).lower()


def description_of(workflow: object) -> str:
    """Return what a workflow says of itself: its description, or else its class's docstring."""
    text: object = getattr(workflow, "description", "")
    if isinstance(text, str) and text.strip():
        return text.strip()
    kind = type(workflow)
    return "" if _is_ours(kind) else (inspect.cleandoc(kind.__doc__ or "")).strip()


def _is_ours(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "rath"
