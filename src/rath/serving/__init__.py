"""Workflows served to clients of the OpenAI API, A2A and MCP, over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rath.serving.app import ServerOptions, asgi, serve
    from rath.serving.principals import Principal, TokenFile
else:
    from rath._core.lazy_imports import lazy_names

    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "app": ("ServerOptions", "asgi", "serve"),
            "principals": ("Principal", "TokenFile"),
        },
    )

__all__ = ["Principal", "ServerOptions", "TokenFile", "asgi", "serve"]
