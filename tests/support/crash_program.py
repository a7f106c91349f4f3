"""A program with all that can be cut off: tools, parallel calls, forks, a merge, a compression."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

from rath.flow import Agent, Compressor, Selector, Workflow
from rath.flow.tool import FlowToolCall
from rath.llm import Provider, register_chat_client
from rath.llm.chat_request import RathLLMChatRequest
from rath.llm.chat_response import RathLLMAssistantMessage
from rath.session import Session
from rath.testing import ScriptedClient, tool_call

PAUSE = 0.002
"""Seconds that a tool and a model take in a process that is killed, so that it may be there."""

_SCRIPTS: dict[str, list[list[tuple[str, str]]]] = {
    "planner": [[("look", "p1"), ("note", "p2"), ("look", "p3")], [("note", "p4")]],
    "left": [[("note", "l1"), ("note", "l2")]],
    "right": [[("ask", "r1")], [("look", "r2")]],
    "finisher": [[("note", "f1")]],
    "helper": [[("look", "h1")]],
}
"""By role: for each turn the calls that it makes; the turn after the last one is text."""


Effects: TypeAlias = Literal["read_only", "idempotent", "non_idempotent"]


def append_line(path: Path, text: str) -> None:
    """Write a line, at once, which no other process can tear apart."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, f"{text}\n".encode())
    finally:
        os.close(file)


class Noted(FlowToolCall):
    """A tool that writes each call to a file outside of the store."""

    parallel_safe = True
    pause = 0.0
    """Seconds that a call takes at least."""

    def __init__(self, name: str, effects: Effects, log: Path) -> None:
        self._name = name
        self.effects = effects
        self._log = log

    @property
    def name(self) -> str:
        return self._name

    @property
    def parameters(self) -> Mapping[str, Any]:
        return {"type": "object", "properties": {"key": {"type": "string"}}}

    def resource_key(self, arguments: Mapping[str, Any]) -> tuple[str, ...]:
        return (str(arguments["key"]),)

    def __call__(self, session: Session, arguments: Mapping[str, Any]) -> Any:
        self.note(arguments)
        return {"said": arguments["key"]}

    def note(self, arguments: Mapping[str, Any]) -> None:
        """Write that a call is made, at once."""
        append_line(self._log, str(arguments["key"]))
        time.sleep(self.pause)


class Asking(Noted):
    """A tool that asks an agent of its own."""

    def __init__(self, log: Path, helper: Agent) -> None:
        super().__init__("ask", "idempotent", log)
        self._helper = helper

    def __call__(self, session: Session, arguments: Mapping[str, Any]) -> Any:
        self.note(arguments)
        return self._helper(Session.from_user_message("please look")).text()


class CrashProgram(Workflow):
    """Plans, works on two branches, puts them together, sums up, and ends.

    Args:
        log: Gets the key of each call of a tool.
        asked: Gets the role and the turn of each call of the model.
        pause: Seconds that each call takes.
        effects: What may be repeated of the tool `note`.
    """

    def __init__(
        self,
        log: Path,
        *,
        asked: Path | None = None,
        pause: float = 0.0,
        effects: Effects = "idempotent",
    ) -> None:
        super().__init__()
        provider = deterministic_provider(pause, asked)
        look, note = Noted("look", "read_only", log), Noted("note", effects, log)
        look.pause = note.pause = pause

        def agent(role: str, *tools: FlowToolCall) -> Agent:
            return Agent(role, provider, list(tools), system_tools=False, description=role)

        self.helper = agent("helper", look)
        self.planner = agent("planner", look, note)
        self.left = agent("left", note)
        self.right = agent("right", look, Asking(log, self.helper))
        self.compressor = Compressor("compressor", provider)
        self.selector = Selector(provider, select_instruction="selector")
        self.finisher = agent("finisher", note)

    def forward(self, session: Session) -> Session:
        planned = self.planner(session)
        left, right = self.left(planned.fork()), self.right(planned.fork())
        short = self.compressor(left.merge(right))
        chosen = self.selector.forward(short, self.planner, self.finisher)
        return chosen(short)


def deterministic_provider(pause: float = 0.0, asked: Path | None = None) -> Provider:
    """Return a provider whose model answers by nothing but the request, after `pause` seconds."""
    client = ScriptedClient([partial(_answer, pause, asked)] * 10_000)
    register_chat_client("crash-model", lambda _: client)
    return Provider(provider_kind="crash-model", model="crash-model")


def _answer(
    pause: float, asked: Path | None, request: RathLLMChatRequest
) -> RathLLMAssistantMessage:
    role = str(request.messages[0].content)
    own = [
        message
        for message in request.messages
        if message.role == "assistant" and _is_of(role, message.tool_calls or ())
    ]
    if asked is not None:
        append_line(asked, f"{role} {len(own)}")
    time.sleep(pause)
    if role not in _SCRIPTS:
        return RathLLMAssistantMessage(content="1" if role == "selector" else "in short")
    script = _SCRIPTS[role]
    if len(own) == len(script):
        return RathLLMAssistantMessage(content=f"{role} is done")
    first, *more = (
        tool_call(name, {"key": key}, id=f"{role}-{key}") for name, key in script[len(own)]
    )
    calls = [part for turn in (first, *more) for part in turn.tool_calls or ()]
    return RathLLMAssistantMessage(tool_calls=tuple(calls))


def _is_of(role: str, calls: Any) -> bool:
    return any(str(call["id"]).startswith(f"{role}-") for call in calls)
