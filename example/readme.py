"""The larger program of the README on a model of your choice, printing what happened.

Run it twice: the second run recalls what the first one remembered and committed.
"""

from __future__ import annotations

import rath
from _shared import own_home, provider_from_env, say_next
from rath import flow
from rath.memory import MemoryFindResult
from rath.session.streaming import TextDelta, ToolEnd, ToolStart
from rath.testing import tool_call

QUESTION = "Count the words in: OpenRath makes agent clusters traceable."


@rath.tool(effects="read_only")
def word_count(text: str) -> int:
    """Count the words of a text."""
    return len(text.split())


class Team(rath.Workflow):
    """Remember, answer, commit, compress."""

    def __init__(self) -> None:
        call = tool_call("word_count", {"text": "OpenRath makes agent clusters traceable."})
        provider = provider_from_env([call, "It has 5 words.", "The sentence has 5 words."])
        self.agent = rath.Agent(
            "Use the `word_count` tool, then answer briefly.",
            provider,
            tools=[word_count],
            memory="local",
        )
        self.compressor = flow.Compressor("Say it in one concise sentence.", provider)

    def forward(self, session: rath.Session) -> rath.Session:
        self.agent.remember_memory("The user likes compact technical summaries.")
        session = self.agent(session)
        show(session)
        self.agent.commit_memory(session)
        return self.compressor(session)


def show(session: rath.Session) -> None:
    """Print what a run does, as it does it."""
    for event in session.stream():
        match event:
            case TextDelta():
                print(event.text, end="", flush=True)
            case ToolStart():
                print(f"calls {event.tool} with {dict(event.arguments)}")
            case ToolEnd():
                print(f"{event.tool} gives {event.text}")
            case _:
                pass  # rows and entries of the record
    print()


def main() -> None:
    own_home()
    rath.autosave()
    team = Team()
    found = team.agent.recall_memory(f"{QUESTION} What does the user like?")
    hits = found.hits if isinstance(found, MemoryFindResult) else ()
    print("recalled from earlier runs:" if hits else "recalled from earlier runs: nothing yet")
    for hit in hits:
        print("  ", " ".join((hit.snippet or "").split()))

    print(f"\nuser: {QUESTION}")
    out = team(rath.Session.from_user_message(QUESTION))
    print(f"\nin one sentence: {out.text()}")
    print(f"tokens: {out.usage.prompt_tokens} in, {out.usage.completion_tokens} out")
    say_next(out)


if __name__ == "__main__":
    main()
