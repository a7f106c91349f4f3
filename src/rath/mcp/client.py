"""`MCPClient`: one tool server, spoken to over one live connection."""

from __future__ import annotations

import asyncio
import os
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

from rath._async.bridge import call_either
from rath._async.runtime import runtime
from rath._core.trace_context import outgoing_traceparent
from rath.config.redaction import Redactor
from rath.errors import MCPConnectionError, MCPProtocolError
from rath.mcp.spec import Auth, HttpTransport, ServerSpec, Transport, server_name, server_spec
from rath.mcp.tools import usable_tools

if TYPE_CHECKING:
    from mcp import Client
    from mcp_types import (
        CallToolResult,
        GetPromptResult,
        Implementation,
        Prompt,
        ReadResourceResult,
        RequestParamsMeta,
        Resource,
        Tool,
    )

    from rath.mcp.connection import MCPConnection

__all__ = ["MCPClient", "OnProgress"]

T = TypeVar("T")

OnProgress = Callable[[float, float | None, str | None], Awaitable[None] | None]
"""Called with what is done, the whole if it is known, and a message."""

MAX_PAGES = 1000
"""How many pages of a list are asked for: a server that never ends its list is cut off."""

MAX_ITEMS = 10_000
"""After how many items no further page of a list is asked for; a guess."""

MAX_LIST_CHARS = 64 << 20
"""The same for what its items say; a guess, as long as the longest message."""


class MCPClient:
    """Speaks to one tool server over one connection, which is opened by its first use.

    The connection is shared by all tools and threads that use the client. After it broke, the
    next use connects again. `close()`, `with`, the end of the last owner or of the program closes
    it, and ends a server that it started.

    Args:
        command: The program as a string or as a whole command line (a list, `args` is
            ignored then), an address (`http://`, `https://`), or a `ServerSpec`.
        args: Arguments of the program.
        env: Environment of the program, beside the few harmless variables that it always gets.
        headers: Headers of every request to an address.
        auth: A bearer token (a string, or `Bearer`), or `ClientCredentials`.
        transport: How an address is spoken to.
        timeout: Seconds that one request may take, and again all further pages of a list.
        connect_timeout: Seconds that the start of the server and the handshake may take together.

    Raises:
        ValueError: The command is empty, or an argument fits no server of that sort.
    """

    def __init__(
        self,
        command: str | Sequence[str] | ServerSpec,
        *,
        args: Sequence[str] | None = None,
        env: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        auth: str | Auth | None = None,
        transport: HttpTransport = "auto",
        timeout: float = 60.0,
        connect_timeout: float = 30.0,
    ) -> None:
        self.spec: ServerSpec = server_spec(
            command, args=args, env=env, headers=headers, auth=auth, transport=transport
        )
        """Where the server is."""
        _check_seconds(timeout=timeout, connect_timeout=connect_timeout)
        self.timeout = timeout
        self.connect_timeout = connect_timeout
        self._link = _Link(self.spec, connect_timeout)
        self._drop = weakref.finalize(self, self._link.drop)
        # At exit the runtime closes what is open; a finalizer there would only race with it.
        self._drop.atexit = False

    def __repr__(self) -> str:
        return f"MCPClient({self.name})"

    @property
    def name(self) -> str:
        """Name of the server in messages: its program, or its address without secrets."""
        return server_name(self.spec)

    @property
    def is_connected(self) -> bool:
        """Whether there is a live connection now; opens none."""
        return self._link.current is not None and self._link.current.is_open

    @property
    def transport(self) -> Transport | None:
        """Transport of the live connection; None without one."""
        current = self._link.current
        return current.transport if current is not None and current.is_open else None

    @property
    def pid(self) -> int | None:
        """The process id of the server that the live connection started; None without one."""
        current = self._link.current
        return current.situation.child.pid if current is not None and current.is_open else None

    @property
    def is_list_stale(self) -> bool:
        """Whether the server said that its tools changed after `list_tools` was last called."""
        return self._link.is_list_stale

    @property
    def server_info(self) -> Implementation:
        """Name and version that the server gave; connects if need be."""
        return self._run(self._aserver_info, "asking who an MCP server is")

    def list_tools(self) -> list[Tool]:
        """Return the tools of the server, all pages of the list."""
        return self._run(self.alist_tools, "listing the tools of an MCP server")

    def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any],
        *,
        timeout: float | None = None,
        on_progress: OnProgress | None = None,
    ) -> CallToolResult:
        """Call a tool by the name that the server gave it, and return what it answered.

        Args:
            name: Name of the tool.
            arguments: What it is called with, as JSON values.
            timeout: Seconds that the call may take; the client's `timeout` by default.
            on_progress: Gets the steps that the server tells of, in order, on a worker thread or
                on the loop for user coroutines.

        Raises:
            MCPConnectionError: No connection, or it broke in the middle of the call. Whether
                the tool did its work is not known then.
            MCPTimeout: No answer in time; the server was told to stop.
            MCPRequestError: The server refused the request; `is_error` in a result raises nothing.
        """
        return self._run(
            partial(self.acall_tool, name, arguments, timeout=timeout, on_progress=on_progress),
            f"MCP tool {name!r}",
        )

    def list_resources(self) -> list[Resource]:
        """Return the resources of the server, all pages of the list."""
        label = "listing the resources of an MCP server"
        return self._run(partial(self._alist, "resources"), label)

    def read_resource(self, uri: str) -> ReadResourceResult:
        """Return the content of a resource."""
        ask = partial(self._arequest, lambda client: client.read_resource(uri), f"{uri!r:.200}")
        return self._run(ask, "reading a resource of an MCP server")

    def list_prompts(self) -> list[Prompt]:
        """Return the prompts of the server, all pages of the list."""
        label = "listing the prompts of an MCP server"
        return self._run(partial(self._alist, "prompts"), label)

    def get_prompt(self, name: str, arguments: Mapping[str, str] | None = None) -> GetPromptResult:
        """Return the messages of a prompt."""
        values = dict(arguments or {})
        ask = partial(
            self._arequest, lambda client: client.get_prompt(name, values), f"prompt {name!r}"
        )
        return self._run(ask, "getting a prompt of an MCP server")

    async def alist_tools(self) -> list[Tool]:
        """`list_tools` for use in any event loop."""
        self._link.is_list_stale = False
        listed: list[Tool] = await self._alist("tools")
        # Descriptions are stored on disk, so they repeat no credential.
        return [self._redacted(tool) for tool in usable_tools(listed, self.name)]

    async def acall_tool(
        self,
        name: str,
        arguments: Mapping[str, Any],
        *,
        timeout: float | None = None,
        on_progress: OnProgress | None = None,
    ) -> CallToolResult:
        """`call_tool` for use in any event loop; cancelling it cancels the call at the server."""
        if timeout is not None:
            _check_seconds(timeout=timeout)
        progress = None if on_progress is None else _SerialProgress(on_progress)

        async def ask(client: Client) -> CallToolResult:
            if self._link.listed is not client:
                # The SDK checks an answer by the list, and asks for that after the call if it has
                # none: an error there would hide what the call came to.
                cursor: str | None = None
                for _ in range(MAX_PAGES):
                    cursor = (await client.list_tools(cursor=cursor)).next_cursor
                    if cursor is None:
                        break
                self._link.listed = client
            span = outgoing_traceparent()
            result = await client.call_tool(
                name,
                dict(arguments),
                progress_callback=progress,
                meta=None if span is None else cast("RequestParamsMeta", {"traceparent": span}),
            )
            if progress is not None:
                await progress.settle()
            return result

        return await self._arequest(ask, f"the call of {name!r}", timeout)

    def without_tokens(self, value: object) -> Any:
        """Return JSON that the server sent without the credentials of this connection.

        Hidden are those of 16 characters and more, wherever the server repeats them.
        """
        current = self._link.current
        tokens = () if current is None else tuple(current.situation.tokens)
        return Redactor(tokens).value(value)

    def close(self) -> None:
        """Close the connection and end a server that it started; safe to call again.

        A later use raises `MCPConnectionError`.
        """
        self._link.is_closed = True
        if self._link.current is not None:
            runtime().run(self._link.aclose, label="closing the connection to an MCP server")

    async def aclose(self) -> None:
        """`close` for use in any event loop."""
        self._link.is_closed = True
        await runtime().await_run(self._link.aclose, label="closing a connection")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _redacted(self, tool: Tool) -> Tool:
        fields = tool.model_dump(mode="json", by_alias=True, exclude_unset=True)
        redacted = self.without_tokens(fields)
        return tool if redacted == fields else type(tool).model_validate(redacted)

    def _run(self, make: Callable[[], Coroutine[Any, Any, T]], label: str) -> T:
        return runtime().run(make, label=label)

    async def _arequest(
        self,
        ask: Callable[[Client], Awaitable[T]],
        request: str,
        timeout: float | None = None,
    ) -> T:
        seconds = self.timeout if timeout is None else timeout
        return await runtime().await_run(
            partial(self._link.arequest, ask, request, seconds), label=f"MCP: {request}"
        )

    async def _aserver_info(self) -> Implementation:
        connection = await self._link.aopened()
        info = connection.server_info
        if info is None:
            raise MCPProtocolError(f"MCP server {self.name} did not say who it is")
        return info

    async def _alist(self, what: str) -> list[Any]:
        """Return all pages of a list: "tools", "resources" or "prompts"."""
        found: list[Any] = []
        cursor: str | None = None
        n_pages, n_chars, end, seconds = 0, 0, 0.0, self.timeout

        async def page(client: Client) -> tuple[list[Any], str | None]:
            result: Any = await getattr(client, f"list_{what}")(cursor=cursor)
            if what == "tools":
                self._link.listed = client
            return getattr(result, what), result.next_cursor

        while not n_pages or cursor is not None:
            is_long = n_pages == MAX_PAGES or len(found) > MAX_ITEMS or n_chars > MAX_LIST_CHARS
            if is_long or seconds <= 0:
                raise MCPProtocolError(
                    f"the list of {what} of MCP server {self.name} has no end: {n_pages} pages "
                    f"with {len(found)} {what} were read",
                    server=self.name,
                )
            items, cursor = await self._arequest(page, f"its {what}", seconds)
            found += items
            if n_pages:  # a long first page is the only one, or the next one counts
                n_chars += sum(len(repr(item)) for item in items)
            else:
                end = time.monotonic() + self.timeout
            seconds = end - time.monotonic()
            n_pages += 1
        return found


class SessionExpired(MCPConnectionError):
    """A server at an address has forgotten the session, so it did nothing: ask in a new one."""


class _SerialProgress:
    """Reports progress to the user, one step after the other."""

    def __init__(self, report: OnProgress) -> None:
        self._report = report
        self._lock = asyncio.Lock()

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None:
        # A lock is given in the order in which it was asked for.
        async with self._lock:
            await call_either(self._report, progress, total, message)

    async def settle(self) -> None:
        """Wait until all steps so far were passed on."""
        async with self._lock:
            return


class _Link:
    """The connection of a client, made anew after it broke; knows nothing of the client."""

    def __init__(self, spec: ServerSpec, connect_timeout: float) -> None:
        self._spec = spec
        self._connect_timeout = connect_timeout
        self._pid = os.getpid()
        self.current: MCPConnection | None = None
        self.is_closed = False
        self.is_list_stale = False
        self.listed: Client | None = None
        """The session whose tools were listed."""
        self._connection_type: type[MCPConnection] | None = None

    async def aopened(self) -> MCPConnection:
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
        except SessionExpired:
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

    async def _usable(self) -> MCPConnection:
        if self._connection_type is None:
            # The SDK takes seconds to import, for which no session shall wait.
            module = await runtime().call_in_worker(partial(import_module, "rath.mcp.connection"))
            self._connection_type = cast("type[MCPConnection]", module.MCPConnection)
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


def _check_seconds(**seconds: float) -> None:
    for name, value in seconds.items():
        if not value > 0:
            raise ValueError(f"{name} must be seconds above 0, not {value!r}")
