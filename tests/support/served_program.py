"""A workflow that is served in processes of its own: what it does follows from the message."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from rath.flow import Agent, Workflow
from rath.llm.chat_request import RathLLMChatRequest
from rath.session import Session
from rath.testing import ScriptedClient, tool_call
from rath.testing.chat import Answer
from tests.support.sessions import FunctionTool

print("a program may print where it is loaded")  # noqa: T201  # the point


def answer(request: RathLLMChatRequest) -> Answer:
    """Answer what the user said last."""
    users = [str(message.content) for message in request.messages if message.role == "user"]
    reply, is_first = users[-1], request.messages[-1].role == "user"
    if reply == "fail":
        raise RuntimeError("the endpoint is gone")
    marker = Path(os.environ["SERVED_BEGUN"] + "-failed")
    if reply == "fail once" and not marker.exists():
        marker.touch()
        raise RuntimeError("the endpoint is gone")
    if reply in ("wait", "print", "act") and is_first:
        return tool_call(reply)
    if reply == "wait":
        threading.Event().wait(600)
    return f"{len(users)}: {reply}"


def wait(session: Session, _: object) -> str:
    """Say in a file that the run has begun."""
    Path(os.environ["SERVED_BEGUN"]).write_text(str(session.id))
    return "begun"


def print_everywhere(*_: Any) -> str:
    """Print in all the ways in which a program can."""
    print("a tool prints")  # noqa: T201  # the point
    sys.stdout.flush()
    os.write(1, b"and writes\n")
    subprocess.run(["/bin/echo", "and its child too"], check=True)
    return f"read {sys.stdin.read()!r}"


class Guarded(FunctionTool):
    """A tool of which each call must be allowed."""

    approval = "always"


class Team(Workflow):
    """Says again what is said."""

    def __init__(self) -> None:
        tools = [
            FunctionTool("wait", wait),
            FunctionTool("print", print_everywhere),
            Guarded("act", lambda *_: "acted"),
        ]
        client = ScriptedClient([answer] * 1_000)
        self.agent = Agent("echo", client.provider, tools, system_tools=False)

    def forward(self, session: Session) -> Session:
        return self.agent(session)


def make() -> Team:
    """Return a team of its own."""
    return Team()
