"""03: the same session on each sandbox that works here; the record says where its tools ran."""

from __future__ import annotations

import rath
from _shared import provider_from_env
from rath import backend
from rath.session.record import ToolRun
from rath.testing import tool_call

rath.autosave()
question = rath.Session.from_user_message(
    "Run the command 'echo hello > hello.txt; pwd' and tell me the directory that it printed."
)

# `local` does not confine what a command does, the two others do; each works in a new directory.
for place in ("local", "bubblewrap", "opensandbox"):
    reason = backend.get_class(place).unavailable_reason()
    if reason is not None:
        print(f"{place}: left out, {reason.splitlines()[0]}")
        continue
    call = tool_call("run_shell_command", {"cmd": "echo hello > hello.txt; pwd"})
    provider = provider_from_env([call, "That is the directory in which the command ran."])
    agent = rath.Agent("Use the tools, then answer briefly.", provider)
    # Only the placement differs. A fork has the same rows, and a place of its own.
    out = agent(question.fork().to(place))
    print(f"{place}: {out.text()}")
    for run in out.record:
        if isinstance(run, ToolRun) and run.sandbox is not None:
            print(f"  {run.tool} ran in {run.sandbox.root}, isolation {run.sandbox.isolation}")
            for effect in run.file_effects:
                print(f"  it {effect.kind} {effect.path}")
    out.close_sandbox()
