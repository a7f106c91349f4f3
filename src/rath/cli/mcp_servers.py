"""The tool servers that the configs name, and how they are told."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rath.cli.layout import one_line
from rath.cli.terminal import Misuse, Problem
from rath.config.layers import config_layers
from rath.config.trust import belongs_to_project
from rath.mcp.configured import ConfiguredServer, configured_server
from rath.mcp.pins import PinDifferences, pin_differences
from rath.mcp.redaction import redact_argv
from rath.mcp.spec import server_name
from rath.mcp.trust import is_trusted

if TYPE_CHECKING:
    from mcp_types import Tool

__all__ = [
    "AsJson",
    "Listed",
    "ServerName",
    "Trust",
    "all_servers",
    "hints_of",
    "own_server",
    "pin_of",
    "pins_of",
    "purpose",
    "server_as_json",
    "server_named",
    "target",
    "transport",
    "trust_of",
]

ServerName = Annotated[str, typer.Argument(metavar="NAME", help="As `rath mcp ls` shows.")]
AsJson = Annotated[bool, typer.Option("--json", help="Write JSON, for programs.")]

Trust = Literal["own", "trusted", "not trusted"]
"""A server of one's own config needs no word; one of a project does."""

_HINTS = {
    "read_only_hint": "read-only",
    "idempotent_hint": "idempotent",
    "destructive_hint": "destructive",
}


@dataclass(frozen=True, slots=True)
class Listed:
    """A server, and whether programs get it without naming it."""

    server: ConfiguredServer
    is_default: bool


def all_servers() -> list[Listed]:
    """Return the servers that count here, each name once, those of the project first."""
    layers = config_layers()
    defaults = (store.config.mcp.default_enabled for store in layers)
    enabled = next((names for names in defaults if names), None) or ()
    names = dict.fromkeys(name for store in layers for name in store.config.mcp.servers)
    return [Listed(configured_server(name), name in enabled) for name in names]


def server_named(name: str) -> ConfiguredServer:
    """Return a server of the config.

    Raises:
        Misuse: There is none of that name; the text says which there are.
        Problem: Its entry names no program.
    """
    try:
        found = configured_server(name)
        _ = found.spec
    except KeyError as exc:
        raise Misuse(str(exc.args[0])) from None
    except ValueError as exc:
        raise Problem(str(exc)) from None
    return found


def own_server(server: ConfiguredServer) -> bool:
    """Tell whether a server stands in a config of the user's own."""
    return not belongs_to_project(server.store)


def trust_of(server: ConfiguredServer) -> Trust:
    """Return whether a server may be started or spoken to, and why."""
    if own_server(server):
        return "own"
    return "trusted" if is_trusted(server.name, server.store) else "not trusted"


def transport(server: ConfiguredServer) -> str:
    """Return how a server is spoken to: stdio, http, sse, or auto."""
    if server.entry.url is None:
        return "stdio"
    return server.entry.transport or "auto"


def target(server: ConfiguredServer) -> str:
    """Return the command line or the address of a server, its secrets hidden."""
    if server.entry.url is not None:
        return server_name(server.spec)
    return shlex.join(redact_argv(server.entry.command or []))


def server_as_json(listed: Listed) -> dict[str, Any]:
    """Return a server for programs."""
    server = listed.server
    return {
        "name": server.name,
        "transport": transport(server),
        "target": target(server),
        "is_default": listed.is_default,
        "trust": trust_of(server),
        "config": str(server.store.path),
    }


def hints_of(tool: Tool) -> list[str]:
    """Return what a server says of the effects of a tool."""
    return [word for name, word in _HINTS.items() if getattr(tool.annotations, name, None) is True]


def pins_of(server: ConfiguredServer, tools: Sequence[Tool]) -> PinDifferences:
    """Return how the tools of a server differ from what they were at its first use."""
    return pin_differences(server.spec, tools, project=server.project)


def pin_of(tool: Tool, found: PinDifferences) -> str:
    """Return how a tool differs from what it was at its first use; an empty text for not at all."""
    if tool.name in found.changed:
        return "changed"
    return "new" if tool.name in found.added and not found.is_new else ""


def purpose(tool: Tool) -> str:
    """Return what a server says of a tool, on one line."""
    return one_line(tool.description or tool.title or "")
