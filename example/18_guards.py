"""18: guards. Hooks keep addresses out of what is said, and commands to those on a list."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import rath
from _shared import provider_from_env
from rath.flow import CallRequest, Deny, ModelTurn, ToolResultText
from rath.session.record import Change, ToolRun
from rath.testing import tool_call

ADDRESS = re.compile(r"[\w.+-]+@[\w-]+\.\w+")
ALLOWED = re.compile(r"(cat|ls|wc)( [\w.-]+)*")


def hide_input(agent: rath.Agent, session: rath.Session) -> rath.Session | None:
    (asked,) = session.rows  # what stood before a question would be left out
    text = ADDRESS.sub("[address]", str(asked.payload["content"]))
    hidden = rath.Session.from_user_message(text, images=asked.images)
    return hidden.to(session.sandbox_backend or "local", spec=session.sandbox_spec)


def only_listed(agent: rath.Agent, call: CallRequest) -> Deny | None:
    is_listed = ALLOWED.fullmatch(str(call.arguments.get("cmd", "")))  # all of it: `;`, `$( )`
    return None if is_listed else Deny("use cat, ls or wc with names of files, and nothing else")


def hide_result(agent: rath.Agent, call: CallRequest, result: ToolResultText) -> ToolResultText:
    return ToolResultText(ADDRESS.sub("[address]", result.text), result.error_kind, result.images)


def hide_answer(agent: rath.Agent, turn: ModelTurn) -> ModelTurn:
    hidden = turn.text and ADDRESS.sub("[address]", turn.text)
    return ModelTurn(session=turn.session, text=hidden, calls=turn.calls)


rath.autosave()
look = [tool_call("run_shell_command", {"cmd": cmd}) for cmd in ("cat *; id", "cat staff.txt")]
provider = provider_from_env([*look, "Ann has an address; it may be ann@example.org."])
agent = rath.Agent("Look into staff.txt.", provider, system_tools=["run_shell_command"])
agent.register_forward_pre_hook(hide_input)
agent.register_tool_hook(only_listed, when="before")
agent.register_tool_hook(hide_result, when="after")
agent.register_model_hook(hide_answer)

with tempfile.TemporaryDirectory() as workspace:
    Path(workspace, "staff.txt").write_text("Ann: ann@example.com\n")
    question = rath.Session.from_user_message("Has Ann an address? I am bob@example.com.")
    with agent(question.to("local", spec=workspace)) as out:
        for entry in out.record:
            if isinstance(entry, ToolRun):
                print(f"{entry.arguments} is {entry.status}")
            elif isinstance(entry, Change):
                print(f"{entry.hook.partition(':')[2]} changed the {entry.what}")
        print("answer:", out.text())
    question.close_sandbox()
