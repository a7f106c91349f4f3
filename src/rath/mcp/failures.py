"""What the SDK and the network raise, as errors of our tree."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import cast

import anyio
import httpx2
from mcp import MCPError
from mcp.client.auth import OAuthFlowError
from mcp_types import CONNECTION_CLOSED, REQUEST_TIMEOUT
from pydantic import ValidationError

from rath._core.text import cut_middle
from rath.errors import (
    MCPAuthenticationError,
    MCPConnectionError,
    MCPProtocolError,
    MCPRequestError,
    MCPServerError,
    MCPTimeout,
    RathError,
)
from rath.mcp.address import address_secrets
from rath.mcp.environment import REFERENCE
from rath.mcp.http import Exchange
from rath.mcp.spec import HttpServer, ServerSpec, StdioServer
from rath.mcp.stdio import Child
from rath.mcp.tail import hidden, printable

__all__ = ["Situation", "connect_failure", "is_lost", "request_failure"]

_INSTALL = {
    "npx": "install Node.js, which brings npx",
    "node": "install Node.js",
    "npm": "install Node.js, which brings npm",
    "uvx": "install uv, which brings uvx",
    "uv": "install uv",
    "docker": "install Docker",
    "deno": "install Deno",
    "bunx": "install Bun, which brings bunx",
}
"""How one comes by the programs that start most servers."""

_MAX_SAID_CHARS = 2000
"""How much of what a server said an error tells; a guess."""

_MAX_READ_CHARS = 100_000
"""How much of it is read for that; a server may send megabytes. A guess."""

_MAX_SECRET_CHARS = 8000
"""Longer than any credential that fits into a header."""

_STAND_INS = frozenset({"Server returned an error response", "Not Found", "Session terminated"})
_STAND_IN_BEGINNINGS = ("Unexpected content type", "Redirect to ")

_BROKEN = (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream, OSError)


@dataclass(slots=True)
class Situation:
    """What is known of a connection when something goes wrong with it."""

    server: str
    """What it is called in messages."""

    spec: ServerSpec
    child: Child = field(default_factory=Child)
    exchange: Exchange = field(default_factory=Exchange)
    secrets: Sequence[str] = field(default=(), repr=False)
    """What no text may hold."""

    tokens: Sequence[str] = field(default=(), repr=False)
    """What no answer may hold either; long ones alone are looked for."""

    def hide(self, text: str) -> str:
        """Return a text without secrets."""
        return hidden(text, self.secrets)

    def told(self, text: str) -> str:
        """Return what was said, without secrets, commands to a terminal and end."""
        if len(text) > _MAX_READ_CHARS:
            # The end may be the beginning of a secret, which nothing would find.
            text = self.hide(text[:_MAX_READ_CHARS])[:-_MAX_SECRET_CHARS]
        return cut_middle(printable(self.hide(text)), _MAX_SAID_CHARS)[0]


def connect_failure(error: BaseException, situation: Situation, *, seconds: float) -> Exception:
    """Return the error of a connection that could not be made.

    Args:
        error: What was raised, perhaps a group of groups.
        situation: The server, and what was heard of it.
        seconds: How long was waited for it.
    """
    causes = list(_leaves(error))
    for cause in causes:
        if isinstance(cause, RathError):
            return cause
    server = situation.server
    found = _start_failure(causes, situation) or _http_failure(causes, situation)
    if found is not None:
        return found
    if any(isinstance(cause, TimeoutError) for cause in causes):
        return MCPTimeout(
            f"MCP server {server} did not answer the handshake within {seconds:g} s"
            f"{_heard(situation)}; check that it speaks MCP, or give it longer with "
            "connect_timeout",
            server=server,
        )
    said = _said(causes, situation)
    if isinstance(situation.spec, StdioServer):
        return MCPConnectionError(
            f"MCP server {server} ended or refused the handshake{_ended(situation.child)} "
            f"({said}){_heard(situation)}; run the command by hand to see why",
            server=server,
        )
    return MCPConnectionError(
        f"no connection to MCP server {server}: {said}; check that it runs and that the address "
        "is that of its MCP endpoint",
        server=server,
    )


def request_failure(
    error: BaseException, situation: Situation, *, request: str, seconds: float
) -> Exception:
    """Return the error of a request that failed on a live connection.

    Args:
        error: What was raised.
        situation: The server, and what was heard of it.
        request: What was asked, for the message: "the call of 'add'".
        seconds: How long it was given.
    """
    causes = list(_leaves(error))
    server = situation.server
    for cause in causes:
        if isinstance(cause, RathError):
            return cause
    if found := _http_failure(causes, situation):
        return found
    if any(isinstance(cause, TimeoutError) for cause in causes) or _has_code(
        causes, REQUEST_TIMEOUT
    ):
        return MCPTimeout(
            f"MCP server {server} did not answer {request} within {seconds:g} s and was told to "
            f"stop; whether it took effect is not known{_heard(situation)}. Give it longer with "
            "timeout",
            server=server,
        )
    if any(map(is_lost, causes)):
        return MCPConnectionError(
            f"the connection to MCP server {server} was lost during {request}"
            f"{_ended(situation.child)}; whether it took effect is not known"
            f"{_heard(situation)}. The next use connects again",
            server=server,
        )
    for cause in causes:
        if isinstance(cause, MCPError):
            said = situation.told(cause.message)
            refused = MCPRequestError(
                f"MCP server {server} refused {request}: {said} (code {cause.code})",
                server=server,
            )
            refused.code = cause.code
            return refused
    if any(isinstance(cause, ValidationError | RuntimeError) for cause in causes):
        said = _said(causes, situation)
        return MCPProtocolError(
            f"the answer of MCP server {server} to {request} is not what the protocol or its own "
            f"schema promises: {said}",
            server=server,
        )
    return MCPServerError(
        f"{request} failed at MCP server {server}: {_said(causes, situation)}",
        server=server,
    )


def is_lost(error: BaseException) -> bool:
    """Tell whether an error says that the connection is gone."""
    if isinstance(error, MCPError):
        return error.code == CONNECTION_CLOSED
    return isinstance(error, (*_BROKEN, httpx2.TransportError)) and not isinstance(
        error, TimeoutError
    )


def _start_failure(causes: list[BaseException], situation: Situation) -> Exception | None:
    """Return the error of a program that could not be started."""
    spec = situation.spec
    if not isinstance(spec, StdioServer) or situation.child.pid is not None:
        return None
    for cause in causes:
        if not isinstance(cause, OSError | ValueError):
            continue
        if isinstance(cause, FileNotFoundError | NotADirectoryError) and _is_directory_missing(
            spec
        ):
            why = f"its working directory {spec.cwd!r} is not there; create it, or correct cwd"
        elif isinstance(cause, FileNotFoundError):
            how = _INSTALL.get(os.path.basename(spec.command), "install it")
            why = f"there is no program {spec.command!r}; {how}, or give its whole path"
        elif isinstance(cause, PermissionError):
            why = f"the program {spec.command!r} may not be executed; check its permissions"
        elif isinstance(cause, OSError) and cause.errno == errno.ENOEXEC:
            why = f"{spec.command!r} is no program; give an interpreter as the command"
        else:
            why = f"{cause}; check command, args and env"
        return MCPConnectionError(
            f"MCP server {situation.server} could not be started: {situation.hide(why)}",
            server=situation.server,
        )
    return None


def _is_directory_missing(spec: StdioServer) -> bool:
    return spec.cwd is not None and not os.path.isdir(spec.cwd)


def _http_failure(causes: list[BaseException], situation: Situation) -> Exception | None:
    """Return the error that an HTTP answer stands for; None where there was none."""
    spec, exchange, server = situation.spec, situation.exchange, situation.server
    for cause in causes:
        if isinstance(cause, OAuthFlowError):
            return MCPAuthenticationError(
                f"no OAuth token for MCP server {server}: "
                f"{situation.told(str(cause))}; check issuer, client id and secret",
                server=server,
            )
        if isinstance(cause, httpx2.HTTPStatusError):
            exchange.status = cause.response.status_code
    status = exchange.status
    if not isinstance(spec, HttpServer) or status is None:
        return None
    said = [cause for cause in causes if isinstance(cause, MCPError) and not _is_stand_in(cause)]
    if status in (401, 403):
        return _refused(status, said, situation)
    if said:
        return None
    if "html" in exchange.content_type:
        return MCPProtocolError(
            f"MCP server {server} answered with a web page ({status} {_phrase(status)}) in place "
            "of MCP; the address is not that of an MCP endpoint, which often ends in /mcp or /sse",
            server=server,
        )
    if status == 404:
        return MCPConnectionError(
            f"there is no MCP endpoint at {server} (404 Not Found); check the path, which is "
            "often /mcp or /sse",
            server=server,
        )
    if 300 <= status < 400:
        return MCPConnectionError(
            f"MCP server {server} sends elsewhere ({status} {_phrase(status)}), and credentials "
            "do not go to another origin; give the new address",
            server=server,
        )
    return MCPConnectionError(
        f"MCP server {server} answered {status} {_phrase(status)}; look at its own log",
        server=server,
    )


def _refused(status: int, said: Sequence[MCPError], situation: Situation) -> MCPAuthenticationError:
    """Return the error of a server that answers 401 or 403, whatever else it says."""
    spec, server = situation.spec, situation.server
    told = f": {situation.told(said[0].message)}" if said else ""
    is_given = isinstance(spec, HttpServer) and (
        spec.auth or spec.headers or address_secrets(spec.url) or REFERENCE.search(spec.url)
    )
    given = "the credential was refused" if is_given else "none was given"
    refused = MCPAuthenticationError(
        f"MCP server {server} wants a credential ({status} {_phrase(status)}{told}), and {given}; "
        "asking again does not help before there is a valid one: give it as auth or headers, or as "
        "bearer_env, oauth or headers in the config",
        server=server,
    )
    refused.status = status
    return refused


def _is_stand_in(error: MCPError) -> bool:
    """Tell whether the SDK made an error of an HTTP answer that held none."""
    return error.message in _STAND_INS or error.message.startswith(_STAND_IN_BEGINNINGS)


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        for inner in group.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def _has_code(causes: list[BaseException], code: int) -> bool:
    return any(isinstance(cause, MCPError) and cause.code == code for cause in causes)


def _said(causes: list[BaseException], situation: Situation) -> str:
    first, kind = causes[0], type(causes[0]).__name__
    return situation.told(f"{kind}: {first}") if str(first) else kind


def _ended(child: Child) -> str:
    if child.exit_code is None:
        return ""
    if child.exit_code < 0:
        return f", killed by signal {-child.exit_code}"
    return f", exit status {child.exit_code}"


def _heard(situation: Situation) -> str:
    heard = situation.child.stderr.lines(situation.secrets)
    noise = situation.child.noise.lines(situation.secrets)
    said = f"; the last it wrote to stderr: {heard}" if heard else ""
    return said + (f"; on stdout, where only messages belong: {noise}" if noise else "")


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""
