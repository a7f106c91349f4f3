"""The layer of rath: a prompt, a model, tools and a memory, from one session to the next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from types import TracebackType
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Generic,
    Literal,
    Self,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
    overload,
)
from uuid import UUID

from rath._async.plane import HandleLease
from rath._core.dataclasses import dataclass
from rath._core.options import ValueScope
from rath._core.text import one_line_preview
from rath.flow.agent_memory import (
    MemoryArg,
    Remembering,
    commit_later,
    open_memory,
    recall_for_run,
)
from rath.flow.agent_param import AgentParam, check_provider, resolve_provider_arg
from rath.flow.hooks import HookHandle, hooks_of, loop_hooks, register
from rath.flow.memory_inject import DefaultRecallInjection, MemoryInjectionPolicy
from rath.flow.tool.base import FlowToolCall
from rath.flow.workflow import Workflow, is_called
from rath.llm import Provider, RathLLMStreamDelta
from rath.memory import MemoryStore
from rath.session import Session, run_session_loop
from rath.session.hooks import (
    AfterAnswer,
    BeforeAnswer,
    ModelAnswer,
    ModelTurn,
    ToolResultText,
)
from rath.session.log.store import SessionStore, open_store
from rath.session.output import output_form
from rath.session.record import Purpose
from rath.session.run.run_log import Durability
from rath.session.tooling import (
    ApprovalRule,
    CallRequest,
    as_tools,
    call_here,
    check_approval,
    check_system_tools,
)

if TYPE_CHECKING:
    import typing_extensions

    OutputT_co = typing_extensions.TypeVar("OutputT_co", default=Any, covariant=True)

    class AgentOptions(TypedDict, total=False):
        """The keywords of an agent beside `output`, for checkers of types."""

        model: str | None
        on_event: Callable[[RathLLMStreamDelta], None] | None
        memory: MemoryArg
        memory_inject: MemoryInjectionPolicy | None
        commit_on_forward: bool
        description: str
        max_tool_rounds: int
        persist: bool
        durability: Durability | None
        timeout: float | None
        system_tools: bool | Sequence[str]
        approval: ApprovalRule
        output_retries: int
        streaming: bool | None
        store: SessionStore | str | None

else:
    OutputT_co = TypeVar("OutputT_co", covariant=True)


class Agent(Remembering, Workflow, Generic[OutputT_co]):
    """Answers a session: asks its model, runs the tools that the model calls, until it is done.

    A call returns at once with a pending session; reading that waits for the run.

    Args:
        system_prompt: Instructions that stand before every transcript, never in it; a
            `rath.Prompt` may be optimized.
        provider: Model and endpoint.
        tools: Tools beside the built-in ones; a typed function is made one, as `rath.tool` does.
        model: Name of the model where `provider` names none.
        on_event: Called with each delta of a streamed answer.
        memory: A store, a spec or a name; "local" is the project's own store.
        memory_inject: What to recall before a run; by default what is nearest to the last thing
            the user said.
        commit_on_forward: Store the transcript of every run in the memory once it has ended.
        description: What the agent is good for, read by a `Selector`.
        max_tool_rounds: Most model calls of a run.
        persist: Write the session of every run to the default store.
        durability: How carefully it is written: "turn", "row" or "none"; see `run_session_loop`.
        timeout: Seconds that a run may take; one that takes longer ends with the outcome
            DeadlineExceeded.
        system_tools: Whether the model is offered the built-in tools, or the names of those it is.
        approval: Whether somebody must allow a tool call before it is made: "never", "always", or
            a function that gets a `CallRequest` and says so; also where the tool itself does not
            ask for it. The session then waits for `approve`, `deny` or `edit`.
        output: Type of the answer, a pydantic model or another type that pydantic knows;
            `session.output` gives the object. None for plain text.
        output_retries: Model calls that may follow an answer that does not fit `output`; the
            model reads what was wrong with it.
        streaming: Whether answers are streamed also without `on_event`, for `session.stream()`. By
            default where somebody reads that when a model is asked.
        store: Where runs are recorded, or the URL of that; it implies `persist`.

    Raises:
        ValueError: Neither `provider` nor `model` was given.
        TypeError: `output` is no type that has a JSON Schema; or something in `tools` is no tool
            and no typed function.
        LookupError: `system_tools` names a tool that is not known.
    """

    _purpose: ClassVar[Purpose] = "turn"
    """What its model calls are for, in the record."""

    @overload
    def __init__(
        self,
        system_prompt: str,
        provider: Provider | None = None,
        tools: Sequence[FlowToolCall | Callable[..., Any]] | None = None,
        *,
        output: type[OutputT_co],
        **options: Unpack[AgentOptions],
    ) -> None: ...
    @overload
    def __init__(
        self: Agent[Any],
        system_prompt: str,
        provider: Provider | None = None,
        tools: Sequence[FlowToolCall | Callable[..., Any]] | None = None,
        *,
        output: object = None,
        **options: Unpack[AgentOptions],
    ) -> None: ...
    def __init__(
        self,
        system_prompt: str,
        provider: Provider | None = None,
        tools: Sequence[FlowToolCall | Callable[..., Any]] | None = None,
        *,
        model: str | None = None,
        on_event: Callable[[RathLLMStreamDelta], None] | None = None,
        memory: MemoryArg = None,
        memory_inject: MemoryInjectionPolicy | None = None,
        commit_on_forward: bool = False,
        description: str = "",
        max_tool_rounds: int = 64,
        persist: bool = False,
        durability: Durability | None = None,
        timeout: float | None = None,
        system_tools: bool | Sequence[str] = True,
        approval: ApprovalRule = "never",
        output: object = None,
        output_retries: int = 2,
        streaming: bool | None = None,
        store: SessionStore | str | None = None,
    ) -> None:
        super().__init__(description)
        check_provider(provider)
        chosen = resolve_provider_arg(provider, model=model)
        prompt = Session.from_agent_prompt(system_prompt)
        requires_grad = getattr(system_prompt, "requires_grad", False)
        self._lease: HandleLease | None = None if memory is None else open_memory(memory)
        self.agent: AgentParam = AgentParam(
            prompt, chosen, _store_of(self._lease), requires_grad=requires_grad
        )
        self.tools: list[FlowToolCall] = cast(
            "list[FlowToolCall]", as_tools(tools, known=FlowToolCall)
        )
        self.on_event = on_event
        self.memory_inject = memory_inject
        self.commit_on_forward = commit_on_forward
        self.max_tool_rounds = max_tool_rounds
        self.persist = persist
        self.durability: Durability | None = durability
        self.timeout = timeout
        check_system_tools(system_tools)
        self.system_tools = system_tools
        self.approval: ApprovalRule = check_approval(approval, "Agent")
        # No attribute `output`: agents of 1.3 programs have one of their own.
        self._output_form = None if output is None else output_form(output)
        self.output_retries = output_retries
        self.streaming = streaming
        self.store: SessionStore | None = open_store(store) if isinstance(store, str) else store

    if TYPE_CHECKING:

        def __call__(self, session: Session, text: str | None = None) -> Session[OutputT_co]: ...

    def forward(self, session: Session) -> Session:
        """Submit a run on `session`, which may be pending, and return its pending session."""
        # What a caller adds is for the agents of the workflow, not for those inside their tools.
        added = _caller_options.get() if call_here() is None else NO_CALLER_OPTIONS
        store = self.memory
        policy = self.memory_inject or DefaultRecallInjection()
        out = run_session_loop(
            session,
            self.agent.agent_session,
            agent_provider=self.agent.provider,
            tools=[*self.tools, *added.tools],
            max_tool_rounds=self.max_tool_rounds,
            on_event=self.on_event,
            streaming=True if added.streaming else self.streaming,
            persist=self.persist,
            store=self.store,
            durability=self.durability,
            system_tools=self.system_tools,
            recall=None if store is None else recall_for_run(store, policy),
            timeout=self.timeout,
            approval=self.approval,
            output=self._output_form,
            output_retries=self.output_retries,
            hooks=loop_hooks(self),
            purpose=self._purpose,
        )
        # What forward hooks have not seen is not remembered: after them it is committed.
        if not (hooks_of(self).forward and is_called(self)):
            self._commit(out, run=out.id)
        return out

    def _passed_out(self, session: Session, output: Session) -> Session:
        is_hooked, run = bool(hooks_of(self).forward), output.id
        output = super()._passed_out(session, output)
        if is_hooked:
            self._commit(output, run=run)
        return output

    def _commit(self, output: Session, *, run: UUID) -> None:
        store = self.memory
        if self.commit_on_forward and store is not None:
            commit_later(store, output, run=run)

    def register_tool(self, tool: FlowToolCall | Callable[..., Any]) -> None:
        """Add a tool, or a typed function; one whose name the agent has already is ignored.

        Raises:
            TypeError: It is neither.
        """
        (added,) = cast("list[FlowToolCall]", as_tools([tool], known=FlowToolCall))
        if all(added.name != known.name for known in self.tools):
            self.tools.append(added)

    def unregister_tool(self, tool_name: str) -> None:
        """Take out the tool of that name, if there is one."""
        self.tools = [tool for tool in self.tools if tool.name != tool_name]

    def register_model_hook(self, hook: Callable[[Self, ModelTurn], ModelAnswer]) -> HookHandle:
        """Have `hook(agent, turn)` see each answer of the model, before it becomes a row.

        Calls, typed output and everything later follow what it returns. Runs have the hooks that
        were registered when they were submitted, and ask them in order, on worker threads or, for
        `async def`, on the loop of user code. A hook that raises, or takes longer than
        `rath.session.run.hook_calls.MODEL_HOOK_TIMEOUT`, ends the run with that error. The deltas
        of a streamed answer have been shown to `on_event` by then.

        Args:
            hook: Returns the ModelTurn to go on with, or None to leave the answer as it is.

        Returns:
            A handle whose `remove()` takes the hook out; it works in `with`, too.

        Raises:
            TypeError: It is no function.
        """
        return register(self, "model", hook)

    @overload
    def register_tool_hook(
        self, hook: Callable[[Self, CallRequest], BeforeAnswer], *, when: Literal["before"]
    ) -> HookHandle: ...
    @overload
    def register_tool_hook(
        self,
        hook: Callable[[Self, CallRequest, ToolResultText], AfterAnswer],
        *,
        when: Literal["after"],
    ) -> HookHandle: ...
    def register_tool_hook(
        self, hook: Callable[..., Any], *, when: Literal["before", "after"]
    ) -> HookHandle:
        """Have a hook see each tool call of the agent, before it is made or after it.

        Before: `hook(agent, call)` gets a CallRequest whose arguments are good, ahead of the rules
        of approval. It returns a CallRequest with other arguments, which must fit the schema too,
        `Deny(reason)`, or None. After: `hook(agent, call, result)` gets a ToolResultText, and
        returns the one that the model shall read, or None.

        Hooks are asked in order, on worker threads or, for `async def`, on the loop of user code,
        each under the deadline of the tool. Where one raises, or takes longer, the call is denied,
        or its result withheld.

        Args:
            hook: The function.
            when: "before" or "after" the call.

        Returns:
            A handle whose `remove()` takes the hook out; it works in `with`, too.

        Raises:
            TypeError: It is no function.
            ValueError: `when` is something else.
        """
        if when not in ("before", "after"):
            raise ValueError(f"when must be 'before' or 'after', not {when!r}")
        return register(self, "before_tool" if when == "before" else "after_tool", hook)

    def extra_repr(self) -> str:
        """Return prompt, provider and tools, and what else differs from a plain agent."""
        prompt, form = self.agent.system_prompt, self._output_form
        shown: dict[str, object] = {
            "prompt": prompt and one_line_preview(prompt, _MAX_PROMPT),
            "provider": self.agent.provider,
            "tools": _Bare(f"[{', '.join(tool.name for tool in self.tools)}]"),
            "system_tools": None if self.system_tools is True else self.system_tools,
            "memory": self.memory,
            "output": None if form is None else _Bare(form.name),
            "description": self.description or None,
        }
        fields = [f"{name}={value!r}" for name, value in shown.items() if value is not None]
        line = ", ".join(fields)
        return line if len(line) <= _MAX_LINE else "\n".join(fields)

    def _listed_parts(self) -> list[tuple[str, object]]:
        # Its own parameters stand in `extra_repr`.
        return [part for part in super()._listed_parts() if part[1] is not self.agent]

    def close(self) -> None:
        """Give the memory back; runs and commits in flight still end. Safe to call again."""
        self.agent.memory = None
        if self._lease is not None:
            self._lease.drop()
            self._lease = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


_MAX_PROMPT = 60
"""Characters of a prompt that the repr of an agent shows."""

_MAX_LINE = 88
"""Characters of its fields on one line."""


class _Bare(str):
    """A text whose repr is itself."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


@dataclass(frozen=True, slots=True)
class CallerOptions:
    """Options that the caller of a workflow adds to its agents, except those inside of tools."""

    tools: tuple[FlowToolCall, ...] = ()
    """Offered beside those of the agents."""

    streaming: bool = False
    """Whether answers are streamed, so that `Session.stream` gives their text as it comes."""


NO_CALLER_OPTIONS = CallerOptions()
_caller_options: ContextVar[CallerOptions] = ContextVar(
    "rath_caller_options", default=NO_CALLER_OPTIONS
)


def adding(options: CallerOptions) -> ValueScope[CallerOptions]:
    """Add to the agents of the workflows that are called inside."""
    return ValueScope(_caller_options, options)


def _store_of(lease: HandleLease | None) -> MemoryStore | None:
    if lease is None:
        return None
    assert isinstance(lease.handle, MemoryStore)
    return lease.handle
