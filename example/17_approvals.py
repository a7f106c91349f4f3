"""17: a call that somebody must allow, and a tool that asks; both are answered later."""

from __future__ import annotations

import rath
from _shared import provider_from_env
from rath.session.outcome import Suspended
from rath.session.tooling import CallRequest
from rath.testing import tool_call


def is_dear(call: CallRequest) -> bool:
    """Somebody must allow what costs more than 20 euros."""
    return bool(call.arguments["euros"] > 20)


@rath.tool(approval=is_dear)
def order(what: str, euros: int) -> str:
    """Order something."""
    return f"ordered {what} for {euros} euros"


@rath.tool(effects="idempotent")
def address() -> str:
    """Find out where things shall be sent."""
    return str(rath.ask("Where shall it go?", str))


rath.autosave()
boat = tool_call("order", {"what": "a boat", "euros": 900}, id="boat")
provider = provider_from_env(
    [
        tool_call("order", {"what": "tea", "euros": 5}, boat, id="tea"),
        tool_call("address", {}, id="address"),
        "The tea is on its way, and the boat has become a smaller one.",
    ]
)
agent = rath.Agent("Order what is asked for.", provider, [order, address])
out = agent(rath.Session.from_user_message("Tea for 5 euros and a boat for 900, please."))

while isinstance(out.outcome, Suspended):
    session = rath.Session.load(out.id)  # any other process does the same, or `rath approve`
    for call in session.open_calls:
        match call.waits_for:
            case "approval":
                print(f"to be allowed: {call.call.name} {call.call.arguments}; Ann makes it less")
                session.edit(call, {"what": "a small boat", "euros": 90}, by="Ann")
            case "input":
                print(f"{call.call.name} asks, and is told: the harbour")
                session.answer("the harbour", call)
            case _:
                print(f"not to be allowed: {call.call.name} {call.call.arguments}")
    out = agent(session)
print("answer:", out.text())
print(f"who allowed what: rath explain {out.id}")
