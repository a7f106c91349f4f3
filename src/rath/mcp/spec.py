"""The place of a tool server: a program or an address, with its settings and their variables."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Literal, TypeAlias

from rath._core.dataclasses import dataclass
from rath._core.text import one_line_preview
from rath.config.redaction import REFERENCE, address_name, is_url, looks_secret, redact_argv
from rath.errors import ConfigError

__all__ = ["Auth", "Bearer", "ClientCredentials", "HttpServer", "HttpTransport", "ServerSpec",
           "StdioServer", "Transport", "credential_settings", "expand", "read_variable",
           "server_environment", "server_name", "server_spec", "setting_secrets"]  # fmt: skip

_MAX_NAME_CHARS = 100
_MIN_WORD_CHARS = 8
"""Shortest word of a setting that is a secret by itself. A guess; `Bearer` is none."""

HttpTransport: TypeAlias = Literal["auto", "http", "sse"]
"""Transport to an address: streamable HTTP, the older SSE, or the first of the two it knows."""

Transport: TypeAlias = Literal["stdio", "http", "sse"]
"""Transport of a connection to its server."""


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
"""The place of a tool server."""


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


# ---------------------------------------------------------------- environment

INHERITED = frozenset(
    {
        "HOME", "LANG", "LANGUAGE", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER",
        "VIRTUAL_ENV",
        "APPDATA", "HOMEDRIVE", "HOMEPATH", "LOCALAPPDATA", "PATHEXT", "PROCESSOR_ARCHITECTURE",
        "SYSTEMDRIVE", "SYSTEMROOT", "TEMP", "USERNAME", "USERPROFILE",
    }
)  # fmt: skip
"""Variables of this process that servers see, with all `LC_*`; keys and tokens stay out."""


def server_environment(added: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a server: the few inherited ones, then `added`, its references read.

    Raises:
        ConfigError: A value refers to a variable that is not set.
    """
    inherited = {
        name: value
        for name, value in os.environ.items()
        # A value of this form is a function of a shell, which some shells run when they start.
        if (name in INHERITED or name.startswith("LC_")) and not value.startswith("()")
    }
    return inherited | {name: expand(value, f"env.{name}") for name, value in added.items()}


def expand(value: str, where: str) -> str:
    """Return `value` with `${NAME}` replaced by that variable of the environment.

    Args:
        value: A setting.
        where: What it is, for the error.

    Raises:
        ConfigError: Such a variable is not set; its name is told, never a value.
    """
    return REFERENCE.sub(lambda match: read_variable(match[1], where), value)


def read_variable(name: str, where: str) -> str:
    """Return a variable of the environment.

    Raises:
        ConfigError: It is not set, or empty.
    """
    value = os.environ.get(name)
    if not value:
        raise ConfigError(
            f"{where} of an MCP server refers to the environment variable {name!r}, which is not "
            "set; set it before the program starts, or correct the name"
        )
    return value


def setting_secrets(settings: Mapping[str, str]) -> list[str]:
    """Return the parts of settings that no text may hold: the values, and their long words.

    A server that is sent `Bearer TOKEN` may say `TOKEN` again.

    Raises:
        ConfigError: A variable that they refer to is not set.
    """
    found: list[str] = []
    for name, value in settings.items():
        full = expand(value, name)
        found += [full, *(word for word in full.split() if len(word) >= _MIN_WORD_CHARS)]
        found += [read_variable(match[1], name) for match in REFERENCE.finditer(value)]
    return found


def credential_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that are credentials by their name, or by that of a variable in them.

    The others may be a directory or a team, which answers are about.
    """
    return {
        name: value
        for name, value in settings.items()
        if looks_secret(name) or any(looks_secret(each[1]) for each in REFERENCE.finditer(value))
    }
