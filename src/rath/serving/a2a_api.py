"""A2A over HTTP: each served workflow is an agent with a card, whose tasks are runs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from a2a.auth.user import User
from a2a.helpers.proto_helpers import (
    get_data_parts,
    get_text_parts,
    new_data_part,
    new_raw_part,
    new_task_from_user_message,
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
    TaskState,
)
from starlette.requests import Request
from starlette.routing import BaseRoute, Route

import rath
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
        handler = DefaultRequestHandler(WorkflowExecutor(runs, name), InMemoryTaskStore(), card)
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
    Tasks are known while the server lives; their sessions stay, and the metadata of a task name
    them.

    Args:
        runs: The runs of the server.
        name: Of the workflow.
    """

    def __init__(self, runs: Runs, name: str) -> None:
        self._runs = runs
        self._name = name
        self._sessions: dict[tuple[str, str], UUID] = {}
        """Principal and id of a task or of a context to the session that goes on."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Run the workflow on a message, and publish its text, its files and its end."""
        principal = _principal_of(context)
        message = context.message
        assert message is not None, "a task is made of a message"
        if context.current_task is None:
            task = new_task_from_user_message(message)
            task.id, task.context_id = context.task_id or task.id, context.context_id or ""
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
        self._note(principal, context, run.session)
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
        session_id = self._sessions.get((principal.name, context.task_id or ""))
        run = None if session_id is None else self._runs.find_running(principal, session_id)
        if run is not None:
            await run.end_now()
        await TaskUpdater(event_queue, context.task_id or "", context.context_id or "").cancel()

    def _note(self, principal: Principal, context: RequestContext, session: Session) -> None:
        for name in (context.task_id, context.context_id):
            if name:
                self._sessions[principal.name, name] = session.id

    async def _start(self, principal: Principal, context: RequestContext) -> ServedRun:
        """Begin the run that a message asks for.

        Raises:
            Conflict: The message is no answer to what the task waits for.
        """
        assert context.message is not None
        parts = context.message.parts
        text = "\n".join(get_text_parts(parts))
        session_id = self._sessions.get((principal.name, context.task_id or ""))
        if session_id is None:
            session_id = self._sessions.get((principal.name, context.context_id or ""))
        is_decided = False
        if session_id is not None:
            _, session = await self._runs.find(principal, session_id)
            outcome = None if session.is_pending else session.outcome
            if isinstance(outcome, NeedsApproval):
                decide = partial(self._decide, principal, outcome, get_data_parts(parts))
                await in_worker(decide)
                is_decided = True
            elif isinstance(outcome, Cancelled):
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
        except RunFailed as exc:
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
                parts = [new_text_part(answer or session.text() or "")]
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
