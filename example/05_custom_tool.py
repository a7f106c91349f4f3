"""05: a tool of your own. The schema is what the model sees, `__call__` is what runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, Field

from _shared import provider_from_env, show_rows
from rath import flow
from rath.flow.tool import FlowToolCall
from rath.session import Session
from rath.testing import tool_call


class AddInput(BaseModel):
    """Arguments of the tool."""

    a: int = Field(description="First number.")
    b: int = Field(description="Second number.")


class AddTool(FlowToolCall):
    """Adds two numbers."""

    parallel_safe = True

    @property
    def name(self) -> str:
        return "add"

    @property
    def description(self) -> str:
        return "Add two whole numbers."

    @property
    def parameters(self) -> Mapping[str, Any]:
        return AddInput.model_json_schema()

    def __call__(self, session: Session, arguments: Mapping[str, Any]) -> dict[str, int]:
        data = AddInput.model_validate(dict(arguments))
        return {"sum": data.a + data.b}


provider = provider_from_env([tool_call("add", {"a": 17, "b": 25}), "The sum is 42."])
agent = flow.Agent(
    "Use the `add` tool, then answer briefly.", provider, [AddTool()], system_tools=False
)
out = agent(Session.from_user_message("What is 17 plus 25?"))
show_rows(out.chunk_table)
