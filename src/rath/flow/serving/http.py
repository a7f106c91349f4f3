"""Serving over HTTP: a bearer token, known names of hosts, and an end within a moment."""

from __future__ import annotations

import asyncio
import hmac
import socket
from typing import Any

import uvicorn
from mcp.server.lowlevel.server import Server
from mcp.server.transport_security import TransportSecuritySettings
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from rath.flow.serving.serve import LOOPBACK, ServeOptions

_EVERYWHERE = frozenset({"0.0.0.0", "::", ""})  # compared with, not bound to
_GRACE_SECONDS = 1
"""How long requests may take to end once the server does."""


class TokenGate:
    """Lets in who knows the token.

    Args:
        app: What is behind.
        token: The token.
    """

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._expected = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer 401."""
        if scope["type"] == "http" and not self._has_token(scope):
            refusal = PlainTextResponse(
                "a bearer token is needed", 401, headers={"WWW-Authenticate": "Bearer"}
            )
            await refusal(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _has_token(self, scope: Scope) -> bool:
        headers = [value for name, value in scope["headers"] if name == b"authorization"]
        return len(headers) == 1 and hmac.compare_digest(headers[0], self._expected)


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens, so that a port that is taken is known at once.

    Raises:
        OSError: It cannot.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=128)


def address_of(listening: socket.socket, host: str, path: str) -> str:
    """Return the address of the server for clients."""
    port = listening.getsockname()[1]
    host_text = f"[{host}]" if ":" in host else host
    return f"http://{host_text}:{port}{path}"


async def serve_http(
    server: Server[Any], listening: socket.socket, *, host: str, options: ServeOptions
) -> None:
    """Serve until the task is cancelled; what is under way then has a moment to end."""
    app: ASGIApp = server.streamable_http_app(
        streamable_http_path=options.path,
        transport_security=_security(host, options),
    )
    if options.token is not None:
        app = TokenGate(app, options.token)
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="on",
        timeout_graceful_shutdown=_GRACE_SECONDS,
    )
    serving = uvicorn.Server(config)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(serving.serve(sockets=[listening]))
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            serving.should_exit = True
            await asyncio.wait([task], timeout=_GRACE_SECONDS + 0.5)
            raise


def _security(host: str, options: ServeOptions) -> TransportSecuritySettings:
    """Return by which names the server may be called: a page in a browser has others."""
    if host in _EVERYWHERE and not options.allowed_hosts:
        # Any name may be right; a page does not know the token.
        return TransportSecuritySettings(enable_dns_rebinding_protection=False)
    own = ("127.0.0.1", "localhost", "[::1]") if host in LOOPBACK else (f"[{host}]", host)
    names = [*own, *(f"{name}:*" for name in own), *options.allowed_hosts]
    return TransportSecuritySettings(
        enable_dns_rebinding_protection=True,
        allowed_hosts=names,
        allowed_origins=[f"{scheme}://{name}" for scheme in ("http", "https") for name in names],
    )
