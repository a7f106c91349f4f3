"""A model that reads on where a result was cut, and edits what it read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rath import flow
from rath.llm import RathLLMAssistantMessage, RathLLMChatRequest
from rath.session import Session
from rath.session.record import ToolRun
from rath.testing import ScriptedClient, tool_call


@pytest.fixture
def placed(tmp_path: Path) -> Iterator[Session]:
    session = Session.from_user_message("hi").to("local", spec=str(tmp_path))
    yield session
    session.close_sandbox()


def last_result(request: RathLLMChatRequest) -> dict[str, Any]:
    """What the model was shown last."""
    shown: dict[str, Any] = json.loads(str(request.messages[-1].content))
    return shown


def tool_runs(session: Session) -> list[ToolRun]:
    return [entry for entry in session.record if isinstance(entry, ToolRun)]


def test_a_model_reads_the_rest_of_a_long_output(placed: Session) -> None:
    def read_on(request: RathLLMChatRequest) -> RathLLMAssistantMessage:
        path = last_result(request)["kept"]["stdout"]
        return tool_call("read_workspace_file", {"path": path, "offset": 7000, "limit": 2})

    client = ScriptedClient(
        [
            tool_call("run_shell_command", {"cmd": "seq 10000"}),
            read_on,
            lambda request: last_result(request)["data"],
        ]
    )
    out = flow.Agent("Count.", client.provider)(placed)
    assert out.text() == "7001\n7002\n"
    command = tool_runs(out)[0]
    assert command.full is not None
    whole = json.loads((command.full.data or b"").decode())
    assert whole["stdout"] == "".join(f"{n}\n" for n in range(1, 10_001))


def test_a_model_edits_a_file_and_reads_the_diff(placed: Session, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\ny = 1\n")
    edit = {"path": "a.py", "old": "= 1", "new": "= 2"}
    client = ScriptedClient(
        [
            tool_call("edit_workspace_file", edit),
            tool_call("edit_workspace_file", {**edit, "old": "z = 1"}),
            tool_call("edit_workspace_file", {**edit, "old": "y = 1", "new": "y = 2"}),
            lambda request: last_result(request)["diff"],
        ]
    )
    out = flow.Agent("Edit.", client.provider)(placed)
    assert "-y = 1\n+y = 2\n" in (out.text() or "")
    assert [run.error_kind for run in tool_runs(out)] == ["text_not_unique", "text_not_found", None]
    (effect,) = tool_runs(out)[-1].file_effects
    assert (effect.path, effect.kind, effect.attribution) == ("a.py", "changed", "exact")
