"""07: deltas while the answer comes, and the tokens of the whole chain after it."""

from __future__ import annotations

from collections import Counter

from _shared import provider_from_env, show_usage
from rath import flow
from rath.llm import RathLLMStreamDelta
from rath.session import Session

kinds: Counter[str] = Counter()


def on_event(delta: RathLLMStreamDelta) -> None:
    if delta.content_delta:
        kinds["text"] += 1
        print(delta.content_delta, end="", flush=True)
    if delta.finish_reason:
        kinds["finish"] += 1
    if delta.usage:
        kinds["usage"] += 1


agent = flow.Agent(
    "Answer in one sentence.",
    provider_from_env(["A session is a value.", "It forks at no cost."]),
    on_event=on_event,
    system_tools=False,
)
first = agent(Session.from_user_message("What is a value in a program?"))
first.synchronize()
print()
show_usage(first)

# A further question on the same transcript: its usage counts both runs, each call once.
second = agent(first.merge(Session.from_user_message("And what is a variable?")))
second.synchronize()
print()
show_usage(second)
print("deltas:", dict(kinds))
