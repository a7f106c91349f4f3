"""The protocol around served calls: one tool, its results, progress and cancellation; and stdio."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, cast

from mcp import types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError

import rath
from rath._async.runtime import runtime
from rath.flow.serving.calls import INPUT_SCHEMA, OUTPUT_SCHEMA, Calls, ServedAnswer
from rath.mcp.stdio import replace_lone_surrogates
from rath.session.record import Entry, ModelCall, ToolRun

Context = ServerRequestContext[Any, Any]

INSTRUCTIONS = (
    "Give the tool a message; it answers with a text and a session_id. Give that session_id with "
    "the next message to go on with the same conversation."
)


def make_server(
    calls: Calls | Callable[[Context], Calls], *, name: str, description: str
) -> Server[Any]:
    """Return the server of a workflow, which has one tool.

    Args:
        calls: Makes the calls; or a function of a request that returns what makes them.
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
        async with _report_progress(context) as progress:
            of_client = calls if isinstance(calls, Calls) else calls(context)
            answer = await of_client.call(params.arguments or {}, progress.take)
        return _result(answer)

    return Server(
        name,
        version=rath.__version__,
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


class _ProgressReport:
    """What a client is told while a call goes on: each model call and each tool call."""

    def __init__(self) -> None:
        self._messages: asyncio.Queue[str | None] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()

    def take(self, entry: Entry) -> None:
        """Tell of an entry; on any thread."""
        match entry:
            case ModelCall():
                model = entry.evidence.requested_model or "the model"
                self._put(f"{model}: {entry.purpose} {entry.status}")
            case ToolRun():
                self._put(f"tool {entry.tool}: {entry.status}")
            case _:
                pass

    def end(self) -> None:
        """Say that nothing follows."""
        self._put(None)

    def _put(self, message: str | None) -> None:
        self._loop.call_soon_threadsafe(self._messages.put_nowait, message)

    async def send(self, context: Context) -> None:
        """Send what is told until nothing follows; a client that did not ask gets none."""
        count = 0
        while (message := await self._messages.get()) is not None:
            count += 1
            await context.session.report_progress(count, message=message)


@asynccontextmanager
async def _report_progress(context: Context) -> AsyncGenerator[_ProgressReport]:
    progress = _ProgressReport()
    async with asyncio.TaskGroup() as group:
        group.create_task(progress.send(context))
        try:
            yield progress
        finally:
            progress.end()


def _result(answer: ServedAnswer) -> types.CallToolResult:
    return types.CallToolResult(
        content=[types.TextContent(type="text", text=answer.text)],
        structured_content=answer.structured,
        is_error=answer.is_error,
    )


MAX_LINE_BYTES = 16 * 1024 * 1024
"""Longest message that is read; what is longer is refused without being kept."""

_CHUNK_BYTES = 1 << 16
_TOO_LONG = '{"a message is too long'
"""Stands for one that was: no JSON, so that the server refuses it as any other such line."""


class StdioWire:
    """The two ends of the connection; both are ends of files of this process alone.

    Args:
        source: File descriptor to read from.
        sink: File descriptor to write to.
    """

    def __init__(self, source: int, sink: int) -> None:
        self._source = source
        self._sink = sink

    async def __aiter__(self) -> AsyncIterator[str]:
        """Yield lines until the other side ends them."""
        line, is_too_long = bytearray(), False
        while chunk := await self._read():
            *whole, rest = chunk.split(b"\n")
            for part in whole:
                line += part
                sound = replace_lone_surrogates(bytes(line)).decode(errors="replace")
                yield _TOO_LONG if is_too_long else sound
                line, is_too_long = bytearray(), False
            line += rest
            if len(line) > MAX_LINE_BYTES:
                line, is_too_long = bytearray(), True

    async def write(self, text: str) -> None:
        """Write all of a text."""
        await runtime().call_in_worker(partial(_write_all, self._sink, text.encode()))

    async def flush(self) -> None:
        """Do nothing: nothing is kept back."""

    async def _read(self) -> bytes:
        # On a worker, which is a daemon: a read of a terminal or a pipe cannot be ended.
        return await runtime().call_in_worker(partial(os.read, self._source, _CHUNK_BYTES))


@contextmanager
def claim_stdio() -> Generator[StdioWire]:
    """Take standard input and output for the protocol.

    What this process or a child of it prints meanwhile goes to standard error, and who reads
    standard input finds it empty.
    """
    sys.stdout.flush()
    source, sink = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    stdout, sys.stdout = sys.stdout, sys.stderr
    try:
        yield StdioWire(source, sink)
    finally:
        sys.stdout = stdout
        # What was printed past `sys.stdout` goes where it was meant to, and not to the client.
        sys.stdout.flush()
        os.dup2(sink, 1)
        os.dup2(source, 0)


async def serve_stdio(server: Server[Any], wire: StdioWire) -> None:
    """Serve until the other side ends the connection."""
    ends = cast("Any", wire)  # a part of what a file of anyio can do
    async with stdio_server(ends, ends) as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())


def _write_all(sink: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(sink, view) :]
