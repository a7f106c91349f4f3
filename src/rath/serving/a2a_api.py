"""A2A over HTTP: each served workflow is an agent with a card, whose tasks are runs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import field
from functools import partial
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from a2a.auth.user import User
from a2a.helpers.proto_helpers import (
    get_data_parts,
    get_text_parts,
    new_data_part,
    new_raw_part,
    new_task,
    new_text_part,
)
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.context import ServerCallContext
from a2a.server.events.event_queue import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes.agent_card_routes import create_agent_card_routes
from a2a.server.routes.common import ServerCallContextBuilder
from a2a.server.routes.jsonrpc_routes import create_jsonrpc_routes
from a2a.server.tasks.inmemory_task_store import InMemoryTaskStore
from a2a.server.tasks.task_updater import TaskUpdater
from a2a.types.a2a_pb2 import (
    AgentCapabilities,
    AgentCard,
    AgentInterface,
    AgentSkill,
    HTTPAuthSecurityScheme,
    Part,
    SecurityScheme,
    Task,
    TaskState,
)
from starlette.requests import Request
from starlette.routing import BaseRoute, Route

import rath
from rath._core.dataclasses import dataclass
from rath.flow.tool.agent_tool import description_of
from rath.serving.mcp_api import Allowed
from rath.serving.principals import LimitReached, Principal
from rath.serving.runs import (
    Conflict,
    RunFailed,
    RunRequest,
    Runs,
    ServedRun,
    UnknownSession,
    decide_calls,
    in_worker,
    stream_text,
)
from rath.session import Session
from rath.session.chunk import user_text_chunk
from rath.session.outcome import (
    Cancelled,
    Completed,
    NeedsApproval,
    NeedsDecision,
    NeedsInput,
)
from rath.session.output import plain_answer

if TYPE_CHECKING:
    from rath.serving.app import ServerOptions

MAX_FILE_BYTES = 1 << 20
"""Largest file that is sent as an artifact; of a larger one its name and digest are."""

ANSWER = "answer"
"""Id of the artifact with the text of a run."""

CARD_PATH = "/.well-known/agent-card.json"

MAX_TASKS = 1_000
"""Most tasks of one principal and workflow that are stored; a guess."""

BODIES = 2
"""How many times the largest body these tasks may have together; a guess."""

IDLE_SECONDS = 60.0
"""How long the library holds the queues of a task that waits for input; made anew when it comes."""

FINISHED = frozenset(
    {
        TaskState.TASK_STATE_COMPLETED,
        TaskState.TASK_STATE_CANCELED,
        TaskState.TASK_STATE_FAILED,
        TaskState.TASK_STATE_REJECTED,
    }
)


class _Caller(User):
    """Who calls, for the library: its tasks are kept apart by the name."""

    def __init__(self, principal: Principal) -> None:
        self.principal = principal

    @property
    def is_authenticated(self) -> bool:
        """Whether it has been let in, which it has."""
        return True

    @property
    def user_name(self) -> str:
        """The name of the principal."""
        return self.principal.name


@dataclass(frozen=True, slots=True)
class _TaskFacts:
    """What the store knows of a task without reading it."""

    state: TaskState
    context_id: str
    n_bytes: int
    session_id: UUID | None


@dataclass(slots=True)
class _OwnTasks:
    """The tasks of one principal, the one that was saved last at the end."""

    facts: dict[str, _TaskFacts] = field(default_factory=dict[str, _TaskFacts])
    n_bytes: int = 0

    def note(self, task_id: str, facts: _TaskFacts) -> None:
        self.drop(task_id)
        self.facts[task_id] = facts
        self.n_bytes += facts.n_bytes

    def drop(self, task_id: str) -> None:
        known = self.facts.pop(task_id, None)
        self.n_bytes -= 0 if known is None else known.n_bytes

    def oldest_idle(self, spared: str) -> str | None:
        """Return the oldest task that has ended, else the oldest that waits for input."""
        idle = {
            task_id: facts.state
            for task_id, facts in self.facts.items()
            if task_id != spared
            and (facts.state in FINISHED or facts.state == TaskState.TASK_STATE_INPUT_REQUIRED)
        }
        ended = (task_id for task_id, state in idle.items() if state in FINISHED)
        return next(ended, next(iter(idle), None))


class BoundedTaskStore(InMemoryTaskStore):
    """Tasks in memory, of which each principal has a bounded number and size.

    Beyond the bounds the oldest finished task is forgotten, then the oldest that waits; one that
    runs never is. The session of a task that was forgotten stays in the session store.

    Args:
        max_bytes: Most bytes of the tasks of a principal; the newest is stored in any case.
        max_tasks: Most tasks of a principal.
    """

    def __init__(self, max_bytes: int, max_tasks: int = MAX_TASKS) -> None:
        super().__init__()
        self._max_tasks = max_tasks
        self._max_bytes = max_bytes
        self._owners: dict[str, _OwnTasks] = {}

    async def save(self, task: Task, context: ServerCallContext) -> None:
        """Store a task, and forget others beyond the bounds."""
        await super().save(task, context)
        known = str(task.metadata["session_id"]) if "session_id" in task.metadata else None
        facts = _TaskFacts(
            task.status.state,
            task.context_id,
            task.ByteSize(),
            None if known is None else UUID(known),
        )
        own = self._owners.setdefault(context.user.user_name, _OwnTasks())
        own.note(task.id, facts)
        while len(own.facts) > self._max_tasks or own.n_bytes > self._max_bytes:
            oldest = own.oldest_idle(task.id)
            if oldest is None:
                return
            await self.delete(oldest, context)

    async def delete(self, task_id: str, context: ServerCallContext) -> None:
        """Forget a task."""
        await super().delete(task_id, context)
        own = self._owners.get(context.user.user_name)
        if own is not None:
            own.drop(task_id)

    def session_of(self, owner: str, task_id: str, context_id: str = "") -> UUID | None:
        """Return the session of a task, else the last one of its context, if there is one.

        Args:
            owner: Name of the principal.
            task_id: Of the task.
            context_id: Of the context; empty for the task alone.
        """
        own = self._owners.get(owner, _OwnTasks()).facts
        if task_id in own and own[task_id].session_id is not None:
            return own[task_id].session_id
        in_context = (
            facts.session_id
            for facts in reversed(own.values())
            if context_id and facts.context_id == context_id and facts.session_id is not None
        )
        return next(in_context, None)


class _Contexts(ServerCallContextBuilder):
    """Tells the library who sends a request."""

    def build(self, request: Request) -> ServerCallContext:
        """Return the context of a request; the library reads the version from its headers."""
        headers = {key: value for key, value in request.headers.items() if key != "authorization"}
        caller = _Caller(request.scope["rath.principal"])
        return ServerCallContext(user=caller, state={"headers": headers})


def a2a_routes(runs: Runs, options: ServerOptions) -> list[BaseRoute]:
    """Return the routes of all workflows: `/a2a/NAME`, and their cards.

    The card of the first one is at the well-known place of the server, too.

    Args:
        runs: The runs of the server.
        options: Of the server.
    """
    routes: list[BaseRoute] = []
    for number, name in enumerate(runs.workflows):
        path = f"/a2a/{name}"
        card = _card(runs, name, options.url.rstrip("/") + path)
        tasks = BoundedTaskStore(BODIES * options.max_body_bytes)
        executor = WorkflowExecutor(runs, name, tasks)
        handler = DefaultRequestHandler(
            executor, tasks, card, interrupted_task_timeout=IDLE_SECONDS
        )
        own: list[Route] = [
            *create_jsonrpc_routes(handler, path, _Contexts()),
            *create_agent_card_routes(card, card_url=path + CARD_PATH),
        ]
        if number == 0:
            own += create_agent_card_routes(card, card_url=CARD_PATH)
        for route in own:
            route.app = Allowed(route.app, name)
        routes += own
    return routes


def _card(runs: Runs, name: str, url: str) -> AgentCard:
    description = description_of(runs.workflows[name]) or f"Runs {name}."
    scheme = SecurityScheme(http_auth_security_scheme=HTTPAuthSecurityScheme(scheme="bearer"))
    return AgentCard(
        name=name,
        description=description,
        version=rath.__version__,
        supported_interfaces=[
            AgentInterface(url=url, protocol_binding="JSONRPC", protocol_version="1.0")
        ],
        capabilities=AgentCapabilities(streaming=True),
        security_schemes={"bearer": scheme},
        default_input_modes=["text/plain", "application/json"],
        default_output_modes=["text/plain", "application/json"],
        skills=[AgentSkill(id=name, name=name, description=description, tags=["workflow"])],
    )


class WorkflowExecutor(AgentExecutor):
    """Makes the runs of the tasks of one workflow.

    A task goes on with its session; a new one in a context, with the last one that ended there.
    Tasks are known while the server lives and the store holds them; their sessions stay, and the
    metadata of a task name them.

    Args:
        runs: The runs of the server.
        name: Of the workflow.
        tasks: The store of its tasks.
    """

    def __init__(self, runs: Runs, name: str, tasks: BoundedTaskStore) -> None:
        self._runs = runs
        self._name = name
        self._tasks = tasks

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Run the workflow on a message, and publish its text, its files and its end."""
        principal = _principal_of(context)
        message = context.message
        assert message is not None, "a task is made of a message"
        if context.current_task is None:
            # The library's function for that refuses a message without text.
            task = new_task(
                context.task_id or "",
                context.context_id or "",
                TaskState.TASK_STATE_SUBMITTED,
                history=[message],
            )
            await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, context.task_id or "", context.context_id or "")
        try:
            run = await self._start(principal, context)
        except (Conflict, LimitReached, RunFailed, UnknownSession) as exc:
            problem = updater.new_agent_message([new_text_part(str(exc))])
            # A task that waits still does so; a new one has come to nothing.
            is_new = context.current_task is None
            await (updater.reject(problem) if is_new else updater.requires_input(problem))
            return
        await updater.update_status(
            TaskState.TASK_STATE_WORKING, metadata={"session_id": str(run.session.id)}
        )
        try:
            await self._publish(run, updater)
        except asyncio.CancelledError:
            await run.end_now()
            raise

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """End the run of a task."""
        principal = _principal_of(context)
        session_id = self._tasks.session_of(principal.name, context.task_id or "")
        run = None if session_id is None else self._runs.find_running(principal, session_id)
        if run is not None:
            await run.end_now()
        await TaskUpdater(event_queue, context.task_id or "", context.context_id or "").cancel()

    async def _start(self, principal: Principal, context: RequestContext) -> ServedRun:
        """Begin the run that a message asks for.

        Raises:
            Conflict: The message is no answer to what the task waits for.
        """
        assert context.message is not None
        parts = context.message.parts
        text = "\n".join(get_text_parts(parts))
        session_id = self._tasks.session_of(
            principal.name, context.task_id or "", context.context_id or ""
        )
        is_decided = False
        if session_id is not None:
            _, session = await self._runs.find(principal, session_id)
            outcome = None if session.is_pending else session.outcome
            if isinstance(outcome, NeedsApproval):
                decide = partial(self._decide, principal, outcome, get_data_parts(parts))
                await in_worker(decide)
                is_decided = True
            elif isinstance(outcome, Cancelled | NeedsDecision):
                is_decided = not text
        if not text and not is_decided:
            raise Conflict("the message has no text; say what to do")
        return await self._runs.start(
            RunRequest(
                principal=principal,
                workflow=self._name,
                rows=() if is_decided else (user_text_chunk(text),),
                session_id=session_id,
                streaming=True,
            )
        )

    def _decide(self, principal: Principal, outcome: NeedsApproval, data: list[Any]) -> None:
        """Allow or deny calls by the data of a message, never by its text; blocks."""
        session = Session.load(outcome.session, store=self._runs.store)
        choices: dict[str, object] = {}
        for each in data:
            given = cast("Mapping[str, object]", each if isinstance(each, Mapping) else {})
            decided = given.get("decisions")
            if isinstance(decided, Mapping):
                choices |= cast("Mapping[str, object]", decided)
        advice = 'send a data part {"decisions": {CALL: "approve" or "deny"}}'
        decide_calls(session, principal, lambda call: choices.get(call.call.id), advice)

    async def _publish(self, run: ServedRun, updater: TaskUpdater) -> None:
        session, is_later = run.session, False
        try:
            async for text in stream_text(run):
                part = new_text_part(text)
                await updater.add_artifact([part], ANSWER, name=ANSWER, append=is_later)
                is_later = True
            end = await in_worker(partial(_end_of, session))
        except (Conflict, RunFailed) as exc:
            await updater.failed(updater.new_agent_message([new_text_part(str(exc))]))
            return
        for name, parts in end.files:
            await updater.add_artifact(parts, name=name)
        await updater.update_status(
            end.state,
            updater.new_agent_message(end.parts) if end.parts else None,
            metadata={"session_id": str(session.id)},
        )


class _End:
    """How a run ended, as a task says it."""

    def __init__(self, state: TaskState, parts: list[Part], files: list[tuple[str, list[Part]]]):
        self.state = state
        self.parts = parts
        self.files = files


def _end_of(session: Session) -> _End:
    """Return the end of a run; blocks."""
    outcome = session.outcome
    files = _files_of(session)
    match outcome:
        case NeedsApproval():
            calls = [
                {"call": each.call.id, "tool": each.call.name, "arguments": each.call.arguments}
                for each in session.open_calls
            ]
            text = f"Somebody must allow the calls {', '.join(outcome.calls)}."
            parts = [new_text_part(text), new_data_part({"calls": calls})]
            return _End(TaskState.TASK_STATE_INPUT_REQUIRED, parts, files)
        case NeedsInput():
            parts = [new_text_part(outcome.question)]
            return _End(TaskState.TASK_STATE_INPUT_REQUIRED, parts, files)
        case NeedsDecision():
            text = (
                f"It is not known whether the calls {', '.join(outcome.calls)} took effect; "
                f"somebody must decide where the server runs (rath decide {outcome.session})."
            )
            return _End(TaskState.TASK_STATE_INPUT_REQUIRED, [new_text_part(text)], files)
        case Cancelled():
            return _End(TaskState.TASK_STATE_CANCELED, [], files)
        case Completed():
            answer = plain_answer(session)
            if answer is None or isinstance(answer, str):
                parts = [new_text_part(answer or session.text())]
            else:
                parts = [new_data_part(answer)]
            return _End(TaskState.TASK_STATE_COMPLETED, parts, files)
        case _:
            text = f"The run was stopped: {outcome}"
            return _End(TaskState.TASK_STATE_FAILED, [new_text_part(text)], files)


def _files_of(session: Session) -> list[tuple[str, list[Part]]]:
    """Return the files that a run changed, each with its content; of a large one its digest."""
    found: list[tuple[str, list[Part]]] = []
    for change in session.files.changes():
        blob = change.after
        if blob is None:
            found.append((change.path, [new_data_part({"path": change.path, "kind": "deleted"})]))
        elif blob.data is not None and blob.size <= MAX_FILE_BYTES:
            found.append((change.path, [new_raw_part(blob.data, filename=change.path)]))
        else:
            known = {"path": change.path, "sha256": blob.digest, "bytes": blob.size}
            found.append((change.path, [new_data_part(known)]))
    return found


def _principal_of(context: RequestContext) -> Principal:
    caller = context.call_context.user
    assert isinstance(caller, _Caller), "the builder of contexts makes no other"
    return caller.principal
