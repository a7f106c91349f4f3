"""A token in the address of a server: it reaches the server, and nothing else."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rath.config.paths import own_config_dir
from rath.config.redaction import Redactor
from rath.errors import ConfigError, MCPAuthenticationError, MCPConnectionError, MCPServerError
from rath.flow.tool.mcp_adapter import tools_of
from rath.mcp import HttpServer, MCPClient
from rath.mcp.http import HttpAccess
from rath.testing import tool_call
from tests.support.canaries import all_logs
from tests.support.mcp_http import HttpCall, HttpReply, ToolServer
from tests.support.sessions import run

TOKEN = "canary-0123456789"
SHORT = "k7x"
"""A token that could be a word of anything, so that only its place makes it one."""


class Echoing(ToolServer):
    """A tool server below a path with a token, which repeats it wherever it can."""

    def __init__(self) -> None:
        super().__init__()
        self.status = 200

    @property
    def paths(self) -> list[str]:
        return [call.path for call in self.calls]

    def url(self, target: str) -> str:
        return f"{self.origin}{target}"

    def reply(self, call: HttpCall) -> HttpReply:
        if call.verb == "POST" and self.status != 200:
            return HttpReply({}, self.status)
        here = f"see http://{call.headers['Host']}{call.path}"
        schema = {"type": "object", "description": here}
        self.results["initialize"]["serverInfo"]["name"] = here
        self.results["tools/list"] = {
            "tools": [{"name": "t", "description": here, "inputSchema": schema}]
        }
        self.results["tools/call"] = {"content": [{"type": "text", "text": here}]}
        return super().reply(call)


@pytest.fixture
def echoing() -> Iterator[Echoing]:
    with Echoing() as server:
        yield server


def on_disk(*directories: Path) -> str:
    """Everything that stands in files there."""
    files = (path for each in directories for path in each.rglob("*") if path.is_file())
    return "\n".join(path.read_text("utf-8", "replace") for path in files)


@pytest.mark.parametrize(
    "target", [f"/mcp/{TOKEN}/sse", f"/mcp?api_key={TOKEN}"], ids=["path", "query"]
)
def test_a_token_reaches_no_row_record_file_or_log(echoing: Echoing, target: str) -> None:
    with all_logs() as logged, MCPClient(HttpServer(echoing.url(target), transport="http")) as it:
        (found,) = tools_of(it)
        out = run([tool_call("t"), "done"], found)
        out.save()
    assert echoing.paths
    assert set(echoing.paths) == {target}
    seen = [repr(it), found.origin, str(found.description), str(found.parameters)]
    seen += [str([row.payload for row in out.chunk_table.rows]), str(list(out.record))]
    seen += [on_disk(own_config_dir()), logged.getvalue()]
    assert [text for text in seen if TOKEN in text] == []
    kept = {path.name for path in own_config_dir().rglob("*")}
    assert kept >= {"mcp_pins.json", f"{out.id}.jsonl"}


@pytest.mark.parametrize("status", [401, 404, 500, 503])
@pytest.mark.parametrize("transport", ["http", "sse", "auto"])
@pytest.mark.parametrize("secret", [TOKEN, SHORT])
def test_a_token_reaches_no_error(
    echoing: Echoing, status: int, transport: Any, secret: str
) -> None:
    echoing.status = status
    server = HttpServer(echoing.url(f"/mcp/{secret}/sse?api_key={secret}"), transport=transport)
    with (
        all_logs() as logged,
        MCPClient(server) as client,
        pytest.raises(MCPServerError) as caught,
    ):
        client.list_tools()
    shown = "".join(traceback.format_exception(caught.value))
    assert secret not in shown.replace(str(echoing.server_port), "") + caught.value.server
    assert f"{secret}/sse" not in logged.getvalue()


def test_a_token_reaches_no_error_of_a_host_that_is_not_there() -> None:
    client = MCPClient(f"http://127.0.0.1:9/mcp/{TOKEN}?key={TOKEN}")
    with client, pytest.raises(MCPConnectionError) as caught:
        client.list_tools()
    assert TOKEN not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    "url",
    [f"http://me:{TOKEN}/x@h/mcp", f"http://[{TOKEN}/mcp", f"http://h:{TOKEN}/mcp",
     f"http://h/{TOKEN}\n/mcp"],
)  # fmt: skip
def test_an_address_that_cannot_be_read_is_refused_without_being_displayed(url: str) -> None:
    with MCPClient(url) as client, pytest.raises(ConfigError) as caught:
        client.list_tools()
    assert TOKEN not in "".join(traceback.format_exception(caught.value)) + repr(client)


def test_a_token_is_taken_from_the_environment_at_each_connect(
    echoing: Echoing, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = MCPClient(HttpServer(echoing.url("/mcp/${THE_TOKEN}/sse?k=${THE_TOKEN}")))
    assert client.name == echoing.url("/mcp/${THE_TOKEN}/sse")
    with client:
        with pytest.raises(ConfigError, match=r"url of an MCP server refers to .* 'THE_TOKEN'"):
            client.list_tools()
        monkeypatch.setenv("THE_TOKEN", TOKEN)
        (found,) = tools_of(client)
    assert set(echoing.paths) == {f"/mcp/{TOKEN}/sse?k={TOKEN}"}
    assert TOKEN not in str(found.description) + found.origin


def test_a_token_of_the_environment_stays_out_of_errors(
    echoing: Echoing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THE_TOKEN", TOKEN)
    echoing.status = 401
    client = MCPClient(HttpServer(echoing.url("/mcp/${THE_TOKEN}/sse")))
    with client, pytest.raises(MCPAuthenticationError, match="the credential was refused") as got:
        client.list_tools()
    assert TOKEN not in "".join(traceback.format_exception(got.value))
    assert "${THE_TOKEN}" in str(got.value)


def test_settings_that_are_no_credentials_are_not_hidden_in_answers() -> None:
    team = "the-red-team-of-2026"
    server = HttpServer("http://h/mcp", {"X-Team": team, "X-Key": TOKEN})
    access = HttpAccess.of(server)
    assert TOKEN in access.tokens
    assert {team, TOKEN} <= set(access.secrets)
    assert team not in access.tokens


def test_a_token_is_hidden_at_any_depth_and_short_ones_are_none() -> None:
    said = {TOKEN: [{"a": f"x{TOKEN}"}, 1, None, "short"]}
    assert Redactor((TOKEN, "short")).value(said) == {"***": [{"a": "x***"}, 1, None, "short"]}


def test_a_header_of_ones_own_goes_before_the_login_of_the_address() -> None:
    access = HttpAccess.of(HttpServer("http://me:word@h/mcp", {"authorization": "Own x"}))
    assert access.headers == {"authorization": "Own x"}
    assert access.url == "http://h/mcp"
