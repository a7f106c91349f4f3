"""`rath mcp test`: whether a tool server works, step by step."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Annotated, TypeVar

import typer

from rath.cli import findings as shown
from rath.cli.findings import Finding
from rath.cli.layout import number, one_line, span
from rath.cli.mcp_servers import AsJson, ServerName, pins_of, server_named, target, transport
from rath.cli.terminal import say_json, visible
from rath.errors import ConfigError, MCPRequestError, MCPServerError
from rath.mcp import MCPClient
from rath.mcp.configured import ConfiguredServer
from rath.mcp.pins import PinDifferences
from rath.mcp.trust import check_trusted

__all__ = ["try_server"]

T = TypeVar("T")

_NO_SUCH_METHOD = -32601


def try_server(
    name: ServerName,
    timeout: Annotated[
        float, typer.Option("--timeout", min=0.001, help="Seconds for each step.")
    ] = 30.0,
    as_json: AsJson = False,
) -> None:
    """Start or contact a server, and say what works and how long it took.

    No tool is called. The exit status is 1 where something does not work.
    """
    server = server_named(name)
    steps = _Steps(server.name)
    try:
        with _client(server, timeout) as client:
            _try(server, client, steps)
    except (MCPServerError, ConfigError) as exc:
        steps.note("connection", "problem", str(exc))
    found = [shown.cleaned(finding, lambda text: visible(text, but="")) for finding in steps.found]
    if as_json:
        say_json({"server": server.name, "findings": [shown.as_json(each) for each in found]})
    else:
        shown.show(found)
    if shown.counts(found)["problem"]:
        raise typer.Exit(1)


class _Steps:
    """What was tried, in order, with the time that each step took."""

    def __init__(self, group: str) -> None:
        self._group = group
        self.found: list[Finding] = []

    def note(self, subject: str, level: shown.Level, text: str, ms: float | None = None) -> None:
        details = {} if ms is None else {"ms": round(ms, 1)}
        told = one_line(text) if ms is None else f"{one_line(text)} ({span(ms)})"
        self.found.append(Finding(self._group, subject, level, told, details=details))

    def listed(self, noun: str, ask: Callable[[], Sequence[T]]) -> Sequence[T]:
        """Ask for a list that a server may lack."""
        begun = time.perf_counter()
        try:
            items = ask()
        except MCPRequestError as exc:
            if exc.code == _NO_SUCH_METHOD:
                self.note(f"{noun}s", "note", "it has none: the server does not know the request")
            else:
                self.note(f"{noun}s", "problem", str(exc))
            return ()
        self.note(f"{noun}s", "ok", number(len(items), noun), _since(begun))
        return items


def _client(server: ConfiguredServer, timeout: float) -> MCPClient:
    check_trusted(server.name, server.store)
    return MCPClient(server.spec, timeout=timeout, connect_timeout=timeout)


def _try(server: ConfiguredServer, client: MCPClient, steps: _Steps) -> None:
    steps.note("server", "ok", f"{transport(server)}: {target(server)}")
    begun = time.perf_counter()
    info = client.server_info
    said = f"{info.name} {info.version}, over {client.transport}"
    steps.note("handshake", "ok", said, _since(begun))
    tools = steps.listed("tool", client.list_tools)
    if tools:
        _compare(pins_of(server, tools), steps)
    steps.listed("prompt", client.list_prompts)
    steps.listed("resource", client.list_resources)


def _compare(found: PinDifferences, steps: _Steps) -> None:
    if found.is_new:
        steps.note("descriptions", "note", "the tools were not used yet, so nothing is pinned")
    elif found.changed:
        names = ", ".join(found.changed)
        steps.note(
            "descriptions", "warning", f"changed since the first use: {names}; see rath mcp ls"
        )
    else:
        steps.note("descriptions", "ok", "as at the first use")


def _since(begun: float) -> float:
    return (time.perf_counter() - begun) * 1000
