"""A program whose effects and model calls can be counted: two agents, a tool, no server.

Each item names a folder, in which the files `effects`, `calls` and `held` get a line for each
effect, each call of the model, and each call of the model that waits until a file `go` is there.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Literal, TypeAlias

from msgspec import Struct

from rath.flow import Agent, Workflow
from rath.flow.tool import tool
from rath.llm.base import ChatClient
from rath.llm.chat_request import RathLLMChatRequest
from rath.llm.chat_response import (
    RathLLMAssistantMessage,
    RathLLMChatChoice,
    RathLLMChatResponse,
    RathLLMTokenUsage,
    tool_call_part,
)
from rath.llm.provider import Provider
from rath.llm.registry import register_chat_client
from rath.session.session import Session

MODEL = "rath-counted-model"
USAGE = RathLLMTokenUsage(10, 5, 15)
"""Tokens of each call of the model."""

_LOOK_SECONDS = 0.02

Behaviour: TypeAlias = Literal["work", "hold", "fail", "ask"]
"""What becomes of an item: `work` ends at once; `hold` has its effect and waits for `release`
before its last answer; `fail` fails until `mend`, before its effect; `ask` waits for approval."""

FileName: TypeAlias = Literal["effects", "calls", "held"]


class CountedItem(Struct, frozen=True):
    """What the user asks of the program: the whole text of the one row of an input."""

    key: str
    folder: str
    behaviour: Behaviour = "work"
    seconds: float = 0.0
    """How long each call of the model takes."""

    def session(self) -> Session:
        """Return the input."""
        return Session.from_user_message(json.dumps({f: getattr(self, f) for f in _FIELDS}))


_FIELDS = CountedItem.__struct_fields__


def lines(folder: Path, name: FileName) -> list[list[str]]:
    """Return what the program has written into a file, as the words of each line.

    The first word is the key of an item. Then come, in `calls`, the agent and the number of the
    turn; in `held`, host and process.
    """
    try:
        text = (folder / name).read_text()
    except FileNotFoundError:
        return []
    return [line.split() for line in text.splitlines()]


def release(folder: Path) -> None:
    """Let all that is held go on."""
    (folder / "go").touch()


def mend(folder: Path) -> None:
    """Let what fails succeed from now on."""
    (folder / "mended").touch()


def _append(folder: str, name: FileName, *words: str) -> None:
    """Write one line, which no other process can tear apart."""
    file = os.open(Path(folder) / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, f"{' '.join(words)}\n".encode())
    finally:
        os.close(file)


@tool(effects="non_idempotent")
def append_effect(key: str, folder: str) -> str:
    """Have an effect that can be counted."""
    _append(folder, "effects", key)
    return "appended"


@tool(effects="non_idempotent", approval="always")
def append_allowed(key: str, folder: str) -> str:
    """Have an effect that somebody must allow."""
    _append(folder, "effects", key)
    return "appended"


class CountedClient:
    """Answers by nothing but the request: writes by a tool, then says so."""

    answers_offline: ClassVar[bool] = True

    def __init__(self, provider: Provider) -> None:
        self.provider = provider

    async def complete(self, req: RathLLMChatRequest) -> RathLLMChatResponse:
        """Answer the next turn of an agent."""
        role = str(req.messages[0].content)
        item = _item(req.messages[1].content or "")
        turn = sum(each.role == "tool" for each in req.messages) if role == "writer" else 0
        _append(item.folder, "calls", item.key, role, str(turn))
        await asyncio.sleep(item.seconds)
        if item.behaviour == "fail" and not (Path(item.folder) / "mended").exists():
            raise ConnectionError(f"no answer for {item.key}")
        if role == "writer" and turn == 0:
            used = "append_allowed" if item.behaviour == "ask" else "append_effect"
            arguments = json.dumps({"key": item.key, "folder": item.folder})
            part = tool_call_part(f"call-{item.key}", used, arguments)
            return _response(req, RathLLMAssistantMessage(tool_calls=(part,)))
        if role == "reviewer" and item.behaviour == "hold":
            _append(item.folder, "held", item.key, socket.gethostname(), str(os.getpid()))
            # Another process makes the file, which tells nobody.
            while not (Path(item.folder) / "go").exists():  # noqa: ASYNC110
                await asyncio.sleep(_LOOK_SECONDS)
        return _response(req, RathLLMAssistantMessage(content=f"{role} has seen {item.key}"))


def _item(text: str) -> CountedItem:
    return CountedItem(**json.loads(text))


def _response(req: RathLLMChatRequest, message: RathLLMAssistantMessage) -> RathLLMChatResponse:
    reason: Literal["tool_calls", "stop"] = "tool_calls" if message.tool_calls else "stop"
    choices = (RathLLMChatChoice(index=0, finish_reason=reason, message=message),)
    return RathLLMChatResponse(
        id="", choices=choices, created=0, model=req.model or MODEL, usage=USAGE
    )


def _counted_client(provider: Provider) -> ChatClient:
    client: object = CountedClient(provider)
    assert isinstance(client, ChatClient)
    return client


register_chat_client(MODEL, _counted_client)


class CountedTeam(Workflow):
    """A writer, which has one effect for each item, and a reviewer: three calls of the model.

    Args:
        provider: What the calls say of themselves; its `provider_kind` is `MODEL`.
    """

    def __init__(self, provider: Provider | None = None) -> None:
        super().__init__("a counted team")
        provider = provider or Provider(provider_kind=MODEL, model=MODEL)
        tools = [append_effect, append_allowed]
        self.writer: Agent = Agent("writer", provider, tools, system_tools=False)
        self.reviewer: Agent = Agent("reviewer", provider, system_tools=False)

    def forward(self, session: Session) -> Session:
        return self.reviewer(self.writer(session))


def counted_items(
    n: int, folder: Path, behaviour: Behaviour = "work", *, seconds: float = 0.0
) -> Sequence[CountedItem]:
    """Return items `i0`, `i1`, and so on, which have their effects in a folder that is there."""
    return [CountedItem(f"i{at}", str(folder), behaviour, seconds) for at in range(n)]
