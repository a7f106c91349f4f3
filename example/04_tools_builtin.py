"""04: the built-in file and shell tools, in a workspace of their own."""

from __future__ import annotations

import tempfile

import rath
from _shared import provider_from_env
from rath.session.streaming import ToolEnd, ToolStart
from rath.testing import tool_call

rath.autosave()
provider = provider_from_env(
    [
        tool_call("write_workspace_file", {"path": "note.txt", "content": "sessions fork"}),
        tool_call(
            "read_workspace_file",
            {"path": "note.txt"},
            tool_call("run_shell_command", {"cmd": "wc -w note.txt"}),
        ),
        "The file note.txt holds two words.",
    ]
)
agent = rath.Agent("You work with files. Use the tools, then answer briefly.", provider)

with tempfile.TemporaryDirectory() as workspace:
    # The placement says where tools run. Without one, an agent has only the tools of its own.
    session = rath.Session.from_user_message(
        "Write the content 'sessions fork' to the path note.txt, then count its words with wc."
    ).to("local", spec=workspace)
    out = agent(session)
    for event in out.stream():
        if isinstance(event, ToolStart):
            print(f"{event.tool} is called with {event.arguments}")
        elif isinstance(event, ToolEnd):
            print(f"{event.tool} is {event.status}: {event.text}")
    print("answer:", out.text())
    out.close_sandbox()
    session.close_sandbox()
print(f"what changed in which file: rath explain {out.id}")
