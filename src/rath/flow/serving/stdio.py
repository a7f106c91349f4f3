"""Serving over standard input and output, which belong to the protocol alone meanwhile."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Generator
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

from mcp.server.lowlevel.server import Server
from mcp.server.stdio import stdio_server

from rath._async.runtime import runtime
from rath.mcp.stdio import replace_lone_surrogates

MAX_LINE_BYTES = 16 * 1024 * 1024
"""Longest message that is read; what is longer is refused without being kept."""

_CHUNK_BYTES = 1 << 16
_TOO_LONG = '{"a message is too long'
"""Stands for one that was: no JSON, so that the server refuses it as any other such line."""


class Wire:
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
def claimed_stdio() -> Generator[Wire]:
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
        yield Wire(source, sink)
    finally:
        sys.stdout = stdout
        # What was printed past `sys.stdout` goes where it was meant to, and not to the client.
        sys.stdout.flush()
        os.dup2(sink, 1)
        os.dup2(source, 0)


async def serve_stdio(server: Server[Any], wire: Wire) -> None:
    """Serve until the other side ends the connection."""
    ends = cast("Any", wire)  # a part of what a file of anyio can do
    async with stdio_server(ends, ends) as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())


def _write_all(sink: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(sink, view) :]
