"""A tool server of ours, run as a program: `python mcp_own_server.py stdio|http|sse [FD]`."""

from __future__ import annotations

import asyncio
import base64
import os
import socket
import sys
from pathlib import Path
from typing import Any

import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import (
    AudioContent,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
    ToolAnnotations,
)

PNG = base64.b64encode(
    base64.b64decode(
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    )
).decode()

server = MCPServer("own", version="1.2.3")


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool(annotations=ToolAnnotations(idempotent_hint=True), structured_output=False)
def pictures() -> list[Any]:
    """Text, a picture, a sound, a file and a link."""
    return [
        TextContent(type="text", text="look"),
        ImageContent(type="image", data=PNG, mime_type="image/png"),
        AudioContent(type="audio", data="AAAA", mime_type="audio/wav"),
        EmbeddedResource(
            type="resource",
            resource=TextResourceContents(uri="note://1", mime_type="text/plain", text="hello"),
        ),
        ResourceLink(type="resource_link", uri="note://2", name="two"),
    ]


@server.tool()
def measured() -> CallToolResult:
    """Structured content that the text does not say."""
    return CallToolResult(
        content=[TextContent(type="text", text="warm")], structured_content={"celsius": 21}
    )


@server.tool()
async def spans(ctx: Context) -> str:
    """The span that the caller names."""
    return str(dict(ctx.request_context.meta or {}).get("traceparent"))


@server.tool()
async def slow(seconds: float, mark: str, ctx: Context) -> str:
    """Tell of steps, then sleep; a file tells what became of it."""
    for step in range(3):
        await ctx.report_progress(step, 3, f"step {step}")
    leave(mark, "begun")
    try:
        await asyncio.sleep(seconds)
    except BaseException:
        leave(mark, "cancelled")
        raise
    return "slept"


def leave(mark: str, text: str) -> None:
    """Write a file that the test reads."""
    Path(mark).write_text(text)


@server.tool()
def fail() -> str:
    """Report an error."""
    raise ToolError("no such city: Atlantis")


@server.tool()
def die() -> str:
    """End the server in the middle of a call."""
    sys.stderr.write("out of memory\n")
    sys.stderr.flush()
    os._exit(3)


@server.tool()
def huge(n: int) -> str:
    """Answer with many characters."""
    return "x" * n


@server.tool()
def variables(names: list[str]) -> dict[str, str | None]:
    """Tell what of the environment is seen."""
    return {name: os.environ.get(name) for name in names}


@server.tool()
async def grow(ctx: Context) -> str:
    """Have one tool more, and say so."""
    server.add_tool(lambda: "new", name="grown", description="A new one.")
    await ctx.notify_tools_changed()
    await ctx.session.send_tool_list_changed()
    return "grown"


@server.tool()
async def speak(ctx: Context) -> str:
    """Send a log message."""
    await ctx.info("spoken")  # pyright: ignore[reportDeprecated]  # there are servers that do
    return "said"


@server.resource("note://one")
def note() -> str:
    """A note."""
    return "a note"


@server.prompt()
def greet(name: str) -> str:
    """Greet somebody."""
    return f"Greet {name}."


def main() -> None:
    """Serve until the input ends, or for ever."""
    if sys.argv[1] == "stdio":
        server.run()
        return
    app = server.streamable_http_app() if sys.argv[1] == "http" else server.sse_app()
    web = uvicorn.Server(uvicorn.Config(app, log_level="error"))
    asyncio.run(web.serve(sockets=[socket.socket(fileno=int(sys.argv[2]))]))


if __name__ == "__main__":
    main()
