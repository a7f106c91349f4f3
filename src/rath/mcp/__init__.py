"""Tool servers that speak the Model Context Protocol: connections to them, and what they answer."""

from __future__ import annotations

from rath.mcp.client import MCPClient
from rath.mcp.spec import (
    Bearer,
    ClientCredentials,
    HttpServer,
    ServerSpec,
    StdioServer,
)

__all__ = [
    "Bearer",
    "ClientCredentials",
    "HttpServer",
    "MCPClient",
    "ServerSpec",
    "StdioServer",
]
