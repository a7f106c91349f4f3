"""10: one agent, two vendors: a session moves between them, and its record says who answered."""

from __future__ import annotations

import logging
import sys

import rath
from _shared import providers_of_two_vendors
from rath.session.record import ModelCall

logging.basicConfig(stream=sys.stdout, format="  log: %(message)s")  # a fallback is logged
rath.autosave()

first, second = providers_of_two_vendors(
    ["A session is a value."], ["It forks at no cost.", "The second one answered."]
)
agent = rath.Agent("Answer in one short sentence.", first)
out = agent(rath.Session.from_user_message("What is a session?"))
print("the first one: ", out.text())

# The same agent on another vendor continues the conversation.
agent.to(second)
out = agent(out, "And what is a fork of one?")
print("the second one:", out.text())

# An endpoint that nobody serves, with the second vendor as its fallback.
down = rath.Provider(
    base_url="http://127.0.0.1:9/v1",
    api_key="none-needed",
    model="down",
    retry_max_attempts=1,
    fallbacks=[second],
)
agent.to(down)
out = agent(out, "Who answers when one is down?")
print("the fallback:  ", out.text())

print("who was asked, in order:")
for entry in out.record:
    if isinstance(entry, ModelCall):
        call = entry.evidence
        price = "no price known" if call.cost is None else f"{call.cost.usd} USD"
        model = call.served_model or call.requested_model
        print(f"  {entry.status}: {model} at {call.endpoint or 'no address'}, {price}")
