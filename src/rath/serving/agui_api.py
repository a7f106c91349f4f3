"""AG-UI over HTTP: a run of a served workflow as the events of the protocol, at `/agui/NAME`.

The protocol: https://docs.ag-ui.com. Its wire is small, so that its package is needed by tests
alone.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, cast

import msgspec
from msgspec import Struct
from sse_starlette.event import ServerSentEvent
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from rath.serving import openai_wire as wire
from rath.serving.mcp_api import Allowed
from rath.serving.openai_api import answer_errors, answer_of, event_stream, principal_of
from rath.serving.principals import Principal
from rath.serving.runs import (
    Conflict,
    RunFailed,
    RunRequest,
    Runs,
    ServedRun,
    client_calls,
    decide_calls,
    in_worker,
    still_runs,
    stream_text,
)
from rath.session import Session
from rath.session.chunk import user_text_chunk
from rath.session.open_calls import OpenCall
from rath.session.outcome import NeedsApproval, NeedsInput

if TYPE_CHECKING:
    from rath.llm.chat_response import RathLLMTokenUsage
    from rath.serving.app import ServerOptions

_SHOWN_ALONE = ("activity", "reasoning")
"""Roles of messages that are not for the model."""

_DECISION = {
    "type": "object",
    "properties": {"decision": {"enum": ["approve", "deny"]}},
    "required": ["decision"],
}


# What a client may send; members that are not named here are ignored.
class _AguiMessage(Struct, frozen=True, rename="camel"):
    role: str
    content: Any = None
    tool_calls: Any = None
    tool_call_id: str | None = None


class _AguiTool(Struct, frozen=True):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class _Resume(Struct, frozen=True, rename="camel"):
    interrupt_id: str
    status: Literal["resolved", "cancelled"]
    payload: Any = None


class AguiRequest(Struct, frozen=True, rename="camel"):
    """A run that a client of AG-UI asks for."""

    thread_id: str
    run_id: str
    messages: list[_AguiMessage]
    tools: list[_AguiTool] | None = None
    resume: list[_Resume] | None = None


class AguiRoutes:
    """The routes of the protocol, one of each workflow.

    Args:
        runs: The runs of the server.
        options: Of the server.
    """

    def __init__(self, runs: Runs, options: ServerOptions) -> None:
        self._runs = runs
        self._options = options

    def routes(self) -> list[Route]:
        """Return the routes, at `/agui/NAME`."""
        routes: list[Route] = []
        for name in self._runs.workflows:
            handler = partial(answer_errors, partial(self._run, name))
            route = Route(f"/agui/{name}", handler, methods=["POST"])
            route.app = Allowed(route.app, name)
            routes.append(route)
        return routes

    async def _run(self, name: str, request: Request) -> Response:
        asked = wire.decode_request(AguiRequest, await request.body())
        principal = principal_of(request)
        if asked.resume:
            wanted = await self._resumed(principal, name, asked.resume)
        else:
            chat = _to_chat(asked, name)
            said = wire.chat_content(chat)
            wanted = RunRequest(
                principal=principal,
                workflow=name,
                rows=said.rows,
                session_id=said.session_id,
                results=said.results,
                tools=wire.chat_tools(chat),
                streaming=True,
            )
        run = await self._runs.start(wanted)
        return event_stream(run, _events(run, asked), self._options.disconnect_grace)

    async def _resumed(self, principal: Principal, name: str, entries: list[_Resume]) -> RunRequest:
        """Return the run that goes on once what it waits for is there.

        Raises:
            WireError: An id is that of no interrupt of this server.
            Conflict: It waits for something else.
            UnknownSession: The principal has no such session.
        """
        session_id = wire.session_of_calls([each.interrupt_id for each in entries])
        _, session = await self._runs.find(principal, session_id)
        take = partial(_take_answers, self._runs, session, principal, entries)
        answer = await in_worker(take)
        return RunRequest(
            principal=principal,
            workflow=name,
            rows=() if answer is None else (user_text_chunk(answer),),
            session_id=session_id,
            streaming=True,
        )


def _take_answers(
    runs: Runs, session: Session, principal: Principal, entries: list[_Resume]
) -> str | None:
    """Decide about calls that wait, or return the answer to a question; blocks."""
    given = {each.interrupt_id: each for each in entries}
    if session.is_pending or runs.runs_elsewhere(session):
        raise still_runs(session.id)
    outcome = session.outcome
    if isinstance(outcome, NeedsApproval):

        def choice_of(call: OpenCall) -> object:
            entry = given.get(wire.call_id(session.id, call))
            if entry is None or entry.status == "cancelled":
                return None if entry is None else "deny"
            payload: object = entry.payload
            if not isinstance(payload, Mapping):
                return None
            return cast("Mapping[str, object]", payload).get("decision")

        decide_calls(session, principal, choice_of, 'resume with {"decision": "approve" or "deny"}')
        return None
    if not isinstance(outcome, NeedsInput) or client_calls(session):
        raise Conflict(f"session {session.id} waits for no such interrupt; send messages")
    entry = given.get(wire.call_id(session.id, session.questions[0].call))
    if entry is None or entry.status == "cancelled":
        raise Conflict(f"session {session.id} waits for an answer: {outcome.question}")
    answer: object = entry.payload
    return answer if isinstance(answer, str) else msgspec.json.encode(answer).decode()


def _to_chat(asked: AguiRequest, model: str) -> wire.ChatRequest:
    """Return the conversation of a client as Chat Completions has it."""
    messages = [
        {
            "role": each.role,
            "content": _content(each.content),
            "tool_calls": each.tool_calls,
            "tool_call_id": each.tool_call_id,
        }
        for each in asked.messages
        if each.role not in _SHOWN_ALONE
    ]
    tools = [{"type": "function", "function": each} for each in asked.tools or ()]
    body = msgspec.json.encode({"model": model, "messages": messages, "tools": tools})
    return wire.decode_request(wire.ChatRequest, body)


def _content(content: object) -> object:
    """Return content with its pictures as Chat Completions has them."""
    if not isinstance(content, list):
        return content
    return [_part(each) for each in cast("list[object]", content)]


def _part(part: object) -> object:
    match part:
        case {
            "type": "image",
            "source": {"type": "data", "value": str(value), "mimeType": str(kind)},
        }:
            return {"type": "image_url", "image_url": {"url": f"data:{kind};base64,{value}"}}
        case _:
            return part


async def _events(run: ServedRun, asked: AguiRequest) -> AsyncGenerator[ServerSentEvent]:
    session = run.session
    ids = {"threadId": asked.thread_id, "runId": asked.run_id}
    message = {"messageId": f"msg_{session.id.hex}_{run.first_row}"}
    yield _event("RUN_STARTED", **ids, metadata={"sessionId": str(session.id)})
    is_begun = False
    try:
        async for text in stream_text(run):
            if not is_begun:
                yield _event("TEXT_MESSAGE_START", **message, role="assistant")
                is_begun = True
            yield _event("TEXT_MESSAGE_CONTENT", **message, delta=text)
        answer = await in_worker(partial(answer_of, session))
        calls = await in_worker(partial(client_calls, session))
        interrupts = await in_worker(partial(_interrupts, session))
    except (Conflict, RunFailed) as exc:
        code = "conflict" if isinstance(exc, Conflict) else "run_failed"
        yield _event("RUN_ERROR", message=str(exc), code=code)
        return
    if not is_begun and answer.text and not interrupts:
        yield _event("TEXT_MESSAGE_START", **message, role="assistant")
        yield _event("TEXT_MESSAGE_CONTENT", **message, delta=answer.text)
        is_begun = True
    elif answer.is_in_call:
        yield _event("TEXT_MESSAGE_CONTENT", **message, delta=f"\n\n{answer.text}")
    if is_begun:
        yield _event("TEXT_MESSAGE_END", **message)
    for call in calls:
        at = {"toolCallId": wire.call_id(session.id, call)}
        yield _event("TOOL_CALL_START", **at, toolCallName=call.call.name)
        yield _event("TOOL_CALL_ARGS", **at, delta=wire.call_arguments(call))
        yield _event("TOOL_CALL_END", **at)
    usage = _usage(run.usage)
    outcome: dict[str, Any] = {"type": "success"}
    if interrupts:
        outcome = {"type": "interrupt", "interrupts": interrupts}
    elif answer.status == "cancelled":
        outcome = {"type": "cancelled"}
    elif answer.problem is not None:
        yield _event("RUN_ERROR", message=answer.problem, code="run_stopped", usage=usage)
        return
    elif calls:
        outcome["pendingToolCallIds"] = [wire.call_id(session.id, call) for call in calls]
    yield _event("RUN_FINISHED", **ids, outcome=outcome, usage=usage)


def _interrupts(session: Session) -> list[dict[str, Any]]:
    """Return what a run waits for that no tool of the client gives; blocks."""
    match session.outcome:
        case NeedsApproval():
            return [
                {
                    "id": wire.call_id(session.id, call),
                    "reason": "approval",
                    "message": f"Somebody must allow the call {call.call.name!r}.",
                    "responseSchema": _DECISION,
                    "metadata": {"tool": call.call.name, "arguments": call.call.arguments},
                }
                for call in session.open_calls
                if call.waits_for == "approval"
            ]
        case NeedsInput(question=question) if not client_calls(session):
            call = session.questions[0].call
            name = wire.call_id(session.id, call)
            return [{"id": name, "reason": "input_required", "message": question}]
        case _:
            return []


def _usage(usage: RathLLMTokenUsage) -> list[dict[str, int]]:
    return [
        {
            "inputTokens": usage.prompt_tokens,
            "outputTokens": usage.completion_tokens,
            "totalTokens": usage.total_tokens,
        }
    ]


def _event(kind: str, **members: Any) -> ServerSentEvent:
    return ServerSentEvent(msgspec.json.encode({"type": kind, **members}).decode())
