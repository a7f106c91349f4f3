"""Servers as child processes that end as soon as they have begun."""

from __future__ import annotations

import asyncio
import contextlib
from asyncio.subprocess import PIPE

import pytest

from rath.errors import MCPConnectionError
from rath.mcp import MCPClient, StdioServer
from rath.mcp.stdio import descriptors
from tests.support.waiting import PATIENCE


def test_of_a_process_that_has_ended_the_open_pipes_are_reported() -> None:
    async def told() -> set[int]:
        process = await asyncio.create_subprocess_exec("true", stdin=PIPE, stdout=PIPE, stderr=PIPE)
        assert process.stdin is not None
        async with asyncio.timeout(PATIENCE):
            await process.wait()
            with contextlib.suppress(BrokenPipeError):
                await process.stdin.wait_closed()
        return descriptors(process)

    assert len(asyncio.run(told())) < 3


def test_the_last_words_of_a_server_are_reported_however_soon_it_ends() -> None:
    server = StdioServer("sh", ("-c", "echo last words >&2"))
    for _ in range(30):
        with pytest.raises(MCPConnectionError, match="it wrote to stderr: last words"):
            MCPClient(server).list_tools()
