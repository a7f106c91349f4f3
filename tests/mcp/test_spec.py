"""What names a server, and what is said of it."""

from __future__ import annotations

from typing import Any

import pytest

from rath.mcp import Bearer, HttpServer, MCPClient, ServerSpec, StdioServer
from rath.mcp.spec import server_name, server_spec


@pytest.mark.parametrize(
    ("command", "given", "spec"),
    [
        ("uvx", {"args": ["server"]}, StdioServer("uvx", ("server",))),
        (["uvx", "server"], {"args": ["x"]}, StdioServer("uvx", ("server",))),
        (
            "https://h/mcp",
            {"headers": {"A": "b"}, "auth": "token", "transport": "sse"},
            HttpServer("https://h/mcp", {"A": "b"}, Bearer(token="token"), "sse"),
        ),
        (StdioServer("x"), {}, StdioServer("x")),
    ],
    ids=["text", "list", "address", "spec"],
)
def test_a_command_stands_for_a_server(
    command: Any, given: dict[str, Any], spec: ServerSpec
) -> None:
    assert server_spec(command, **given) == spec


def test_the_command_may_be_given_by_name() -> None:
    assert MCPClient(command=["uvx", "server"]).spec == StdioServer("uvx", ("server",))
    assert MCPClient(command="uvx", args=["server"]).spec == StdioServer("uvx", ("server",))


@pytest.mark.parametrize(
    ("server", "given", "message"),
    [
        ("", {}, "command of an MCP server is empty"),
        ([], {}, "command of an MCP server is empty"),
        ("x", {"headers": {"A": "b"}}, "headers= does not go with a program"),
        ("x", {"auth": "b"}, "auth= does not go with a program"),
        ("http://h", {"args": ["b"]}, "args= does not go with an address"),
        (StdioServer("x"), {"env": {"A": "b"}}, "env= does not go with a server spec"),
    ],
)
def test_what_does_not_go_together_is_refused(
    server: Any, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        server_spec(server, **given)


@pytest.mark.parametrize("server", [7, None, ["x", 7]])
def test_what_is_no_server_is_refused(server: Any) -> None:
    with pytest.raises(TypeError, match="a program, a list of words or an address"):
        server_spec(server)


@pytest.mark.parametrize(
    ("server", "name"),
    [
        (StdioServer("/usr/bin/npx", ("-y", "pkg")), "'npx -y pkg'"),
        (StdioServer("x", ("--token", "canary")), "'x --token ***'"),
        (HttpServer("https://me:canary@h:1/mcp?key=canary#canary"), "https://h:1/mcp"),
    ],
)
def test_a_name_says_no_secret(server: Any, name: str) -> None:
    assert server_name(server) == name


@pytest.mark.parametrize("seconds", [{"timeout": 0}, {"connect_timeout": -1}])
def test_a_deadline_is_above_zero(seconds: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be seconds above 0"):
        MCPClient("x", **seconds)
