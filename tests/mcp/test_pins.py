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

import rath.mcp.pins
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


def test_a_new_tool_is_pinned_and_one_that_went_is_reported() -> None:
    pin_tools(SERVER, [tool("a")])
    assert pin_tools(SERVER, [tool("b")]) == PinDifferences(added=("b",), removed=("a",))
    assert pin_differences(SERVER, [tool("b", "other")]).changed == ("b",)


def test_looking_changes_nothing() -> None:
    assert pin_differences(SERVER, [tool("a")]).is_new
    assert not pins().exists()


def test_servers_are_reported_apart_by_command_and_by_address() -> None:
    pin_tools(SERVER, [tool("a")])
    for other in (StdioServer("npx", ("other",)), HttpServer("https://h/mcp")):
        assert pin_differences(other, [tool("a")]).is_new


@pytest.mark.parametrize(
    "other",
    [
        StdioServer("npx", ("server", "--token", "other")),
        StdioServer("npx", ("server", "--token canary")),
        StdioServer("npx", ("server", "--token", "canary"), {"NODE_OPTIONS": "--require ./x"}),
        StdioServer("npx", ("server", "--token", "canary"), cwd="/"),
    ],
    ids=["other argument", "other words", "environment", "directory"],
)
def test_what_decides_which_program_runs_tells_servers_apart(other: StdioServer) -> None:
    pin_tools(SERVER, [tool("a")])
    assert pin_differences(other, [tool("a", "other")]).is_new


def test_one_command_in_two_directories_is_two_servers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = StdioServer("python", ("server.py",))
    monkeypatch.chdir(tmp_path)
    pin_tools(here, [tool("a")])
    there = StdioServer("python", ("server.py",), cwd=str(tmp_path))
    assert pin_differences(there, [tool("a")]) == PinDifferences()
    monkeypatch.chdir("/")
    assert pin_differences(here, [tool("a")]).is_new


@pytest.mark.parametrize(
    "url",
    ["https://h/mcp/one?tenant=b", "https://h/mcp/two?tenant=a", "https://me:x@h/mcp/one?tenant=a"],
)
def test_all_of_an_address_tells_servers_apart(url: str) -> None:
    pin_tools(HttpServer("https://h/mcp/one?tenant=a"), [tool("a")])
    assert pin_differences(HttpServer(url), [tool("a")]).is_new


def test_a_new_token_is_not_a_new_server(monkeypatch: pytest.MonkeyPatch) -> None:
    server = HttpServer("https://h/mcp/${THE_TOKEN}", {"X-Key": "${THE_TOKEN}"})
    for token in ("one", "two"):
        monkeypatch.setenv("THE_TOKEN", token)
        pin_tools(server, [tool("a")])
    assert pin_differences(server, [tool("a", "other")]).changed == ("a",)


def test_a_project_has_pins_of_its_own() -> None:
    pin_tools(SERVER, [tool("a")])
    assert pin_differences(SERVER, [tool("a")], project="/p").is_new
    pin_tools(SERVER, [tool("a", "other")], project="/p")
    assert pin_differences(SERVER, [tool("a")], project="/p").changed == ("a",)
    accept_pins(SERVER, [tool("a")], project="/p")
    assert pin_differences(SERVER, [tool("a")], project="/p") == PinDifferences()
    assert pin_differences(SERVER, [tool("a")], project="/q").is_new


def test_a_server_that_lists_others_each_time_fills_no_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rath.mcp.pins, "MAX_TOOLS_OF_SERVER", 5)
    for begin in range(0, 9, 3):
        pin_tools(SERVER, [tool(f"t{begin + n}") for n in range(3)])
    (kept,) = json.loads(pins().read_text())["servers"].values()
    assert sorted(kept["tools"]) == ["t6", "t7", "t8"]


def test_what_a_tool_reported_when_it_was_pinned_is_never_what_it_says_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rath.mcp.pins, "MAX_KEPT_OF_SERVER", 0)
    pin_tools(SERVER, [tool("a")])
    monkeypatch.setattr(rath.mcp.pins, "MAX_KEPT_OF_SERVER", 1000)
    found = pin_tools(SERVER, [tool("a", "other"), tool("b")])
    assert (found.changed, dict(found.before)) == (("a",), {})
    assert pin_differences(SERVER, [tool("a", "third")]).before == {}


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
