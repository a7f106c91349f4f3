"""What goes wrong with a server, as errors that say what to do and no secret."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from rath.errors import (
    ConfigError,
    MCPAuthenticationError,
    MCPConnectionError,
    MCPProtocolError,
    MCPRequestError,
    MCPServerError,
    MCPTimeout,
)
from rath.flow.tool.mcp_adapter import tools_of
from rath.mcp import Bearer, HttpServer, MCPClient, StdioServer
from tests.support.mcp_own import scripted, texts, tool, tools
from tests.support.waiting import at_a_deadline
from tests.support.web_answers import answering

CANARY = "canary-0123456789"


def failure(client: MCPClient) -> MCPServerError:
    """What listing the tools raises."""
    with client, pytest.raises(MCPServerError) as caught:
        client.list_tools()
    return caught.value


# ---------------------------------------------------------------- child processes


PAGE = tools(tool("a"), cursor="again")
PRINTING = "print('Hello, I am no server.')"
TELLING = "import os, sys; print('key', os.environ['KEY'], file=sys.stderr)"
STDERR = "one\ntwo\n\x1b[31mno database\x1b[0m\n"


@pytest.mark.parametrize(
    ("server", "kind", "words"),
    [
        ("nowhere/npx", MCPConnectionError, ["no program 'nowhere/npx'; install Node.js"]),
        (
            StdioServer(sys.executable, cwd="/nowhere/at/all"),
            MCPConnectionError,
            ["directory '/nowhere/at/all' is not there"],
        ),
        (
            scripted({"stderr": STDERR, "server/discover": "exit", "status": 4}),
            MCPConnectionError,
            ["exit status 4", "one | two | no database"],
        ),
        (
            StdioServer(sys.executable, ("-c", PRINTING)),
            MCPConnectionError,
            ["Hello, I am no server."],
        ),
        (
            StdioServer(sys.executable, ("-c", TELLING), {"KEY": CANARY}),
            MCPConnectionError,
            ["key ***"],
        ),
        (
            scripted({"tools/list": {"error": {"code": -32602, "message": "bad"}}}),
            MCPRequestError,
            ["refused its tools: bad (code -32602)"],
        ),
        (
            scripted({"tools/list": {"result": {"tools": 7}}}),
            MCPProtocolError,
            ["not what the protocol"],
        ),
        (
            scripted({"tools/list": PAGE, "tools/list:again": PAGE}),
            MCPProtocolError,
            ["has no end"],
        ),
        ("http://127.0.0.1:1/mcp", MCPConnectionError,
         ["no connection to MCP server http://127.0.0.1:1/mcp"]),
    ],
    ids=["program", "directory", "handshake", "stdout", "secret", "refused", "protocol", "list",
         "nobody"],
)  # fmt: skip
def test_a_failure_says_what_happened(
    server: str | StdioServer, kind: type[MCPServerError], words: list[str]
) -> None:
    error = failure(MCPClient(server))
    assert type(error) is kind
    assert [word for word in words if word not in str(error)] == []
    assert CANARY not in str(error)
    assert getattr(error, "code", -32602) == -32602


def test_a_file_that_may_not_be_executed_is_named(tmp_path: Path) -> None:
    file = tmp_path / "server"
    file.write_text("x")
    assert "may not be executed" in str(failure(MCPClient(str(file))))


def test_a_variable_that_is_not_set_is_named() -> None:
    client = MCPClient(StdioServer("x", env={"KEY": "${NOT_SET_ANYWHERE}"}))
    with pytest.raises(ConfigError, match=r"env\.KEY .* 'NOT_SET_ANYWHERE', which is not set"):
        client.list_tools()


def test_a_server_that_does_not_answer_the_handshake_is_given_up() -> None:
    server = StdioServer(sys.executable, ("-c", "import sys; sys.stdin.read()"))
    error = failure(MCPClient(server, connect_timeout=0.5))
    assert isinstance(error, MCPTimeout)
    assert "did not answer the handshake within 0.5 s" in str(error)


def test_a_closed_client_says_so() -> None:
    client = MCPClient(scripted({}))
    client.close()
    with pytest.raises(MCPConnectionError, match="is closed; make another one"):
        client.list_tools()


def test_a_lost_connection_is_a_failure_that_the_model_reads() -> None:
    server = scripted({"tools/list": tools(tool("t")), "tools/call": "exit"})
    with MCPClient(server) as client:
        (found,) = tools_of(client)
        assert found(None, {}).kind == "mcp_connection_lost"  # type: ignore[arg-type]  # not sent


def test_a_late_answer_is_a_failure_that_the_model_reads() -> None:
    server = scripted({"tools/list": tools(tool("t")), "tools/call": None})

    def run_until(deadline: float) -> str | None:
        with MCPClient(server, timeout=deadline) as client:
            try:
                (found,) = tools_of(client)
            except MCPTimeout:
                return None
            return str(found(None, {}).kind)  # type: ignore[arg-type]  # not sent

    assert at_a_deadline(run_until, bool) == "mcp_timeout"


# ---------------------------------------------------------------- lists and names


def test_all_pages_of_a_list_are_read() -> None:
    server = scripted(
        {"tools/list": tools(tool("a"), cursor="2"), "tools/list:2": tools(tool("b"))}
    )
    with MCPClient(server) as client:
        assert [tool.name for tool in client.list_tools()] == ["a", "b"]


def test_a_tool_is_called_by_the_name_that_the_server_gave() -> None:
    server = scripted({"tools/list": tools(tool("a.b"), tool("c")), "tools/call": texts("hi")})
    with MCPClient(server) as client:
        dotted, plain = tools_of(client, prefix="x_")
        assert dotted.name.startswith("x_a_b_")
        assert plain.name == "x_c"
        assert dotted.server_tool == "a.b"
        assert dotted(None, {}) == {"text": "hi"}  # type: ignore[arg-type]  # not sent


# ---------------------------------------------------------------- addresses


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("transport", ["auto", "http", "sse"])
def test_a_refused_credential_is_reported_and_not_displayed(status: int, transport: Any) -> None:
    with answering(status) as server:
        said = failure(MCPClient(server.url, auth=CANARY, transport=transport))
    assert isinstance(said, MCPAuthenticationError)
    assert said.status == status
    assert "the credential was refused" in str(said)
    assert CANARY not in repr(said.__cause__) + str(said)
    assert server.seen[0]["authorization"] == f"Bearer {CANARY}"


@pytest.mark.parametrize("transport", ["auto", "http", "sse"])
@pytest.mark.parametrize(
    ("status", "body", "media", "kind", "words"),
    [
        (404, b"", "text/plain", MCPConnectionError, "there is no MCP endpoint"),
        (200, b"<html>hi</html>", "text/html", MCPProtocolError, "a web page (200 OK)"),
        (503, b"", "text/plain", MCPConnectionError, "answered 503 Service Unavailable"),
    ],
    ids=["no endpoint", "web page", "broken"],
)
def test_an_answer_of_an_address_that_is_none(
    transport: Any, status: int, body: bytes, media: str, kind: type[Exception], words: str
) -> None:
    with answering(status, body, Content_Type=media) as server:
        error = failure(MCPClient(server.url, transport=transport))
    assert type(error) is kind
    assert words in str(error)


@pytest.mark.parametrize("transport", ["http", "sse"])
def test_credentials_are_not_sent_after_a_redirect_elsewhere(transport: Any) -> None:
    with (
        answering(200) as elsewhere,
        answering(307, Location=elsewhere.url) as server,
    ):
        client = MCPClient(server.url, auth=CANARY, headers={"X-Key": CANARY}, transport=transport)
        said = failure(client)
    assert "sends elsewhere (307 Temporary Redirect)" in str(said)
    assert elsewhere.seen == []


def test_a_token_is_read_from_the_environment_at_each_connect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with answering(401) as server:
        client = MCPClient(HttpServer(server.url, auth=Bearer(env="THE_TOKEN")))
        with pytest.raises(ConfigError, match="'THE_TOKEN', which is not set"):
            client.list_tools()
        monkeypatch.setenv("THE_TOKEN", CANARY)
        assert isinstance(failure(client), MCPAuthenticationError)
    assert server.seen[0]["authorization"] == f"Bearer {CANARY}"


def test_a_token_with_a_line_break_is_refused_without_being_displayed() -> None:
    with pytest.raises(ConfigError, match="holds a line break") as caught:
        MCPClient("http://127.0.0.1:1/mcp", auth=f"{CANARY}\n").list_tools()
    assert CANARY not in str(caught.value)
