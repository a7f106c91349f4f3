"""A tool server of the official SDK, which answers at once; started by `mcp.py`."""

from __future__ import annotations

from mcp.server import MCPServer

server = MCPServer("benchmark")


@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


if __name__ == "__main__":
    server.run()
