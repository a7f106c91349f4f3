"""Tool servers in the config: programs and addresses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from rath.config import ConfigStore
from rath.config.schema import MCPServerConfig
from rath.mcp.configured import configured_server
from rath.mcp.spec import Bearer, ClientCredentials, HttpServer, StdioServer

OAUTH = {"client_id": "me", "secret_env": "SECRET", "issuer": "https://auth"}


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ({}, "needs either command"),
        ({"command": ["x"], "url": "https://h"}, "has both"),
        ({"url": "ftp://h"}, "must begin with http"),
        ({"url": "https://h", "env": {"A": "b"}}, "env goes with command"),
        ({"url": "https://h", "cwd": "/"}, "cwd goes with command"),
        ({"command": ["x"], "headers": {"A": "b"}}, "headers goes with url"),
        ({"command": ["x"], "transport": "sse"}, "transport goes with url"),
        ({"url": "https://h", "transport": "telnet"}, "transport"),
        ({"url": "https://h", "bearer_env": "not a name"}, "bearer_env"),
        ({"url": "https://h", "bearer_env": "A", "oauth": OAUTH}, "at most one of"),
        ({"command": ["x"], "timeout": 0}, "timeout"),
    ],
)
def test_what_is_no_server_is_refused(entry: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        MCPServerConfig.model_validate(entry)


@pytest.mark.parametrize(
    "entry",
    [
        {"command": ["x", "y"], "env": {}},
        {"command": [], "env": {"A": "b"}},
        {"command": ["x"], "env": {}, "of_a_later_version": 1},
        {"command": ["x"], "env": {}, "cwd": "/tmp", "timeout": 5.0, "trust_annotations": False},
        {"url": "https://h", "env": {}, "headers": {"A": "${B}"}, "bearer_env": "T"},
    ],
    ids=["1.3", "1.3-empty", "unknown", "command", "url"],
)
def test_a_server_is_saved_as_it_was_read(tmp_path: Path, entry: dict[str, Any]) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"mcp": {"servers": {"s": entry}}}))
    ConfigStore(path).save()
    assert json.loads(path.read_text())["mcp"]["servers"]["s"] == entry


def spec_of(tmp_path: Path, entry: dict[str, Any]) -> object:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"mcp": {"servers": {"s": entry}}}))
    return configured_server("s", store=ConfigStore(path)).spec


def test_a_command_is_a_child_process(tmp_path: Path) -> None:
    found = spec_of(tmp_path, {"command": ["x", "y"], "env": {"A": "b"}, "cwd": "/"})
    assert found == StdioServer("x", ("y",), {"A": "b"}, "/")


def test_a_url_is_an_address(tmp_path: Path) -> None:
    entry = {"url": "https://h", "headers": {"A": "b"}, "bearer_env": "T", "transport": "http"}
    assert spec_of(tmp_path, entry) == HttpServer("https://h", {"A": "b"}, Bearer("T"), "http")


def test_oauth_names_the_issuer_and_where_the_secret_is(tmp_path: Path) -> None:
    found = spec_of(tmp_path, {"url": "https://h", "oauth": OAUTH})
    assert found == HttpServer("https://h", {}, ClientCredentials("me", "SECRET", "https://auth"))


def test_an_empty_command_is_refused_at_use(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"mcp\.servers\.s\.command .* is empty"):
        spec_of(tmp_path, {"command": []})


def test_the_time_of_a_request_is_taken_from_the_config(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"mcp": {"servers": {"s": {"command": ["x"], "timeout": 7}}}}))
    assert configured_server("s", store=ConfigStore(path)).client().timeout == 7
