"""Where a tool server is: a program that is started, or an address."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from rath._core.text import one_line_preview
from rath.mcp.redaction import address_name, is_url, redact_argv

__all__ = ["Auth", "Bearer", "ClientCredentials", "HttpServer", "HttpTransport", "ServerSpec",
           "StdioServer", "Transport", "server_name", "server_spec"]  # fmt: skip

_MAX_NAME_CHARS = 100

HttpTransport: TypeAlias = Literal["auto", "http", "sse"]
"""How an address is spoken to: streamable HTTP, the older SSE, or the first of the two it knows."""

Transport: TypeAlias = Literal["stdio", "http", "sse"]
"""How a connection speaks to its server."""


@dataclass(frozen=True, slots=True)
class Bearer:
    """A token that goes with every request to the server's own origin."""

    env: str | None = None
    """Name of the environment variable that holds the token, read at each connect."""

    token: str | None = field(default=None, repr=False)
    """The token itself, where the program has it from elsewhere."""


@dataclass(frozen=True, slots=True)
class ClientCredentials:
    """OAuth 2 client credentials: the program asks for a token of its own, without a person."""

    client_id: str
    """The client's name at the authorization server; may be `${NAME}` of the environment."""

    secret_env: str
    """Name of the environment variable that holds the client's secret, read at each connect."""

    issuer: str
    """Address of the authorization server; the secret is sent to no other, whatever the tool
    server says."""

    scopes: tuple[str, ...] = ()
    """Rights of the token; by default what the server asks for."""

    method: Literal["client_secret_basic", "client_secret_post"] = "client_secret_basic"
    """How the secret is sent to the authorization server."""


Auth: TypeAlias = Bearer | ClientCredentials


@dataclass(frozen=True, slots=True, repr=False)
class StdioServer:
    """A server that is started as a child process and spoken to over its pipes."""

    command: str
    """The program: a name on the PATH, or a path."""

    args: tuple[str, ...] = ()

    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """Variables of its environment beside the few harmless variables that every server gets.

    `${NAME}` in a value stands for that variable of the program, read at each connect.
    """

    cwd: str | None = None
    """Its working directory; by default that of the program."""

    def __repr__(self) -> str:
        return f"StdioServer({server_name(self)})"


@dataclass(frozen=True, slots=True, repr=False)
class HttpServer:
    """A server at an address."""

    url: str
    """`${NAME}` as in `StdioServer.env`, so that a token in an address need not stand here."""

    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """Headers of every request to the server's own origin; `${NAME}` as in `StdioServer.env`."""

    auth: Auth | None = None

    transport: HttpTransport = "auto"

    def __repr__(self) -> str:
        return f"HttpServer({server_name(self)!r})"


ServerSpec: TypeAlias = StdioServer | HttpServer
"""Where a tool server is."""


def server_spec(
    command: str | Sequence[str] | ServerSpec,
    *,
    args: Sequence[str] | None = None,
    env: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
    auth: str | Auth | None = None,
    transport: HttpTransport = "auto",
) -> ServerSpec:
    """Return the server that a program or an address stands for.

    Args:
        command: A program, a whole command line as a list, an address, or a spec.
        args: Arguments of a program; ignored beside a whole command line.
        env: Environment of a program.
        headers: Headers for an address.
        auth: A token, or how to get one, for an address.
        transport: How an address is spoken to.

    Raises:
        ValueError: It is empty, or something was given that fits no server of that sort.
        TypeError: It is none of these.
    """
    if isinstance(command, StdioServer | HttpServer):
        _refuse("a server spec", args=args, env=env, headers=headers, auth=auth)
        return command
    if isinstance(command, str) and is_url(command):
        _refuse("an address", args=args, env=env)
        token = Bearer(token=auth) if isinstance(auth, str) else auth
        return HttpServer(command, dict(headers or {}), token, transport)
    _refuse("a program", headers=headers, auth=auth)
    words = [command, *(args or ())] if isinstance(command, str) else command
    if not isinstance(words, list | tuple) or any(not isinstance(word, str) for word in words):
        raise TypeError(
            f"an MCP server is a program, a list of words or an address, not {words!r:.80}"
        )
    if not words or not words[0].strip():
        raise ValueError("the command of an MCP server is empty; name a program, or an address")
    return StdioServer(words[0], tuple(words[1:]), dict(env or {}))


def server_name(spec: ServerSpec) -> str:
    """Return what a server is called in messages: its command, or its address; without secrets."""
    if isinstance(spec, StdioServer):
        words = redact_argv([os.path.basename(spec.command), *spec.args])
        return repr(one_line_preview(" ".join(words), _MAX_NAME_CHARS))
    return address_name(spec.url)


def _refuse(what: str, **options: object) -> None:
    wrong = [name for name, value in options.items() if value]
    if wrong:
        raise ValueError(f"{wrong[0]}= does not go with {what} as the MCP server; leave it out")
