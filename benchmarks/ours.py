"""What our side of several rows shares: the add tool and an agent on the fake server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.by_hand import add_tool
from rath.flow import Agent, Provider
from rath.flow.tool import FlowToolCall
from rath.session import Session


class AddTool(FlowToolCall):
    """The tool of the loops by hand."""

    parallel_safe = True

    @property
    def name(self) -> str:
        """As the fake server calls it."""
        return "add"

    @property
    def description(self) -> str:
        """As the loops by hand send it."""
        return add_tool.DESCRIPTION

    @property
    def parameters(self) -> Mapping[str, Any]:
        """As the loops by hand send them."""
        return add_tool.PARAMETERS

    def __call__(self, session: Session, arguments: Mapping[str, Any]) -> str:
        return str(arguments["a"] + arguments["b"])


def provider(base_url: str) -> Provider:
    """The fake server as a provider."""
    return Provider(base_url=base_url, api_key="x", model="fake")


def open_agent(
    base_url: str, tool: FlowToolCall, *, max_tool_rounds: int, persist: bool = False
) -> Agent:
    """An agent with one tool and no other."""
    return Agent(
        add_tool.SYSTEM,
        provider(base_url),
        [tool],
        system_tools=False,
        max_tool_rounds=max_tool_rounds,
        persist=persist,
    )
