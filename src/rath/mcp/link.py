"""The connection of a client, made anew after it broke."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from rath._async.runtime import runtime
from rath.errors import MCPConnectionError
from rath.mcp.forgotten import SessionForgotten
from rath.mcp.spec import ServerSpec, server_name

if TYPE_CHECKING:
    from mcp import Client

    from rath.mcp.connection import Connection

__all__ = ["Link"]

T = TypeVar("T")


class Link:
    """The connection of a client, made anew after it broke; knows nothing of the client."""

    def __init__(self, spec: ServerSpec, connect_timeout: float) -> None:
        self._spec = spec
        self._connect_timeout = connect_timeout
        self._pid = os.getpid()
        self.current: Connection | None = None
        self.is_closed = False
        self.is_list_stale = False
        self.listed: Client | None = None
        """The session whose tools were listed."""
        self._connection_type: type[Connection] | None = None

    async def aopened(self) -> Connection:
        """Return a usable connection, opened; on the runtime loop."""
        connection = await self._usable()
        await connection.aopened()
        return connection

    async def arequest(
        self, ask: Callable[[Client], Awaitable[T]], request: str, timeout: float
    ) -> T:
        """Make a request on a usable connection; on the runtime loop."""
        connection = await self._usable()
        try:
            return await connection.arequest(ask, request=request, timeout=timeout)
        except SessionForgotten:
            connection = await self._usable()
            return await connection.arequest(ask, request=request, timeout=timeout)

    async def aclose(self) -> None:
        """Close what is open; on the runtime loop."""
        current = self.current
        if current is not None and self._pid == os.getpid():
            await current.aclose()

    def drop(self) -> None:
        """Close soon, and never block: called by a finalizer, on any thread."""
        self.is_closed = True
        if self.current is not None and self._pid == os.getpid():
            runtime().close_soon(self)

    async def _usable(self) -> Connection:
        if self._connection_type is None:
            # The SDK takes seconds to import, for which no session shall wait.
            self._connection_type = await runtime().call_in_worker(_connection_type)
        if self.is_closed:
            raise MCPConnectionError(
                f"the client of MCP server {server_name(self._spec)} is closed; make another one",
                server=server_name(self._spec),
            )
        if self._pid != os.getpid():
            # What is open belongs to the parent, and its loop does not run here.
            self.current, self._pid = None, os.getpid()
        if self.current is None or not self.current.is_usable:
            self.current = self._connection_type(
                self._spec,
                server=server_name(self._spec),
                connect_timeout=self._connect_timeout,
                on_changed=self._note_change,
            )
        return self.current

    def _note_change(self) -> None:
        self.is_list_stale = True


def _connection_type() -> type[Connection]:
    from rath.mcp.connection import Connection  # noqa: PLC0415  # brings the SDK

    return Connection
