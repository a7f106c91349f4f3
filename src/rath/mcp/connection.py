"""One live session with a server, open in a task of its own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import replace
from http import HTTPStatus
from typing import TYPE_CHECKING, TypeVar

import anyio
from mcp import Client
from mcp.client.session import IncomingMessage
from mcp.shared.exceptions import MCPError
from mcp_types import (
    Implementation,
    LoggingMessageNotificationParams,
    ToolListChangedNotification,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from rath._async.owned_context import OwnedContext
from rath.config.redaction import argv_secrets, looks_random
from rath.errors import MCPAuthenticationError, MCPConnectionError, MCPProtocolError
from rath.mcp.client import SessionExpired
from rath.mcp.failures import Situation, connect_failure, is_lost, request_failure
from rath.mcp.http import HttpAccess, HttpExchange, current_exchange, open_http, open_sse
from rath.mcp.spec import (
    ServerSpec,
    StdioServer,
    Transport,
    credential_settings,
    server_environment,
    setting_secrets,
)
from rath.mcp.stdio import open_child

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams

__all__ = ["MCPConnection"]

T = TypeVar("T")

CLOSE_SECONDS = 6.0
"""How long closing may take before it is forced; above what a child process is given."""

LOST_SECONDS = 4.0
"""How long to wait for the end of a broken connection, to tell why it broke."""

_OLD_TRANSPORT = frozenset({400, 404, 405})
"""Statuses by which a server that knows only SSE refuses streamable HTTP, by the specification."""

SESSION_UNKNOWN = "Session terminated"
"""Text of the SDK where a server answers 404 to a request with the id of a session."""

for _name in ("mcp", "client"):
    # What its SDK logs of a broken connection we raise; nobody wants it on stderr by default.
    logging.getLogger(_name).addHandler(logging.NullHandler())

_log = logging.getLogger("rath.mcp")
_server_log = logging.getLogger("rath.mcp.server")


class MCPConnection:
    """A session with one server; used on the runtime loop, opened once, never opened again."""

    def __init__(self, spec: ServerSpec, *, server: str, connect_timeout: float,
                 on_changed: Callable[[], None]) -> None:  # fmt: skip
        self.situation: Situation = Situation(server, spec)
        self._connect_timeout = connect_timeout
        self._on_changed = on_changed
        self._is_broken = False
        self.transport: Transport | None = None
        """How it speaks to its server; None before it is open."""
        self.server_info: Implementation | None = None
        """Name and version of the server; None before it is open, or where it gave none."""
        self._resident = OwnedContext(self._opened, label=f"the connection to MCP server {server}")

    @property
    def is_usable(self) -> bool:
        """Whether it is open, or was not tried yet, and nothing speaks against its use."""
        return not self._is_broken and not self._resident.has_ended

    @property
    def is_open(self) -> bool:
        """Whether requests can be made now."""
        return not self._is_broken and self._resident.is_open

    async def aopened(self) -> Client:
        """Return the open session, opening it first.

        Raises:
            MCPServerError: It cannot be opened; says why.
            ConfigError: A variable that its settings refer to is not set.
        """
        try:
            return await self._resident.aopened()
        except Exception as exc:  # noqa: BLE001  # whatever it is, an error of ours comes of it
            failure = connect_failure(exc, self.situation, seconds=self._connect_timeout)
            raise failure from (None if failure is exc else self.situation.redactor.cause(exc))

    async def arequest(
        self, ask: Callable[[Client], Awaitable[T]], *, request: str, timeout: float
    ) -> T:
        """Make one request under its deadline; a cancelled one is cancelled at the server.

        Args:
            ask: Makes the request.
            request: What is asked, for messages.
            timeout: Seconds.

        Raises:
            MCPServerError: It failed; says why.
        """
        client = await self.aopened()
        exchange = HttpExchange()
        before = current_exchange.set(exchange)
        try:
            async with asyncio.timeout(timeout) as deadline:
                task = asyncio.current_task()
                assert task is not None
                if self.transport == "sse":
                    # Its SDK transport drops an answer that is an error: nobody would learn of it.
                    exchange.on_refused = lambda: deadline.reschedule(0.0)
                return await ask(client)
        except Exception as exc:  # noqa: BLE001  # of each an error of ours is made
            failure = await self._failure(exc, exchange, request, timeout)
            raise failure from self.situation.redactor.cause(exc)
        finally:
            current_exchange.reset(before)

    def mark_broken(self) -> None:
        """Let nobody use it any more, and close it."""
        self._is_broken = True
        self._resident.stop()

    async def aclose(self) -> None:
        """Close it, and end a server that was started; safe to call again."""
        self._is_broken = True
        await self._resident.aclose(CLOSE_SECONDS)

    async def _failure(
        self, exc: Exception, exchange: HttpExchange, request: str, timeout: float
    ) -> Exception:
        if isinstance(exc, MCPError) and exc.message == SESSION_UNKNOWN and exchange.status == 404:
            self.mark_broken()
            return SessionExpired(
                f"MCP server {self.situation.server} does not know the session any more; ask again"
            )
        if is_lost(exc) or self._is_broken or self._resident.has_ended:
            self.mark_broken()
            await self._resident.aended(LOST_SECONDS)
        failure = request_failure(
            exc, replace(self.situation, exchange=exchange), request=request, seconds=timeout
        )
        # And the next may be well; what a credential does not allow may be this call alone.
        is_one_answer = isinstance(failure, MCPProtocolError) or (
            isinstance(failure, MCPAuthenticationError) and failure.status == HTTPStatus.FORBIDDEN
        )
        if isinstance(failure, MCPConnectionError) and not is_one_answer:
            self.mark_broken()
        return failure

    @contextlib.asynccontextmanager
    async def _opened(self) -> AsyncGenerator[Client]:
        exchange = self.situation.exchange
        current_exchange.set(exchange)
        async with contextlib.AsyncExitStack() as stack:
            async with asyncio.timeout(self._connect_timeout):
                client, self.transport = await self._connected(stack)
            current_exchange.set(None)
            self.server_info = client.server_info
            async with anyio.create_task_group() as group:
                group.start_soon(self._hear_of_changes, client)
                yield client
                group.cancel_scope.cancel()

    async def _hear_of_changes(self, client: Client) -> None:
        """Ask to be told of changes, as newer servers want it; others tell without."""
        tools = client.server_capabilities.tools
        if client.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            return
        if tools is None or not tools.list_changed:
            return
        try:
            async with client.listen(tools_list_changed=True) as changes:
                async for _ in changes:
                    self._on_changed()
        except (MCPError, RuntimeError, TimeoutError) as exc:
            reason = self.situation.hide(str(exc))
            _log.debug("MCP server %s tells of no changes: %s", self.situation.server, reason)

    async def _connected(self, stack: contextlib.AsyncExitStack) -> tuple[Client, Transport]:
        spec = self.situation.spec
        if isinstance(spec, StdioServer):
            env = server_environment(spec.env)
            words = argv_secrets(spec.args)
            self.situation.secrets = [*setting_secrets(spec.env), *words]
            credentials = setting_secrets(credential_settings(spec.env))
            self.situation.tokens = [*credentials, *filter(looks_random, words)]
            child = open_child(
                [spec.command, *spec.args],
                env=env,
                cwd=spec.cwd,
                child=self.situation.child,
                on_lost=self.mark_broken,
                on_dropped=self._note_dropped,
            )
            return await stack.enter_async_context(self._client(child)), "stdio"
        access = HttpAccess.of(spec)
        self.situation.secrets, self.situation.tokens = access.secrets, access.tokens
        if spec.transport != "sse":
            http = open_http(access, timeout=self._connect_timeout)
            try:
                return await stack.enter_async_context(self._client(http)), "http"
            except Exception:
                exchange = self.situation.exchange
                if spec.transport == "http" or exchange.status not in _OLD_TRANSPORT:
                    raise
                exchange.status, exchange.content_type = None, ""
        sse = open_sse(access, timeout=self._connect_timeout, on_lost=self.mark_broken)
        return await stack.enter_async_context(self._client(sse)), "sse"

    def _client(
        self, transport: contextlib.AbstractAsyncContextManager[TransportStreams]
    ) -> Client:
        return Client(
            transport,
            logging_callback=self._log_message,
            # Newer servers send what was asked for, and older ones what they like.
            log_level="debug" if _server_log.isEnabledFor(logging.DEBUG) else None,
            message_handler=self._take_message,
            cache=None,
        )

    def _note_dropped(self, method: str) -> None:
        if method == "notifications/tools/list_changed":
            self._on_changed()

    async def _take_message(self, message: IncomingMessage) -> None:
        if isinstance(message, ToolListChangedNotification):
            self._on_changed()
        elif isinstance(message, Exception):
            _log.debug("MCP server %s: %s", self.situation.server, type(message).__name__)

    async def _log_message(self, params: LoggingMessageNotificationParams) -> None:
        """Pass a message of a server on; at debug, since its level is the server's own word."""
        if _server_log.isEnabledFor(logging.DEBUG):
            text = self.situation.excerpt(f"{params.logger or 'server'}: {params.data}")
            _server_log.debug("%s: %s", params.level, text)
