"""14: a process is killed inside a tool call; another one decides about it and goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from _shared import provider_from_env
from rath import flow
from rath.flow.tool import FlowToolCall
from rath.session import Session
from rath.testing import tool_call

DIES = "--dies" in sys.argv


class PrintLetter(FlowToolCall):
    """Prints a letter, which cannot be taken back: so it is never repeated unasked."""

    effects = "non_idempotent"

    @property
    def name(self) -> str:
        return "print_letter"

    @property
    def parameters(self) -> Mapping[str, Any]:
        return {"type": "object", "properties": {"to": {"type": "string"}}}

    def resource_key(self, arguments: Mapping[str, Any]) -> tuple[str, ...]:
        return ("printer",)

    def __call__(self, session: Session, arguments: Mapping[str, Any]) -> Any:
        print("printing a letter to", arguments["to"], flush=True)
        if DIES and arguments["to"] == "Bob":
            os.kill(os.getpid(), 9)
        return {"printed": True}


letters = [tool_call("print_letter", {"to": to}, id=f"to_{to}") for to in ("Ann", "Bob")]
provider = provider_from_env(letters if DIES else ["Both letters are printed."])
agent = flow.Agent("Print each letter.", provider, [PrintLetter()], persist=True)

if DIES:
    out = agent(Session.from_user_message("Write to Ann and to Bob."))
    print(out.id, flush=True)
    print(out.text())  # a real model may have other ideas, and no printer
    sys.exit()

child = subprocess.run([sys.executable, __file__, "--dies"], stdout=subprocess.PIPE, text=True)
print(child.stdout, "ended with ", child.returncode, sep="")
session = Session.load(next(line for line in child.stdout.split() if line.count("-") == 4))
for call in session.open_calls:
    print("open:", call, "is", call.state)
    session.decide(call, "done", result="a person found the letter in the printer")
print(agent.resume(session).text())
