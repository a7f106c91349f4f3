"""05: tools of your own: a typed function, and a class that says it all itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, Field

import rath
from _shared import provider_from_env, show_rows
from rath import flow
from rath.flow.tool import FlowToolCall
from rath.session import Session
from rath.testing import tool_call


@rath.tool(parallel_safe=True, effects="read_only")
def double(n: int) -> dict[str, int]:
    """Double a whole number.

    Args:
        n: The number.
    """
    return {"doubled": 2 * n}


class AddInput(BaseModel):
    """Arguments of `add`."""

    a: int = Field(description="First number.")
    b: int = Field(description="Second number.")


class AddTool(FlowToolCall):
    """Adds two numbers: the schema is what the model sees, `__call__` is what runs."""

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


add, again = tool_call("add", {"a": 17, "b": 25}), tool_call("double", {"n": 42})
provider = provider_from_env([add, again, "That makes 84."])
tools = [AddTool(), double]
agent = flow.Agent("Use the tools, then answer briefly.", provider, tools, system_tools=False)
show_rows(agent(Session.from_user_message("What is 17 plus 25, doubled?")).chunk_table)
