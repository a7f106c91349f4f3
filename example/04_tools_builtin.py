"""04: the built-in file and shell tools, in a workspace of their own."""

from __future__ import annotations

import tempfile

from _shared import provider_from_env, show_rows
from rath import flow
from rath.session import Session
from rath.testing import tool_call

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
agent = flow.Agent("You work with files. Use the tools, then answer briefly.", provider)

with tempfile.TemporaryDirectory() as workspace:
    session = Session.from_user_message(
        "Write the content 'sessions fork' to the path note.txt, then count its words with wc."
    )
    # The placement says where tools run; without one, a tool call is an error the model reads.
    out = agent(session.to("local", spec=workspace))
    show_rows(out.chunk_table)
    out.close_sandbox()
    session.close_sandbox()
