"""05: tools of your own: a typed function, one with options, and the long form, a class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import rath
from _shared import provider_from_env
from rath.flow.tool import FlowToolCall
from rath.session.streaming import ToolEnd
from rath.testing import tool_call


def add(a: int, b: int) -> int:
    """Add two whole numbers."""
    return a + b


@rath.tool(parallel_safe=True, effects="read_only")
def double(n: int) -> int:
    """Double a whole number.

    Args:
        n: The number.
    """
    return 2 * n


class Half(FlowToolCall):
    """The long form: the schema is what the model sees, `__call__` is what runs."""

    @property
    def name(self) -> str:
        return "half"

    @property
    def description(self) -> str:
        return "Halve a whole number."

    @property
    def parameters(self) -> Mapping[str, Any]:
        return {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}

    def __call__(self, session: rath.Session, arguments: Mapping[str, Any]) -> float:
        return float(arguments["n"]) / 2


rath.autosave()
sums = tool_call("add", {"a": 17, "b": 25}), tool_call("double", {"n": 42})
provider = provider_from_env([*sums, tool_call("half", {"n": 84}), "Half of it is 42."])
agent = rath.Agent("Use the tools, then answer briefly.", provider, [add, double, Half()])
out = agent(rath.Session.from_user_message("What is 17 plus 25, doubled, and then halved?"))
for event in out.stream():
    if isinstance(event, ToolEnd):
        print(f"{event.tool} gave {event.text}")
print("answer:", out.text())
