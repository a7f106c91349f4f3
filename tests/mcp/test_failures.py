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


def test_a_missing_program_is_named_with_what_to_install() -> None:
    with pytest.raises(MCPConnectionError, match=r"no program 'nowhere/npx'; install Node\.js"):
        MCPClient("nowhere/npx").list_tools()


def test_a_missing_directory_is_named() -> None:
    server = StdioServer(sys.executable, cwd="/nowhere/at/all")
    with pytest.raises(MCPConnectionError, match="directory '/nowhere/at/all' is not there"):
        MCPClient(server).list_tools()


def test_a_file_that_may_not_be_executed_is_named(tmp_path: Path) -> None:
    file = tmp_path / "server"
    file.write_text("x")
    with pytest.raises(MCPConnectionError, match="may not be executed"):
        MCPClient(str(file)).list_tools()


def test_a_failed_handshake_tells_the_last_lines_of_stderr() -> None:
    stderr = "one\ntwo\n\x1b[31mno database\x1b[0m\n"
    server = scripted({"stderr": stderr, "server/discover": "exit", "status": 4})
    said = str(failure(MCPClient(server)))
    assert "exit status 4" in said
    assert "one | two | no database" in said


def test_what_is_printed_beside_the_messages_is_told() -> None:
    server = StdioServer(sys.executable, ("-c", "print('Hello, I am no server.')"))
    assert "Hello, I am no server." in str(failure(MCPClient(server)))


def test_a_secret_of_the_environment_is_not_told() -> None:
    program = "import os, sys; print('key', os.environ['KEY'], file=sys.stderr)"
    server = StdioServer(sys.executable, ("-c", program), {"KEY": CANARY})
    said = str(failure(MCPClient(server)))
    assert "key ***" in said
    assert CANARY not in said


def test_a_variable_that_is_not_set_is_named() -> None:
    client = MCPClient(StdioServer("x", env={"KEY": "${NOT_SET_ANYWHERE}"}))
    with pytest.raises(ConfigError, match=r"env\.KEY .* 'NOT_SET_ANYWHERE', which is not set"):
        client.list_tools()


def test_a_server_that_does_not_answer_the_handshake_is_given_up() -> None:
    server = StdioServer(sys.executable, ("-c", "import sys; sys.stdin.read()"))
    said = failure(MCPClient(server, connect_timeout=0.5))
    assert isinstance(said, MCPTimeout)
    assert "did not answer the handshake within 0.5 s" in str(said)


def test_a_refused_request_carries_its_code() -> None:
    client = MCPClient(scripted({"tools/list": {"error": {"code": -32602, "message": "bad"}}}))
    said = failure(client)
    assert isinstance(said, MCPRequestError)
    assert said.code == -32602
    assert "refused its tools: bad" in str(said)


def test_an_answer_that_the_protocol_does_not_know_is_told() -> None:
    said = failure(MCPClient(scripted({"tools/list": {"result": {"tools": 7}}})))
    assert isinstance(said, MCPProtocolError)


def test_a_list_without_an_end_is_cut_off() -> None:
    page = tools(tool("a"), cursor="again")
    said = failure(MCPClient(scripted({"tools/list": page, "tools/list:again": page})))
    assert "has no end" in str(said)


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


def test_nobody_at_an_address_is_told() -> None:
    said = failure(MCPClient("http://127.0.0.1:1/mcp"))
    assert type(said) is MCPConnectionError
    assert "no connection to MCP server http://127.0.0.1:1/mcp" in str(said)


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("transport", ["auto", "http", "sse"])
def test_a_refused_credential_is_told_and_not_shown(status: int, transport: Any) -> None:
    with answering(status) as server:
        said = failure(MCPClient(server.url, auth=CANARY, transport=transport))
    assert isinstance(said, MCPAuthenticationError)
    assert said.status == status
    assert "the credential was refused" in str(said)
    assert CANARY not in repr(said.__cause__) + str(said)
    assert server.seen[0]["authorization"] == f"Bearer {CANARY}"


@pytest.mark.parametrize("transport", ["auto", "http", "sse"])
def test_an_address_without_an_endpoint_is_told(transport: Any) -> None:
    with answering(404) as server:
        said = failure(MCPClient(server.url, transport=transport))
    assert "there is no MCP endpoint" in str(said)


@pytest.mark.parametrize("transport", ["auto", "http", "sse"])
def test_a_web_page_is_told(transport: Any) -> None:
    with answering(200, b"<html>hi</html>", Content_Type="text/html") as server:
        said = failure(MCPClient(server.url, transport=transport))
    assert isinstance(said, MCPProtocolError)
    assert "a web page (200 OK)" in str(said)


def test_a_broken_server_is_told_with_its_status() -> None:
    with answering(503) as server:
        assert "answered 503 Service Unavailable" in str(failure(MCPClient(server.url)))


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


def test_a_token_with_a_line_break_is_refused_without_being_shown() -> None:
    with pytest.raises(ConfigError, match="holds a line break") as caught:
        MCPClient("http://127.0.0.1:1/mcp", auth=f"{CANARY}\n").list_tools()
    assert CANARY not in str(caught.value)
