"""Errors of the SDK and the network, as errors of our tree."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from dataclasses import field
from http import HTTPStatus
from typing import cast

import anyio
import httpx2
from mcp import MCPError
from mcp.client.auth import OAuthFlowError
from mcp_types import CONNECTION_CLOSED, REQUEST_TIMEOUT
from pydantic import ValidationError

from rath import errors
from rath._core.dataclasses import dataclass
from rath._core.text import cut_middle
from rath.config.redaction import REFERENCE, Redactor, address_secrets, printable
from rath.mcp.http import HttpExchange
from rath.mcp.spec import HttpServer, ServerSpec, StdioServer
from rath.mcp.stdio import Child

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

_MAX_EXCERPT_CHARS = 2000
"""How much of a server's own words an error holds; a guess."""

_MAX_READ_CHARS = 100_000
"""How much of it is read for that; a server may send megabytes. A guess."""

_MIN_SECRET_CHARS = 4
_MAX_SECRET_CHARS = 8000
"""Longer than any credential that fits into a header."""

_STAND_INS = frozenset({"Server returned an error response", "Not Found", "Session terminated"})
_STAND_IN_BEGINNINGS = ("Unexpected content type", "Redirect to ")

_BROKEN = (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream, OSError)


@dataclass(slots=True)
class Situation:
    """Facts about a connection, for the texts of its errors."""

    server: str
    """Its name in messages."""

    spec: ServerSpec
    child: Child = field(default_factory=Child)
    exchange: HttpExchange = field(default_factory=HttpExchange)
    secrets: Sequence[str] = field(default=(), repr=False)
    """Parts of the settings that no text may hold."""

    tokens: Sequence[str] = field(default=(), repr=False)
    """Those that no answer may hold either; long ones alone are looked for."""

    @property
    def redactor(self) -> Redactor:
        """Hides the secrets."""
        return Redactor(tuple(dict.fromkeys(self.secrets)), shortest=_MIN_SECRET_CHARS)

    def hide(self, text: str) -> str:
        """Return a text without secrets."""
        return self.redactor.text(text)

    def excerpt(self, text: str) -> str:
        """Return words of the server, without secrets, commands to a terminal and end."""
        if len(text) > _MAX_READ_CHARS:
            # The end may be the beginning of a secret, which nothing would find.
            text = self.hide(text[:_MAX_READ_CHARS])[:-_MAX_SECRET_CHARS]
        return cut_middle(printable(self.hide(text)), _MAX_EXCERPT_CHARS)[0]

    def first(self, causes: Sequence[BaseException]) -> str:
        """Return the first of several errors in words."""
        kind = type(causes[0]).__name__
        return self.excerpt(f"{kind}: {causes[0]}") if str(causes[0]) else kind

    def exit_text(self) -> str:
        """Return how the program ended, if it did."""
        code = self.child.exit_code
        if code is None:
            return ""
        return f", killed by signal {-code}" if code < 0 else f", exit status {code}"

    def output_text(self) -> str:
        """Return the last lines that the program printed, if it did."""
        stderr, noise = (log.lines(self.hide) for log in (self.child.stderr, self.child.noise))
        text = f"; the last it wrote to stderr: {stderr}" if stderr else ""
        return text + (f"; on stdout, where only messages belong: {noise}" if noise else "")


def connect_failure(error: BaseException, situation: Situation, *, seconds: float) -> Exception:
    """Return the error of a connection that could not be made.

    Args:
        error: What was raised, perhaps a group of groups.
        situation: The server, and what was heard of it.
        seconds: How long was waited for it.
    """
    causes = list(_leaves(error))
    server = situation.server
    found = _own(causes) or _start_failure(causes, situation) or _http_failure(causes, situation)
    if found is not None:
        return found
    if any(isinstance(cause, TimeoutError) for cause in causes):
        return errors.MCPTimeout(
            f"MCP server {server} did not answer the handshake within {seconds:g} s"
            f"{situation.output_text()}; check that it speaks MCP, or give it longer with "
            "connect_timeout",
            server=server,
        )
    text = (
        f"no connection to MCP server {server}: {situation.first(causes)}; check that it runs and "
        "that the address is that of its MCP endpoint"
    )
    if isinstance(situation.spec, StdioServer):
        text = (
            f"MCP server {server} ended or refused the handshake{situation.exit_text()} "
            f"({situation.first(causes)}){situation.output_text()}; run the command by hand to see "
            "why"
        )
    return errors.MCPConnectionError(text, server=server)


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
    if (found := _own(causes) or _http_failure(causes, situation)) is not None:
        return found
    replies = [cause for cause in causes if isinstance(cause, MCPError)]
    is_late = any(isinstance(cause, TimeoutError) for cause in causes)
    if is_late or any(reply.code == REQUEST_TIMEOUT for reply in replies):
        return errors.MCPTimeout(
            f"MCP server {server} did not answer {request} within {seconds:g} s and was told to "
            f"stop; whether it took effect is not known{situation.output_text()}. Give it longer "
            "with timeout",
            server=server,
        )
    if any(map(is_lost, causes)):
        return errors.MCPConnectionError(
            f"the connection to MCP server {server} was lost during {request}"
            f"{situation.exit_text()}; whether it took effect is not known"
            f"{situation.output_text()}. The next use connects again",
            server=server,
        )
    for reply in replies:
        text = situation.excerpt(reply.message)
        refused = errors.MCPRequestError(
            f"MCP server {server} refused {request}: {text} (code {reply.code})", server=server
        )
        refused.code = reply.code
        return refused
    if any(isinstance(cause, ValidationError | RuntimeError) for cause in causes):
        return errors.MCPProtocolError(
            f"the answer of MCP server {server} to {request} is not what the protocol or its own "
            f"schema promises: {situation.first(causes)}",
            server=server,
        )
    return errors.MCPServerError(
        f"{request} failed at MCP server {server}: {situation.first(causes)}", server=server
    )


def is_lost(error: BaseException) -> bool:
    """Tell whether an error says that the connection is gone."""
    if isinstance(error, MCPError):
        return error.code == CONNECTION_CLOSED
    is_broken = isinstance(error, (*_BROKEN, httpx2.TransportError))
    return is_broken and not isinstance(error, TimeoutError)


def _own(causes: Sequence[BaseException]) -> errors.RathError | None:
    return next((cause for cause in causes if isinstance(cause, errors.RathError)), None)


def _start_failure(
    causes: Sequence[BaseException], situation: Situation
) -> errors.MCPConnectionError | None:
    """Return the error of a program that could not be started."""
    spec = situation.spec
    cause = next((each for each in causes if isinstance(each, OSError | ValueError)), None)
    is_started = situation.child.pid is not None or isinstance(cause, TimeoutError)
    if not isinstance(spec, StdioServer) or is_started or cause is None:
        return None
    is_missing = isinstance(cause, FileNotFoundError | NotADirectoryError)
    if is_missing and spec.cwd is not None and not os.path.isdir(spec.cwd):
        reason = f"its working directory {spec.cwd!r} is not there; create it, or correct cwd"
    elif isinstance(cause, FileNotFoundError):
        how = _INSTALL.get(os.path.basename(spec.command), "install it")
        reason = f"there is no program {spec.command!r}; {how}, or give its whole path"
    elif isinstance(cause, PermissionError):
        reason = f"the program {spec.command!r} may not be executed; check its permissions"
    elif isinstance(cause, OSError) and cause.errno == errno.ENOEXEC:
        reason = f"{spec.command!r} is no program; give an interpreter as the command"
    else:
        reason = f"{cause}; check command, args and env"
    return errors.MCPConnectionError(
        f"MCP server {situation.server} could not be started: {situation.hide(reason)}",
        server=situation.server,
    )


_STATUS_ROWS: tuple[tuple[int, int, str, type[errors.MCPConnectionError], str], ...] = (
    (
        0, 1000, "html", errors.MCPProtocolError,
        "MCP server {server} answered with a web page ({status} {phrase}) in place of MCP; the "
        "address is not that of an MCP endpoint, which often ends in /mcp or /sse",
    ),
    (
        404, 405, "", errors.MCPConnectionError,
        "there is no MCP endpoint at {server} (404 Not Found); check the path, which is often /mcp "
        "or /sse",
    ),
    (
        300, 400, "", errors.MCPConnectionError,
        "MCP server {server} sends elsewhere ({status} {phrase}), and credentials do not go to "
        "another origin; give the new address",
    ),
    (
        0, 1000, "", errors.MCPConnectionError,
        "MCP server {server} answered {status} {phrase}; look at its own log",
    ),
)  # fmt: skip
"""Errors for HTTP answers without a message: least status, limit, part of the media type, error.

The first row that fits decides.
"""


def _http_failure(causes: Sequence[BaseException], situation: Situation) -> Exception | None:
    """Return the error that an HTTP answer stands for; None where there was none."""
    spec, exchange, server = situation.spec, situation.exchange, situation.server
    for cause in causes:
        if isinstance(cause, OAuthFlowError):
            return errors.MCPAuthenticationError(
                f"no OAuth token for MCP server {server}: "
                f"{situation.excerpt(str(cause))}; check issuer, client id and secret",
                server=server,
            )
        if isinstance(cause, httpx2.HTTPStatusError):
            exchange.status = cause.response.status_code
    status = exchange.status
    if not isinstance(spec, HttpServer) or status is None:
        return None
    # The SDK makes errors of HTTP answers that held none.
    replies = [
        cause.message
        for cause in causes
        if isinstance(cause, MCPError)
        and cause.message not in _STAND_INS
        and not cause.message.startswith(_STAND_IN_BEGINNINGS)
    ]
    phrase = HTTPStatus(status).phrase if status in set(HTTPStatus) else ""
    if status in (401, 403):
        reply = f": {situation.excerpt(replies[0])}" if replies else ""
        has_credential = (
            spec.auth or spec.headers or address_secrets(spec.url) or REFERENCE.search(spec.url)
        )
        credential = "the credential was refused" if has_credential else "none was given"
        refused = errors.MCPAuthenticationError(
            f"MCP server {server} wants a credential ({status} {phrase}{reply}), and {credential}; "
            "asking again does not help before there is a valid one: give it as auth or headers, "
            "or as bearer_env, oauth or headers in the config",
            server=server,
        )
        refused.status = status
        return refused
    if replies:
        return None
    kind, text = next(
        (kind, text)
        for least, limit, media, kind, text in _STATUS_ROWS
        if least <= status < limit and media in exchange.content_type
    )
    return kind(text.format(server=server, status=status, phrase=phrase), server=server)


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        for inner in group.exceptions:
            yield from _leaves(inner)
    else:
        yield error
