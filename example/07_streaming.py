"""07: a run while it goes on: text as it comes, tool calls, and the tokens of the conversation."""

from __future__ import annotations

import rath
from _shared import provider_from_env
from rath.session.streaming import TextDelta, ToolEnd, ToolStart
from rath.testing import tool_call


@rath.tool(effects="read_only")
def letters(word: str) -> int:
    """Count the letters of a word."""
    return len(word)


def show(session: rath.Session) -> None:
    """Print what comes; `async for` reads the same in a program that has a loop."""
    for event in session.stream():
        match event:
            case TextDelta():
                print(event.text, end="", flush=True)
            case ToolStart():
                print(f"[{event.tool} is called with {event.arguments}]")
            case ToolEnd():
                print(f"[{event.tool} gave {event.text} in {event.duration_ms:.1f} ms]")
            case _:
                pass  # rows and entries of the record
    usage = session.usage
    print(f"\n  so far {usage.prompt_tokens} tokens in, {usage.completion_tokens} out")


rath.autosave()
provider = provider_from_env(
    [tool_call("letters", {"word": "lineage"}), "It has seven letters.", "Where a value came from."]
)
agent = rath.Agent("Answer in one sentence. Count with the tool.", provider, [letters])

session = agent(rath.Session.from_user_message("How many letters has the word 'lineage'?"))
show(session)

# The next thing that the user says: the same conversation, whose tokens are counted on.
session = agent(session, "And what does it mean?")
show(session)
