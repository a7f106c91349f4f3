"""Tool servers that speak the Model Context Protocol: connections to them, and what they answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rath.mcp.client import MCPClient
    from rath.mcp.spec import (
        Bearer,
        ClientCredentials,
        HttpServer,
        ServerSpec,
        StdioServer,
    )
else:
    from rath._core.lazy_imports import lazy_names

    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "client": ("MCPClient",),
            "spec": ("Bearer", "ClientCredentials", "HttpServer", "ServerSpec", "StdioServer"),
        },
    )  # fmt: skip

__all__ = [
    "Bearer",
    "ClientCredentials",
    "HttpServer",
    "MCPClient",
    "ServerSpec",
    "StdioServer",
]
