"""01: the smallest program: an agent maps a session to a session, and its answer is streamed."""

from __future__ import annotations

import rath
from _shared import provider_from_env
from rath.session.streaming import TextDelta

rath.autosave()  # every run is recorded, so that `rath ls` and `rath explain` know it

provider = provider_from_env(["Hello, and welcome to your first session."])
agent = rath.Agent("You greet people in one short sentence.", provider)

# The call submits a run and returns at once; whoever reads the session waits for it.
session = agent(rath.Session.from_user_message("Please say hello to me."))
for event in session.stream():
    if isinstance(event, TextDelta):
        print(event.text, end="", flush=True)

print(f"\n\nhow it ended: {session.outcome}")
print(f"what happened: rath explain {session.id}")
