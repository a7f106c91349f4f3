"""Sessions worth looking at: branches with files of their own, checks, a merge, a failed call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rath import flow
from rath.session import Session
from rath.testing import ScriptedClient, tool_call
from tests.support.sessions import FunctionTool

EDIT = {"path": "note.txt", "old": "one\n"}


@dataclass(frozen=True, slots=True)
class Family:
    """A session, two branches of it, and what they were merged into."""

    found: Session
    left: Session
    right: Session
    joined: Session

    def close(self) -> None:
        """Give back the sandboxes."""
        for session in (self.found, self.left, self.right, self.joined):
            session.close_sandbox()


def family(folder: Path) -> Family:
    """Make the sessions, with their files in a folder."""
    workspace = folder / "project"
    workspace.mkdir()
    (workspace / "note.txt").write_text("one\n")
    client = ScriptedClient(
        [
            tool_call("read_workspace_file", {"path": "note.txt"}),
            "The note says one.",
            tool_call("edit_workspace_file", {**EDIT, "new": "two\n"}, content="I say two."),
            "The note says two.",
            tool_call("edit_workspace_file", {**EDIT, "new": "three\n"}, content="I say three."),
            tool_call("run_shell_command", {"cmd": "false"}),
            "The note says three.",
            "Two is better.",
        ]
    )
    agent = flow.Agent("Change the note.", client.provider)
    question = Session.create("user", "What does the note say?")
    found = agent(question.to("local", spec=str(workspace))).synchronize()
    left, right = (
        agent(found.fork(workspace="copy").merge(Session.from_user_message(wish))).synchronize()
        for wish in ("Make it two.", "Make it three.")
    )
    left.check("is two", "grep -q two note.txt")
    right.check("is two", "grep -q two note.txt")
    joined = agent(left.merge(right)).synchronize()
    return Family(found, left, right, joined)


def echo() -> FunctionTool:
    """A tool that answers with its arguments."""

    def answer(_: Session, arguments: Mapping[str, Any]) -> object:
        return arguments

    return FunctionTool("echo", answer)
