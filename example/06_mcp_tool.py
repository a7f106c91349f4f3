"""06: tools of an MCP server. This file is both: a tiny server, and the program that borrows it."""

from __future__ import annotations

import sys

from mcp.server import MCPServer

from _shared import provider_from_env, show_rows
from rath import flow
from rath.flow.tool import mcp_tools_from_server
from rath.session import Session
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
    tools = mcp_tools_from_server([sys.executable, __file__, "serve"])
    for tool in tools:
        print(f"borrowed: {tool.name}: {tool.description}")

    provider = provider_from_env(
        [tool_call("last_frost", {"city": "Berlin"}), "Plant tomatoes after 15 May."]
    )
    agent = flow.Agent("Use your tools, then answer briefly.", provider, tools, system_tools=False)
    out = agent(Session.from_user_message("When may I plant tomatoes in Berlin?"))
    show_rows(out.chunk_table)
    for entry in out.record:
        if isinstance(entry, ToolRun):
            print(f"ran at: {entry.origin}")


if __name__ == "__main__":
    serve() if sys.argv[1:] == ["serve"] else main()
