"""`rath mcp ls`: the configured tool servers, and the tools that they have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from rath.cli.layout import cut, number, room
from rath.cli.mcp_servers import (
    AsJson,
    Listed,
    all_servers,
    hints_of,
    pin_of,
    pins_of,
    purpose,
    server_as_json,
    server_named,
    target,
    transport,
    trust_of,
)
from rath.cli.terminal import complain, note, say_json, say_lines, say_rows, visible, warn
from rath.errors import ConfigError, MCPServerError
from rath.mcp.pins import PinDifferences

if TYPE_CHECKING:
    from mcp_types import Tool

__all__ = ["list_servers"]

_MAX_NAME = 40
"""Columns that all names of tools are made to fill; a longer one moves its own text alone."""


def list_servers(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Show the tools of this server alone.")
    ] = None,
    with_tools: Annotated[
        bool, typer.Option("--tools", help="Ask each server for its tools.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List the tool servers of the config: where each is, who named it, and if you trust it.

    With NAME or --tools they are started or contacted, and their tools are listed, with what has
    changed since the first use. Nothing that is not trusted is started.
    """
    if name is None and not with_tools:
        _list(all_servers(), for_programs=as_json)
        return
    listed = all_servers()
    if name is not None:
        wanted = server_named(name).name
        listed = [each for each in listed if each.server.name == wanted]
    found = [_asked(each) for each in listed]
    if as_json:
        say_json({"servers": [each.as_json() for each in found]})
    for each in found:
        if not as_json:
            each.tell()
        if each.problem:
            complain(each.problem)
    if any(each.problem for each in found):
        raise typer.Exit(1)


class _Asked:
    """A server, and the tools that it has, or why it could not be asked."""

    def __init__(self, listed: Listed, tools: list[Tool], pins: PinDifferences, problem: str):
        self.listed = listed
        self.tools = tools
        self.pins = pins
        self.problem = problem

    def as_json(self) -> dict[str, Any]:
        tools = [
            {
                "name": tool.name,
                "description": tool.description,
                "input_schema": tool.input_schema,
                "hints": hints_of(tool),
                "pin": pin_of(tool, self.pins) or ("new" if self.pins.is_new else "same"),
            }
            for tool in self.tools
        ]
        gone = {"removed": list(self.pins.removed), "problem": self.problem or None}
        return {**server_as_json(self.listed), "tools": tools, **gone}

    def tell(self) -> None:
        server = self.listed.server
        say_lines([[(f"{server.name}", "bold"), (f"  {transport(server)}  {target(server)}", "")]])
        columns = room()
        width = max((min(len(tool.name), _MAX_NAME) for tool in self.tools), default=0)
        for tool in self.tools:
            pin = pin_of(tool, self.pins)
            mark = f"[{pin}] " if pin else ""
            hints = "".join(f"  ({', '.join(hints)})" for hints in [hints_of(tool)] if hints)
            head = f"  {visible(tool.name, but=''):<{width}}"
            told = cut(f"{head}  {mark}{purpose(tool)}{hints}", columns)
            say_lines([[(told[: len(head)], "cyan"), (told[len(head) :], "")]])
        if self.pins.changed or self.pins.removed:
            gone = ", ".join(visible(name, but="") for name in self.pins.removed)
            warn(
                f"{server.name}: {number(len(self.pins.changed), 'tool')} changed since the first "
                f"use{f', and these are gone: {gone}' if gone else ''}. Look at them, then accept "
                f"them with: rath mcp trust {server.name}"
            )


def _asked(listed: Listed) -> _Asked:
    nothing = PinDifferences()
    try:
        with listed.server.client() as client:
            tools = client.list_tools()
        return _Asked(listed, tools, pins_of(listed.server, tools), "")
    except (MCPServerError, ConfigError, ValueError) as exc:
        return _Asked(listed, [], nothing, str(exc))


def _list(servers: list[Listed], *, for_programs: bool) -> None:
    if for_programs:
        say_json({"servers": [server_as_json(each) for each in servers]})
        return
    if not servers:
        note("no tool server is configured; see: rath config set mcp.servers.NAME.command ...")
        return
    rows = [_row(each) for each in servers]
    say_rows(rows, ["bold", "", "", "", "dim"])


def _row(listed: Listed) -> list[str]:
    server = listed.server
    name = f"{server.name} *" if listed.is_default else server.name
    return [name, transport(server), trust_of(server), target(server), str(server.store.path)]
