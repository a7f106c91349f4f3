"""14: a process is killed inside a tool call; another one decides about that call and continues."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import rath
from _shared import provider_from_env
from rath.testing import tool_call

DIES = "--dies" in sys.argv
is_named = threading.Event()


# A letter cannot be taken back, so a call of which nobody knows is never repeated unasked.
@rath.tool(effects="non_idempotent", resource="printer")
def print_letter(to: str) -> str:
    """Print a letter to somebody."""
    print("printing a letter to", to, flush=True)
    if DIES:
        is_named.wait()
        os.kill(os.getpid(), 9)
    return "printed"


rath.autosave()
letter = tool_call("print_letter", {"to": "Ann"}, id="to_Ann")
provider = provider_from_env([letter] if DIES else ["The letter is printed."])
agent = rath.Agent("Print each letter.", provider, [print_letter])

if DIES:
    out = agent(rath.Session.from_user_message("Write to Ann."))
    print("session:", out.id, flush=True)
    is_named.set()
    print(out.text())  # a real model may have other ideas, and no printer
    sys.exit()

child = subprocess.run([sys.executable, __file__, "--dies"], stdout=subprocess.PIPE, text=True)
print(f"{child.stdout}the process ended with {child.returncode}")
name = next(line for line in child.stdout.splitlines() if line.startswith("session: "))
session = rath.Session.load(name.removeprefix("session: "))
for call in session.open_calls:
    print(f"nobody knows whether {call.call.name} {call.call.arguments} took effect")
    session.decide(call, "done", result="a person found the letter in the printer")
print("answer:", agent.resume(session).text())
print(f"the same from a terminal: rath show {session.id}")
