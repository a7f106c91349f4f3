"""The agent loop: turns of a model and its tool calls, until an answer stands."""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

import rath
from rath._async.deferred import Deferred
from rath._async.runtime import runtime
from rath._core.lazy_imports import lazy_function
from rath._core.text import short_id
from rath.errors import SelfWaitError
from rath.llm.chat_request import RathLLMFunctionTool
from rath.llm.provider import Provider, ProviderOrigin
from rath.session.autosave import is_autosaving, note_unrecorded_run
from rath.session.body import Body
from rath.session.calls.oneshot import OnEventCb
from rath.session.graph.kind import LineageKind
from rath.session.graph.legacy import SessionLineage
from rath.session.graph.recording import Provenance, note_content, stamped
from rath.session.hooks import NO_HOOKS, LoopHooks, passed_on_to
from rath.session.log.store import SessionStore
from rath.session.manager import session_registry
from rath.session.operation import Watchers
from rath.session.outcome import Suspended
from rath.session.output import plan_output
from rath.session.provider_builtin import (
    DefaultSessionLoopExecutor,
    SessionLoopExecutor,
    StreamingExecutor,
    candidates_for,
    resolve_executor,
)
from rath.session.recall import HoldingRecall, Recall
from rath.session.record import Purpose
from rath.session.run.budget import check_budget
from rath.session.run.driver import LoopPlan, execute_loop
from rath.session.run.run_log import Durability
from rath.session.scope import (
    RecordedServing,
    begin_operation,
    collect_session,
    current_replay,
    current_source,
    recording_store,
)
from rath.session.session import Session
from rath.session.tooling import (
    ApprovalRule,
    SystemTools,
    Tool,
    check_approval,
    offer,
    offered_schemas,
    tool_table,
    without_sandbox_tools,
)

if TYPE_CHECKING:
    from rath.session.programs import EarlierRun, ResumePoint
    from rath.session.run.recorder import RecordingPlan

# Only runs that are recorded, or were made or begun before, need them; most programs have none.
_check_compatible = lazy_function("rath.session.run.differences", "check_compatible")
_find_earlier_run = lazy_function("rath.session.programs", "find_earlier_run")
_inside_calls = lazy_function("rath.session.run.stored_programs", "inside_calls")
_plan_recording = lazy_function("rath.session.run.recorder", "plan_recording")
_start_or_join = lazy_function("rath.session.programs", "start_or_join")

# With the separator, or a caller in `rathskeller/` beside the package would be taken for it.
_PACKAGE = str(Path(rath.__file__).parent) + os.sep


def provider_for(
    operation: str, user_session: Session, agent_session: Session, explicit: Provider | None
) -> Provider:
    """Return the provider of an operation: the given one, or the user session's.

    Raises:
        TypeError: An argument is no Session or no Provider.
        ValueError: There is no provider.
    """
    for name, session in (("user_session", user_session), ("agent_session", agent_session)):
        if not isinstance(session, Session):
            raise TypeError(f"{operation}: {name} must be a Session, not {type(session).__name__}")
    provider = explicit or user_session.provider
    if provider is None:
        raise ValueError(
            f"no provider for {operation}: pass agent_provider=Provider(model=...), or bind one "
            "to the session with session.to(provider); Provider.from_config() is the one that "
            "`rath config init` set up"
        )
    if not isinstance(provider, Provider):
        raise TypeError(
            f"{operation}: the provider must be a Provider, not {type(provider).__name__}"
        )
    return provider


def check_may_wait(caller: str) -> None:
    """Check that the caller may block here, before anything is submitted.

    Raises:
        SelfWaitError: It runs on an event loop of rath, as an `async def` tool does.
    """
    if runtime().is_own_thread():
        raise SelfWaitError(
            f"{caller} waits for its run, and that would stop everything on this event loop of "
            "rath; pass lazy=True and `await` what it returns, or call it from a plain `def`"
        )


def check_callable(operation: str, name: str, value: object) -> None:
    """Refuse an argument that shall be called and cannot be; None stands for no such argument.

    Raises:
        TypeError: It is not callable.
    """
    if value is not None and not callable(value):
        raise TypeError(
            f"{operation}: {name} must be a function, not {type(value).__name__}: {value!r:.80}"
        )


def check_executor(operation: str, executor: object) -> None:
    """Refuse an executor that lacks a method; None stands for no executor.

    Raises:
        TypeError: A method is missing, or a class was given where an object is needed.
    """
    if executor is None:
        return
    if isinstance(executor, type):
        raise TypeError(
            f"{operation}: executor was given as the class {executor.__name__}; give an object"
        )
    methods = ("complete", "dispatch_tool", "tool_schemas")
    missing = [name for name in methods if not callable(getattr(executor, name, None))]
    if missing:
        raise TypeError(
            f"{operation}: executor {executor!r:.80} lacks {', '.join(missing)}; expected an "
            f"object with {', '.join(methods)}"
        )


def register_run(user_session: Session, agent_session: Session, out: Session) -> None:
    """Make the sessions of a run findable by id, and the new one the active one."""
    registry = session_registry()
    collect_session(out)
    if current_replay() is not None:
        return  # what stands in a record must not take the place of the session that was made
    for session in (user_session, agent_session, out):
        registry.register(session)
    registry.set_active(out)


def call_site() -> str:
    """Return file, line and function of the nearest caller outside of rath."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    if frame is None:
        return "an unknown place"
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"


_log = logging.getLogger("rath.session")

_end_watchers = Watchers[Session]()
_submit_watchers = Watchers[Session]()


def on_run_end(call: Callable[[Session], None]) -> Callable[[], None]:
    """Have `call` made with each session whose run ended from now on, on a worker thread.

    What it raises is logged, and disturbs nobody.

    Returns:
        A function that removes it.
    """
    return _end_watchers.add(call)


def on_run_submit(call: Callable[[Session], None]) -> Callable[[], None]:
    """Have `call` made with the session of each run that is submitted from now on.

    It is made at once, by whoever submits the run: it must neither wait nor raise.

    Returns:
        A function that removes it.
    """
    return _submit_watchers.add(call)


def announce_run(session: Session) -> None:
    """Tell those who watch of a run that was submitted; costs nothing if none do."""
    if current_replay() is not None:
        return
    for watcher in _submit_watchers:
        watcher(session)
    for watcher in _end_watchers:
        start = partial(_start, partial(_tell, watcher, session))
        if not session.core.body.at_end(start):
            start()


def _start(tell: Callable[[], None]) -> None:
    runtime().promise(runtime().start_in_worker(tell))


def _tell(watcher: Callable[[Session], None], session: Session) -> None:
    try:
        watcher(session)
    except Exception:  # noqa: BLE001  # as a callback: a run must not fail for who watches it
        _log.exception("what watches for the end of runs failed on session %s", session.id)


def run_session_loop(
    user_session: Session,
    agent_session: Session,
    *,
    agent_provider: Provider | None = None,
    tools: Sequence[Tool | Callable[..., Any]] | None = None,
    executor: SessionLoopExecutor | None = None,
    max_tool_rounds: int = 64,
    on_event: OnEventCb | None = None,
    persist: bool = False,
    store: SessionStore | str | None = None,
    persist_path: Path | None = None,
    sandbox_handle_id: str | None = None,
    lazy: bool = True,
    system_tools: SystemTools = True,
    recall: Recall | None = None,
    timeout: float | None = None,
    output: object = None,
    output_retries: int = 2,
    durability: Durability | None = None,
    approval: ApprovalRule = "never",
    hooks: LoopHooks | None = None,
    purpose: Purpose = "turn",
    streaming: bool | None = None,
) -> Session:
    """Let a model answer a session, calling tools until a turn calls none.

    Returns at once, also when an input is still pending; reads of the result wait.

    Args:
        user_session: The transcript to go on with.
        agent_session: The agent's instructions; they stand before the transcript in every request.
        agent_provider: Model to ask; the user session's provider by default.
        tools: Tools to offer beside the built-in ones; a typed function is made one.
        executor: Completes requests and dispatches tools in place of the loop.
        max_tool_rounds: Model calls at most; the outcome is RoundLimit when they are used up.
        on_event: Makes the calls streamed and gets every delta, in order.
        persist: Write the run to the store of the home.
        store: Write it to this store, or the one of this URL, instead.
        persist_path: Write the run to this file.
        sandbox_handle_id: Identity of a remote sandbox, for the file's header.
        lazy: False waits for the run before returning.
        system_tools: True for all built-in tools, False for none, or their names. A session
            without a sandbox offers none of them, since each could only fail.
        recall: Gives notes that the model reads as reference data; they are no rows.
        timeout: Seconds for the whole run; the outcome is DeadlineExceeded when they are over.
        output: Type of the answer, a pydantic model for example; `session.output` gives it.
        output_retries: Model calls that may follow an answer that does not fit `output`.
        durability: How carefully a run is written: "turn" forces it to disk before a tool call that
            is not idempotent and around model calls and rounds of tools, "row" with every row,
            "none" only at its end. By default what `OPENRATH_DURABILITY` or a config says, else
            "turn".
        approval: Whether somebody must allow a call before it is made, whatever its tool says:
            "never", "always", or a function that gets a `CallRequest` and says so. The run ends
            with the outcome NeedsApproval then, and goes on when its calls were approved.
        purpose: What its model calls are for, in the record.
        hooks: Functions that are shown answers and tool calls, and may change them. What is shown
            to `on_event` was not shown to them.
        streaming: Whether answers are streamed also without `on_event`. None: where somebody reads
            `session.stream()` when a model is asked, and its client can stream.

    Returns:
        A new session in the user session's sandbox, with the user session's provider.

    Raises:
        TypeError: An argument is of the wrong type, also a rule of approval.
        ValueError: No provider, no key, no model, an unknown provider kind or durability, a budget
            in money for a model without a known price, or arguments that exclude each other.
        ToolNameConflictError: Two tools have the same name; a tool of yours named
            `edit_workspace_file` takes the place of the built-in one instead.
    """
    if not lazy:
        check_may_wait("run_session_loop")
    provider = provider_for("run_session_loop", user_session, agent_session, agent_provider)
    _check_limits(max_tool_rounds, timeout)
    check_approval(approval, "run_session_loop")
    _check_given(executor, on_event, recall, hooks)
    origin: ProviderOrigin = "session" if agent_provider is None else "call"
    is_streamed = on_event if streaming is None else streaming or on_event
    candidates = candidates_for(provider, executor, is_streamed or None, origin=origin)
    check_budget("run_session_loop", candidates)
    table = tool_table(tools, system_tools=system_tools)
    offers = {name: offer(tool) for name, tool in table.items()}
    own_schemas = () if executor is None else _schemas_of(executor)
    place, served = begin_operation("loop", user_session, agent_session, candidates)
    before: EarlierRun | None = None
    if served is None and _may_resume(user_session):
        before = _find_earlier_run(user_session, agent_session, place)
    if before is not None and before.complete_run is not None:
        out = _not_run(before.complete_run, recall)
        register_run(user_session, agent_session, out)
        return out if lazy else out.synchronize()
    goes_on = None if before is None else before.goes_on
    placement = (before and before.placement) or user_session.core.placement
    if executor is None and not placement.is_chosen:
        recorded = _recorded_tools(served, goes_on)
        offers = {name: offers[name] for name in without_sandbox_tools(table, recorded=recorded)}
    schemas = own_schemas or offered_schemas(offers)
    tool_names = {*offers, *(schema.name for schema in schemas)}
    if goes_on is not None:
        goes_on = _check_compatible(goes_on, schemas, candidates[0], offers)
    session_id = place.new_id() if before is None else before.session
    plan = LoopPlan(
        session=session_id,
        user=user_session.core.inheritor(),
        cells=(user_session.core.body, agent_session.core.body) if before is None else before.cells,
        provider=provider,
        candidates=candidates,
        dispatch_tool=None if executor is None else executor.dispatch_tool,
        tools=offers,
        schemas=schemas,
        output=plan_output(output, output_retries, candidates=candidates, tool_names=tool_names),
        approval=approval,
        max_tool_rounds=max_tool_rounds,
        on_event=on_event,
        streaming=streaming,
        recall=recall if served is None else served.recall(recall),
        timeout=timeout,
        placement=placement.share(),
        provenance=(before and before.provenance)
        or _provenance(session_id, user_session, agent_session),
        session_provider=user_session.provider,
        lineage=(before and before.lineage) or SessionLineage(user_session.id, agent_session.id),
        place=place,
        served=served,
        goes_on=goes_on,
        started_at=call_site(),
        hooks=hooks if hooks is not None and served is None else NO_HOOKS,
        purpose=purpose,
        passed_on=passed_on_to(user_session.id) if served is None else (),
        recording=plan_recording(
            session_id,
            persist=persist,
            store=store,
            path=persist_path,
            sandbox_handle_id=sandbox_handle_id,
            durability=durability,
            goes_on_from=None if goes_on is None else user_session.core.body,
        ),
    )
    out = _submit(plan, user_session, None if before is None else before.origin)
    announce_run(out)
    register_run(user_session, agent_session, out)
    return out if lazy else out.synchronize()


def _recorded_tools(served: RecordedServing | None, goes_on: ResumePoint | None) -> Collection[str]:
    """Return the names of the tools that this very run offered before, none for a new one."""
    if served is not None:
        return served.offered
    return () if goes_on is None else [tool.name for tool in goes_on.operation.tools]


def _provenance(session_id: UUID, user_session: Session, agent_session: Session) -> Provenance:
    parents = (user_session.core.as_parent(), agent_session.core.as_parent())
    return stamped(session_id, "run_session_loop", LineageKind.OP_SESSION_LOOP, parents)


def _not_run(session: Session, recall: Recall | None) -> Session:
    """Return a session that is there already, and give back what its run would have held."""
    _let_go(recall)
    note_content(session)
    return session


def _let_go(recall: Recall | None) -> None:
    if isinstance(recall, HoldingRecall):
        recall.close()


def _submit(plan: LoopPlan, user_session: Session, origin: Deferred[Body] | None) -> Session:
    """Submit a run, unless one has gone on with its origin meanwhile; return its session."""

    def start() -> Deferred[Body]:
        with nullcontext() if plan.goes_on is None else _inside_calls(user_session):
            return Deferred.start(
                partial(execute_loop, plan),
                owner=plan.session,
                label=f"session {short_id(plan.session)} (run_session_loop, {plan.started_at})",
                inputs=plan.cells,
                on_cancel=plan.end_cancelled,
            )

    placement = plan.placement.share()  # before the run can give it back
    cell, is_ours = submit_once(plan.session, origin, start)
    if not is_ours:
        plan.placement.drop()
        _let_go(plan.recall)
    out = plan.made(cell, placement)
    note_content(out)
    return out


def plan_recording(
    session: UUID,
    *,
    persist: bool,
    path: Path | None,
    store: SessionStore | str | None = None,
    durability: Durability | None = None,
    goes_on_from: Deferred[Body] | None = None,
    sandbox_handle_id: str | None = None,
) -> RecordingPlan | None:
    """Return where a run is written; see `rath.session.run.recorder.plan_recording`."""
    given = path, store, durability
    is_wanted = persist or any(each is not None for each in given) or is_autosaving()
    around = goes_on_from or current_source() or recording_store()
    if not is_wanted and around is None:
        if current_replay() is None:
            note_unrecorded_run()
        return None
    plan: RecordingPlan | None = _plan_recording(
        session,
        persist=persist,
        path=path,
        store=store,
        sandbox_handle_id=sandbox_handle_id,
        durability=durability,
        goes_on_from=goes_on_from,
    )
    return plan


def submit_once(
    session: UUID, origin: Deferred[Body] | None, start: Callable[[], Deferred[Body]]
) -> tuple[Deferred[Body], bool]:
    """Submit a run, unless the same one was submitted meanwhile; see `start_or_join`."""
    if origin is None and current_source() is None:
        return start(), True
    submitted: tuple[Deferred[Body], bool] = _start_or_join(session, origin, start)
    return submitted


def _may_resume(user_session: Session) -> bool:
    """Tell whether an earlier run may be served or resumed here."""
    cell = user_session.core.body
    if current_source() is not None:
        return True
    return cell.done() and cell.error() is None and isinstance(cell.result().outcome, Suspended)


def _schemas_of(executor: SessionLoopExecutor) -> tuple[RathLLMFunctionTool, ...]:
    """Return the tools that an executor wants offered; asked at once, so it cannot be a coroutine.

    Raises:
        TypeError: It gives something else.
    """
    schemas: object = executor.tool_schemas()
    if inspect.iscoroutine(schemas):
        schemas.close()
    if not isinstance(schemas, Sequence) or isinstance(schemas, str):
        raise TypeError(
            f"tool_schemas of executor {executor!r:.80} must be a plain `def` that returns a "
            f"tuple of RathLLMFunctionTool, () for the loop's own; it gave {schemas!r:.80}"
        )
    return tuple(cast("Sequence[RathLLMFunctionTool]", schemas))


def _check_given(executor: object, on_event: object, recall: object, hooks: object) -> None:
    check_executor("run_session_loop", executor)
    check_callable("run_session_loop", "on_event", on_event)
    check_callable("run_session_loop", "recall", recall)
    if hooks is not None and not isinstance(hooks, LoopHooks):
        raise TypeError(
            f"hooks must be a LoopHooks, not {type(hooks).__name__}: give functions by their kind, "
            "hooks=LoopHooks(model=[...])"
        )


def _check_limits(max_tool_rounds: object, timeout: object) -> None:
    is_flag = isinstance(max_tool_rounds, bool)
    if is_flag or not isinstance(max_tool_rounds, int) or max_tool_rounds < 0:
        raise ValueError(
            f"max_tool_rounds must be a whole number of at least 0, not {max_tool_rounds!r}"
        )
    if timeout is not None and not (isinstance(timeout, int | float) and timeout > 0):
        raise ValueError(f"timeout must be a number of seconds above 0, not {timeout!r}")


__all__ = [
    "DefaultSessionLoopExecutor",
    "OnEventCb",
    "SessionLoopExecutor",
    "StreamingExecutor",
    "resolve_executor",
    "run_session_loop",
]
