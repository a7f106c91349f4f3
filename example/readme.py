"""The program of the README on a model of your choice, printing what happened.

Run it twice: the second run recalls what the first one remembered and committed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, Field

from _shared import (
    own_home,
    provider_from_env,
    rows_before,
    show_recalled,
    show_rows,
    show_seen,
    show_usage,
)
from rath import flow
from rath.flow.tool import FlowToolCall
from rath.session import Session
from rath.testing import Turn, tool_call

QUESTION = "Count the words in: OpenRath makes agent clusters traceable."
OFFLINE: list[Turn] = [
    tool_call("word_count", {"text": "OpenRath makes agent clusters traceable."}),
    "It has 5 words.",
    "The sentence has 5 words.",
]


class WordCountInput(BaseModel):
    """Arguments of the tool."""

    text: str = Field(description="Text to count.")


# OpenRath Tool
class WordCountTool(FlowToolCall):
    """Counts words."""

    @property
    def name(self) -> str:
        return "word_count"

    @property
    def description(self) -> str:
        return "Count words in a short text."

    @property
    def parameters(self) -> Mapping[str, Any]:
        return WordCountInput.model_json_schema()

    def __call__(self, session: Session, arguments: Mapping[str, Any]) -> dict[str, int]:
        data = WordCountInput.model_validate(dict(arguments))
        return {"words": len(data.text.split())}


# OpenRath Workflow
class ReadmeWorkflow(flow.Workflow):
    """Remember, answer, commit, compress."""

    def __init__(self) -> None:
        # OpenRath Provider
        provider = provider_from_env(OFFLINE)

        # OpenRath Agent
        self.agent = flow.Agent(
            "Use the `word_count` tool, then answer briefly.",
            provider,
            tools=[WordCountTool()],
            memory="local",
        )

        # OpenRath Compressor
        self.compressor = flow.Compressor(
            "Compress the run into one concise assistant message.",
            provider,
        )

    def forward(self, session: Session) -> Session:
        # OpenRath Memory
        self.agent.remember_memory("The user likes compact technical summaries.")
        session = self.agent(session)
        self.agent.commit_memory(session)
        return self.compressor(session)


own_home()
workflow = ReadmeWorkflow()
show_recalled(workflow.agent.recall_memory(f"{QUESTION} What does the user like?"))

# OpenRath Session
user_session = Session.from_user_message(QUESTION)

# OpenRath Sandbox
user_session = user_session.to("local", spec="./")

out = workflow(user_session)

print("the run:")
show_rows(rows_before(out))
print("compressed:", out.text())
show_usage(out)
show_seen(out)
