"""A program whose agents wait for approvals inside calls, and from which more is then made."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import partial
from typing import Any
from uuid import UUID

from rath.flow import Agent, Compressor, Workflow
from rath.llm import Provider, register_chat_client
from rath.llm.chat_request import RathLLMChatRequest
from rath.llm.chat_response import RathLLMAssistantMessage
from rath.session import Session
from rath.session.log.verify import verify
from rath.session.persistence.store import SessionStore
from rath.session.run.stored_programs import waiting_sessions
from rath.session.tooling import ToolEffects
from rath.testing import ScriptedClient, tool_call
from tests.support.sessions import FunctionTool

N_SCHEMA: Mapping[str, Any] = {"type": "object", "properties": {"n": {"type": "string"}}}


class Sending(FunctionTool):
    """A tool that somebody must allow, and that must not be called twice for one number."""

    approval = "always"
    effects: ToolEffects = "non_idempotent"

    def __init__(self) -> None:
        super().__init__("send", self._send, schema=N_SCHEMA, parallel_safe=True)
        self.sent: list[str] = []
        self._lock = threading.Lock()

    def resource_key(self, arguments: Mapping[str, Any]) -> tuple[str, ...]:
        return (str(arguments["n"]),)

    def _send(self, _: Session, arguments: Mapping[str, Any]) -> str:
        with self._lock:
            self.sent.append(str(arguments["n"]))
        return f"sent {arguments['n']}"


class WaitingTeam(Workflow):
    """A boss asks helpers that must be allowed to send; forks, a merge and a summary follow.

    Args:
        n_helpers: How many helpers are asked at once.
    """

    def __init__(self, n_helpers: int = 1) -> None:
        super().__init__()
        self.sending = Sending()
        model = _provider(n_helpers)
        # What was sent is on disk before a model is asked again.
        helper = Agent("helper", model, [self.sending], system_tools=False, durability="row")
        tool = helper.as_tool("helper", effects="idempotent", parallel_safe=True)
        self.boss = Agent("boss", model, [tool], system_tools=False)
        self.left = Agent("left", model, [], system_tools=False)
        self.right = Agent("right", model, [], system_tools=False)
        self.compressor = Compressor("compressor", model)
        self.finisher = Agent("finisher", model, [], system_tools=False)

    def forward(self, session: Session) -> Session:
        asked = self.boss(session)
        left, right = self.left(asked.fork()), self.right(asked.fork())
        return self.finisher(self.compressor(left.merge(right)))


def allow(session: Session, store: SessionStore | None = None, *, limit: int = 100) -> int:
    """Approve calls that a session waits for, also inside calls; return how many those were."""
    stored = Session.load(session.id, store=store)
    n_calls = 0
    for waiting in waiting_sessions(stored):
        for call in waiting.open_calls:
            if call.waits_for == "approval" and n_calls < limit:
                waiting.approve(call)
                n_calls += 1
    return n_calls


def problems(store: SessionStore, *sessions: UUID) -> list[str]:
    """Return what is not as it was written in sessions of a store, by default in all of them."""
    asked = sessions or tuple(store.stamps())
    found = [problem for session in asked for problem in verify(store, session).problems]
    return [f"{each.session}: {each.text}" for each in found if each.severity != "note"]


def _provider(n_helpers: int) -> Provider:
    """Return a provider whose model answers by nothing but the request."""
    client = ScriptedClient([partial(_answer, n_helpers)] * 10_000)
    kind = "waiting-model"
    register_chat_client(kind, lambda _: client)
    return Provider(provider_kind=kind, model=kind)


def _answer(n_helpers: int, request: RathLLMChatRequest) -> RathLLMAssistantMessage:
    role, last = str(request.messages[0].content), request.messages[-1]
    if role == "boss" and last.role == "user":
        return _calls("helper", [{"task": str(n)} for n in range(n_helpers)])
    if role == "helper" and last.role == "user":
        return _calls("send", [{"n": str(last.content)}])
    return RathLLMAssistantMessage(content=f"{role} is done")


def _calls(tool: str, arguments: list[dict[str, str]]) -> RathLLMAssistantMessage:
    turns = [tool_call(tool, each, id=f"{tool}-{n}") for n, each in enumerate(arguments)]
    parts = [part for turn in turns for part in turn.tool_calls or ()]
    return RathLLMAssistantMessage(tool_calls=tuple(parts))
