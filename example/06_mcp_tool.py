"""06: tools of an MCP server. This file is both: a tiny server, and the program that borrows it."""

from __future__ import annotations

import sys

from mcp.server import MCPServer

import rath
from _shared import provider_from_env
from rath.flow.tool import mcp_tools_from_server
from rath.session.record import ToolRun
from rath.testing import tool_call

FROSTS = {"Berlin": "15 May", "Lisbon": "1 February"}


def last_frost(city: str) -> str:
    """Tell when the last frost of the year is expected in a city."""
    return FROSTS.get(city, "unknown")


def serve() -> None:
    """Speak the protocol on stdin and stdout; any server in any language will do."""
    server = MCPServer("garden")
    server.add_tool(last_frost)
    server.run()


def main() -> None:
    rath.autosave()
    tools = mcp_tools_from_server([sys.executable, __file__, "serve"])
    for tool in tools:
        print(f"borrowed: {tool.name}: {tool.description}")

    provider = provider_from_env(
        [tool_call("last_frost", {"city": "Berlin"}), "Plant tomatoes after 15 May."]
    )
    agent = rath.Agent("Use your tools, then answer briefly.", provider, tools)
    out = agent(rath.Session.from_user_message("When may I plant tomatoes in Berlin?"))
    print("answer:", out.text())
    for run in out.record:
        if isinstance(run, ToolRun):
            print(f"{run.tool} was called with {run.arguments}, at {run.origin}")


if __name__ == "__main__":
    serve() if sys.argv[1:] == ["serve"] else main()
