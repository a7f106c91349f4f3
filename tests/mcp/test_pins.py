"""What is pinned of a server's tools, and what has changed since."""

from __future__ import annotations

import json
import logging
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from mcp_types import Tool

from rath.config.paths import own_config_dir
from rath.errors import ConfigError
from rath.mcp import HttpServer, StdioServer
from rath.mcp.pins import (
    MAX_SERVERS,
    PINS_FILENAME,
    PinDifferences,
    accept_pins,
    pin_differences,
    pin_tools,
    tool_digest,
)

SERVER = StdioServer("npx", ("server", "--token", "canary"))


def tool(name: str, description: str = "d", **schema: Any) -> Tool:
    return Tool(name=name, description=description, input_schema={"type": "object", **schema})


def pins() -> Path:
    return own_config_dir() / PINS_FILENAME


def test_the_first_use_pins_and_the_next_finds_nothing() -> None:
    assert pin_tools(SERVER, [tool("a")]) == PinDifferences(added=("a",), is_new=True)
    assert pin_tools(SERVER, [tool("a")]) == PinDifferences()


@pytest.mark.parametrize("changed", [tool("a", "other"), tool("a", required=["x"])])
def test_a_changed_tool_is_warned_of_until_it_is_accepted(
    changed: Tool, caplog: pytest.LogCaptureFixture
) -> None:
    pin_tools(SERVER, [tool("a")])
    for _ in range(2):
        caplog.clear()
        assert pin_tools(SERVER, [changed]).changed == ("a",)
        assert "has changed since they were first used: a." in caplog.text
    accept_pins(SERVER, [changed])
    assert pin_tools(SERVER, [changed]) == PinDifferences()


def test_a_new_tool_is_pinned_and_one_that_went_is_told() -> None:
    pin_tools(SERVER, [tool("a")])
    assert pin_tools(SERVER, [tool("b")]) == PinDifferences(added=("b",), removed=("a",))
    assert pin_differences(SERVER, [tool("b", "other")]).changed == ("b",)


def test_looking_changes_nothing() -> None:
    assert pin_differences(SERVER, [tool("a")]).is_new
    assert not pins().exists()


def test_servers_are_told_apart_by_command_and_by_address() -> None:
    pin_tools(SERVER, [tool("a")])
    for other in (StdioServer("npx", ("other",)), HttpServer("https://h/mcp")):
        assert pin_differences(other, [tool("a")]).is_new


def test_the_file_is_private_and_says_no_secret() -> None:
    pin_tools(SERVER, [tool("a")])
    assert stat.S_IMODE(pins().stat().st_mode) == 0o600
    assert "canary" not in pins().read_text()


def test_a_damaged_file_is_warned_of_and_keeps_nobody_from_a_server(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pin_tools(SERVER, [tool("a")])
    pins().write_text("{")
    with caplog.at_level(logging.WARNING):
        pin_tools(SERVER, [tool("a", "other")])
    assert "could not be pinned" in caplog.text
    with pytest.raises(ConfigError, match="remove it to begin anew"):
        accept_pins(SERVER, [tool("a")])


def test_a_file_of_a_newer_version_is_left_alone() -> None:
    pin_tools(SERVER, [tool("a")])
    pins().write_text('{"version": 2}')
    with pytest.raises(ConfigError, match="upgrade openrath"):
        accept_pins(SERVER, [tool("a")])
    assert pins().read_text() == '{"version": 2}'


def test_many_at_once_lose_nothing() -> None:
    servers = [StdioServer(str(n)) for n in range(20)]
    with ThreadPoolExecutor(8) as pool:
        for pinning in [pool.submit(pin_tools, server, [tool("a")]) for server in servers]:
            pinning.result()
    assert all(pin_differences(server, [tool("a")]) == PinDifferences() for server in servers)


def test_what_was_pinned_first_is_forgotten_first() -> None:
    pin_tools(SERVER, [tool("a")])
    payload = json.loads(pins().read_text())
    (identity, entry) = next(iter(payload["servers"].items()))
    payload["servers"] = {str(n): entry for n in range(MAX_SERVERS - 1)} | {identity: entry}
    pins().write_text(json.dumps(payload))
    pin_tools(StdioServer("new"), [tool("a")])
    assert next(iter(json.loads(pins().read_text())["servers"])) == "1"


def test_a_digest_is_of_name_description_and_arguments() -> None:
    digests = {tool_digest(each) for each in (tool("a"), tool("b"), tool("a", "x"), tool("a", x=1))}
    assert len(digests) == 4
    assert tool_digest(tool("a", a=1, b=2)) == tool_digest(tool("a", b=2, a=1))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_home_that_cannot_be_written_keeps_nobody_from_a_server() -> None:
    own_config_dir().mkdir(parents=True)
    own_config_dir().chmod(0o500)
    assert pin_tools(SERVER, [tool("a")]).is_new
