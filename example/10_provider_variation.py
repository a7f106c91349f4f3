"""10: one agent, two vendors: a session moves between them, and its record says who answered."""

from __future__ import annotations

import logging
import sys

from _shared import failing_before, providers_of_two_vendors, show_calls
from rath import flow
from rath.session import Session

logging.basicConfig(stream=sys.stdout, format="  log: %(message)s")  # it tells of each fallback

first, second = providers_of_two_vendors(
    ["A session is a value."], ["It forks at no cost.", "The second one answered."]
)
agent = flow.Agent("Answer in one short sentence.", first, system_tools=False)
out = agent(Session.from_user_message("What is a session?"))
print("first: ", out.text())

# The same agent on another vendor goes on with what the first one said.
agent.to(second)
out = agent(out.merge(Session.from_user_message("And what is a fork of one?")))
print("second:", out.text())

# An endpoint that is down, with the second vendor behind it.
agent.to(failing_before(second))
out = agent(out.merge(Session.from_user_message("Who answers when one is down?")))
print("third: ", out.text())

show_calls(out)
