"""The protocol around served calls: one tool, its results, progress and cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from mcp import types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.shared.exceptions import MCPError

import rath
from rath.flow.serving.answer import OUTPUT_SCHEMA, Answer
from rath.flow.serving.calls import INPUT_SCHEMA, Calls
from rath.session.record import Entry, ModelCall, ToolRun

Context = ServerRequestContext[Any, Any]

INSTRUCTIONS = (
    "Give the tool a message; it answers with a text and a session_id. Give that session_id with "
    "the next message to go on with the same conversation."
)


def make_server(calls: Calls, *, name: str, description: str) -> Server[Any]:
    """Return the server of a workflow, which has one tool.

    Args:
        calls: Makes the calls.
        name: Of server and tool.
        description: What the tool is good for.
    """
    tool = types.Tool(
        name=name,
        description=description,
        input_schema=INPUT_SCHEMA,
        output_schema=OUTPUT_SCHEMA,
    )

    async def list_tools(_: Context, __: object) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[tool])

    async def call_tool(
        context: Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        if params.name != name:
            raise MCPError(
                code=types.INVALID_PARAMS,
                message=f"unknown tool {params.name!r:.80}; this server has {name!r} alone",
            )
        async with _told(context) as progress:
            answer = await calls.call(params.arguments or {}, progress.take)
        return _result(answer)

    return Server(
        name,
        version=rath.__version__,
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


class _Progress:
    """What a client is told while a call goes on: each model call and each tool call."""

    def __init__(self) -> None:
        self._messages: asyncio.Queue[str | None] = asyncio.Queue()

    def take(self, entry: Entry) -> None:
        """Tell of an entry; on the runtime thread."""
        match entry:
            case ModelCall():
                model = entry.evidence.requested_model or "the model"
                self._messages.put_nowait(f"{model}: {entry.purpose} {entry.status}")
            case ToolRun():
                self._messages.put_nowait(f"tool {entry.tool}: {entry.status}")
            case _:
                pass

    def end(self) -> None:
        """Say that nothing follows."""
        self._messages.put_nowait(None)

    async def send(self, context: Context) -> None:
        """Send what is told until nothing follows; a client that did not ask gets none."""
        count = 0
        while (message := await self._messages.get()) is not None:
            count += 1
            await context.session.report_progress(count, message=message)


@asynccontextmanager
async def _told(context: Context) -> AsyncGenerator[_Progress]:
    progress = _Progress()
    async with asyncio.TaskGroup() as group:
        group.create_task(progress.send(context))
        try:
            yield progress
        finally:
            progress.end()


def _result(answer: Answer) -> types.CallToolResult:
    return types.CallToolResult(
        content=[types.TextContent(type="text", text=answer.text)],
        structured_content=answer.structured,
        is_error=answer.is_error,
    )
