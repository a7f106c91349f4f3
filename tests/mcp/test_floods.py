"""Servers that say too much, too early or in the wrong place."""

from __future__ import annotations

import logging
import sys
from typing import Any

import pytest

import rath.flow.tool.mcp_adapter
import rath.mcp.client
import rath.mcp.pins
import rath.mcp.tools
from rath.errors import MCPConnectionError, MCPProtocolError, ToolNameConflictError
from rath.flow.tool import merge_tools_for_loop
from rath.flow.tool.mcp_adapter import tools_of
from rath.flow.tool.system_tool import global_system_tools
from rath.mcp import MCPClient, StdioServer
from rath.mcp.pins import pin_tools, tool_digest
from rath.mcp.stdio import BURST, PER_SECOND, RateLimit
from tests.support.mcp_own import scripted, texts, tool, tools
from tests.support.waiting import PATIENCE

SERVER = r"""
import json, os, sys, threading

def say(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)

def told(method, times, **params):
    for _ in range(times):
        say(method="notifications/" + method, params=params)

def flood():
    while True:
        os.write(2, b"x" * 65536 + b"\n")

mode = sys.argv[1]
if mode == "early":
    told("tools/list_changed", 3)
    told("message", 3, level="info", data="x")
    say(id=1, result={})
    say(id=7, method="sampling/createMessage", params={})
if mode == "stderr":
    threading.Thread(target=flood, daemon=True).start()
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked or "method" not in asked:
        continue
    method, number = asked["method"], asked["id"]
    if method == "initialize":
        version = "1999-01-01" if mode == "version" else "2025-06-18"
        say(id=number, result={"protocolVersion": version, "capabilities": {"tools": {}},
                               "serverInfo": {"name": "s", "version": "1"}})
    elif method == "tools/list":
        say(id=number, result={"tools": [{"name": "t", "inputSchema": {"type": "object"}}]})
    elif method == "tools/call":
        if mode == "progress":
            token = asked["params"]["_meta"]["progressToken"]
            told("progress", 6000, progressToken=token, progress=1)
        if mode == "changed":
            told("message", 3000, level="info", data="x")
            told("tools/list_changed", 1)
        if mode == "stdout":
            print("DEBUG working\n" * 20000, flush=True)
        say(id=number, result={"content": [{"type": "text", "text": "hello"}]})
    else:
        say(id=number, error={"code": -32601, "message": "no"})
"""


def flooding(mode: str) -> MCPClient:
    """A client of a server that says too much in one way."""
    return MCPClient(
        StdioServer(sys.executable, ("-I", "-S", "-c", SERVER, mode)), timeout=PATIENCE
    )


def listing(*listed: dict[str, Any], cursor: str | None = None) -> MCPClient:
    """A client of a server with these tools."""
    return MCPClient(scripted({"tools/list": tools(*listed, cursor=cursor)}))


# ---------------------------------------------------------------- too much, too early


def test_the_rate_limit_allows_a_burst_and_recovers() -> None:
    now = [0.0]
    rate_limit = RateLimit(lambda: now[0])
    assert sum(rate_limit.allows() for _ in range(BURST * 2)) == BURST
    now[0] += 0.5
    assert sum(rate_limit.allows() for _ in range(BURST)) == PER_SECOND / 2
    now[0] += 1e6
    assert sum(rate_limit.allows() for _ in range(BURST * 2)) == BURST


def test_of_a_storm_of_steps_the_call_comes_through() -> None:
    steps: list[float] = []

    def step(done: float, total: float | None, message: str | None) -> None:
        steps.append(done)

    with flooding("progress") as client:
        result = client.call_tool("t", {}, on_progress=step)
    assert not result.is_error
    assert BURST <= len(steps) < 6000


def test_a_change_of_the_tools_is_noted_in_a_storm_too() -> None:
    with flooding("changed") as client:
        client.list_tools()
        client.call_tool("t", {})
        assert client.is_list_stale


@pytest.mark.parametrize("mode", ["early", "stderr", "stdout"])
def test_what_is_reported_early_or_next_to_the_messages_keeps_nobody_from_a_server(
    mode: str,
) -> None:
    with flooding(mode) as client:
        (found,) = tools_of(client)
        for _ in range(2):
            assert found(None, {}) == {"text": "hello"}  # type: ignore[arg-type]  # not sent


def test_a_protocol_that_nobody_knows_is_refused() -> None:
    with (
        flooding("version") as client,
        pytest.raises(MCPConnectionError, match="Unsupported protocol version"),
    ):
        client.list_tools()


# ---------------------------------------------------------------- names and descriptions


def test_a_server_can_take_the_place_of_no_built_in_tool() -> None:
    for name, built_in in global_system_tools().items():
        with listing(tool(name)) as client:
            found = tools_of(client)
        try:
            table = merge_tools_for_loop(found)
        except ToolNameConflictError:
            continue  # which names both
        assert table[name] is built_in
        assert found[0].server_tool == name


def test_names_that_look_alike_stay_apart() -> None:
    names = ["read", "Read", "caf\u00e9", "cafe\u0301", "r\u0435ad", "", " ", "a\nb", "a\x1b[2J"]
    with listing(*map(tool, names)) as client:
        found = tools_of(client)
    assert [each.server_tool for each in found] == names
    assert len({each.name for each in found}) == len(names)
    assert all(each.name.isascii() and each.name.isprintable() for each in found)


def test_a_tool_that_no_model_takes_is_left_out_with_a_warning(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rath.mcp.tools, "MAX_SCHEMA_CHARS", 100)
    large = tool("large", inputSchema={"type": "object", "title": "x" * 100})
    with caplog.at_level(logging.WARNING), listing(tool("\x1b" * 2000), large, tool("t")) as client:
        assert [each.name for each in client.list_tools()] == ["t"]
    (record,) = caplog.records
    assert "2 of its tools are left out" in record.getMessage()
    assert record.getMessage().endswith(", large")
    assert "\x1b" not in caplog.text


def test_of_an_endless_description_the_model_sees_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rath.flow.tool.mcp_adapter, "MAX_DESCRIPTION_CHARS", 200)
    with listing(tool("t", description="word " * 1000)) as client:
        (listed,) = client.list_tools()
        (found,) = tools_of(client)
    assert found.description is not None
    assert len(found.description) <= 200
    assert "characters left out" in found.description
    assert found.origin.endswith(tool_digest(listed)[:16])


def test_a_list_that_fills_the_memory_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rath.mcp.client, "MAX_LIST_CHARS", 1000)
    page = tools(tool("t", description="d" * 600), cursor="again")
    client = MCPClient(scripted({"tools/list": page, "tools/list:again": page}), timeout=10)
    with client, pytest.raises(MCPProtocolError, match="has no end: 3 pages"):
        client.list_tools()


def test_what_is_preserved_of_many_tools_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rath.mcp.pins, "MAX_KEPT_OF_SERVER", 200)
    spec = StdioServer("x")
    with listing(*(tool(f"t{n}", description="d" * 100) for n in range(5))) as client:
        listed = client.list_tools()
    pin_tools(spec, listed)
    changed = [each.model_copy(update={"description": "other"}) for each in listed]
    found = pin_tools(spec, changed)
    assert found.changed == ("t0", "t1", "t2", "t3", "t4")
    assert set(found.before) == {"t0"}


def test_a_token_that_a_server_puts_into_its_description_is_hidden() -> None:
    token = "canary-0123456789"
    spec = scripted({"tools/list": tools(tool("t", description=token)), "tools/call": texts(token)})
    spec.env["API_TOKEN"] = token  # type: ignore[index]  # ours alone
    spec.env["ROOT"] = "/srv/data/projects-2026"  # type: ignore[index]  # ours alone
    with MCPClient(spec) as client:
        (found,) = tools_of(client)
        assert found.description == "***"
        assert found(None, {}) == {"text": "***"}  # type: ignore[arg-type]  # not sent
        assert client.without_tokens(["in /srv/data/projects-2026"]) == [
            "in /srv/data/projects-2026"
        ]
