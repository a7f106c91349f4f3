"""01: the smallest program. An agent maps a session to a session; the answer is streamed."""

from __future__ import annotations

from _shared import provider_from_env
from rath import flow
from rath.llm import RathLLMStreamDelta
from rath.session import Session


def show(delta: RathLLMStreamDelta) -> None:
    print(delta.content_delta or "", end="", flush=True)


agent = flow.Agent(
    "You greet people in one short sentence.",
    provider_from_env(["Hello, and welcome to your first session."]),
    on_event=show,
    system_tools=False,
)
out = agent(Session.from_user_message("Please say hello to me."))
print(repr(out))  # pending: the call returned at once

out.synchronize()
print()
print(repr(out))
