"""A program with an agent as a tool, whose model ends the process in the middle of the task."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rath.flow import Agent, Workflow
from rath.llm.chat_request import RathLLMChatRequest
from rath.session import Session
from rath.session.tooling import ToolEffects
from rath.testing import ScriptedClient, tool_call
from rath.testing.chat import Turn
from tests.support.sessions import FunctionTool


class Team(Workflow):
    """An agent that hands its work to another one, which notes what it does in a file."""

    def __init__(
        self, notes: Path, effects: ToolEffects, *, outer: Sequence[Turn], inner: Sequence[Turn]
    ) -> None:
        def note(_: Session, arguments: Any) -> str:
            with notes.open("a") as file:
                file.write(f"{arguments['text']}\n")
            return "noted"

        tools = [FunctionTool("note", note)]
        provider = ScriptedClient(inner).provider
        # What was done is on disk before the model is asked again.
        self.worker = Agent("worker", provider, tools, system_tools=False, durability="row")
        helper = self.worker.as_tool("helper", effects=effects)
        self.boss = Agent("boss", ScriptedClient(outer).provider, [helper], system_tools=False)

    def forward(self, session: Session) -> Session:
        return self.boss(session)


def die(_: RathLLMChatRequest) -> str:
    """End the process as a power failure would."""
    os.kill(os.getpid(), signal.SIGKILL)
    return "never"


def main(notes: Path, effects: ToolEffects) -> None:
    """Run the program until its model ends the process."""
    outer = [tool_call("helper", {"task": "note it"}, id="handed")]
    team = Team(notes, effects, outer=outer, inner=[tool_call("note", {"text": "once"}), die])
    team.boss.persist = True
    out = team(Session.from_user_message("go"))
    sys.stdout.write(f"{out.id}\n")
    sys.stdout.flush()
    out.synchronize()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])  # type: ignore[arg-type]  # a test says which
