"""03: the same session on each sandbox that works here; the record says where its tools ran."""

from __future__ import annotations

from _shared import provider_from_env
from rath import backend, flow
from rath.session import Session
from rath.session.record import ToolRun
from rath.testing import tool_call

question = Session.from_user_message(
    "Run the command 'echo hello > hello.txt; pwd' and tell me the directory that it printed."
)

for place in ("local", "bubblewrap", "opensandbox"):
    reason = backend.get_class(place).unavailable_reason()
    if reason is not None:
        print(f"{place}: left out, {reason.splitlines()[0]}")
        continue
    call = tool_call("run_shell_command", {"cmd": "echo hello > hello.txt; pwd"})
    provider = provider_from_env([call, "That is the directory in which the command ran."])
    agent = flow.Agent("Use the tools, then answer briefly.", provider)
    # Only the placement differs. A fork has the same rows, and a place of its own.
    out = agent(question.fork().to(place))
    print(f"{place}: {out.text()}")
    for run in out.record:
        if isinstance(run, ToolRun) and run.sandbox is not None:
            changed = [f"{effect.kind} {effect.path}" for effect in run.file_effects]
            print(f"  {run.tool} in {run.sandbox.isolation} {run.sandbox.root}: {changed}")
    out.close_sandbox()
