"""A server at an address that refuses the credential: named as such, and not asked again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from rath.backend.results import ToolExecutionFailure
from rath.errors import MCPAuthenticationError
from rath.flow.tool.mcp_adapter import MCPToolCall, tools_of
from rath.mcp import Bearer, HttpServer, MCPClient
from rath.testing import tool_call
from tests.support.mcp_http import HttpCall, HttpReply, ToolServer
from tests.support.sessions import run

TOKEN = "canary-0123456789"


class Guarded(ToolServer):
    """Takes the token in `good`, and answers `status` to any other."""

    def __init__(self) -> None:
        super().__init__()
        self.good = TOKEN
        self.status = 401
        self.body: dict[str, Any] = {}
        self.forbidden: set[str] = set()
        self.results["tools/list"] = {"tools": [{"name": "t", "inputSchema": {"type": "object"}}]}

    @property
    def spec(self) -> HttpServer:
        return HttpServer(f"{self.origin}/mcp", auth=Bearer(env="THE_TOKEN"))

    def reply(self, call: HttpCall) -> HttpReply:
        is_known = call.headers.get("Authorization") == f"Bearer {self.good}"
        if call.verb == "POST" and (not is_known or call.method in self.forbidden):
            return HttpReply(self.body, self.status)
        return super().reply(call)


@pytest.fixture
def guarded(monkeypatch: pytest.MonkeyPatch) -> Iterator[Guarded]:
    monkeypatch.setenv("THE_TOKEN", TOKEN)
    with Guarded() as server:
        yield server


def called(found: MCPToolCall) -> Any:
    """What the model reads of a call."""
    return found(None, {})  # type: ignore[arg-type]  # the session is not sent


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize(
    "body",
    [{}, {"jsonrpc": "2.0", "id": None, "error": {"code": -32001, "message": f"not {TOKEN}"}}],
    ids=["nothing", "an error of the protocol"],
)
def test_a_refused_connect_says_so_and_is_not_repeated(
    guarded: Guarded, status: int, body: dict[str, Any]
) -> None:
    guarded.good, guarded.status, guarded.body = "another", status, body
    with MCPClient(guarded.spec) as client, pytest.raises(MCPAuthenticationError) as caught:
        client.list_tools()
    assert caught.value.status == status
    assert caught.value.server == client.name
    assert "the credential was refused" in str(caught.value)
    assert TOKEN not in str(caught.value)
    assert guarded.methods == ["server/discover", "initialize"]  # the ways of two protocols


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize(
    "body",
    [{}, {"jsonrpc": "2.0", "id": None, "error": {"code": -32001, "message": f"not {TOKEN}"}}],
    ids=["nothing", "an error of the protocol"],
)
def test_a_token_that_expires_is_a_failure_of_its_own(
    guarded: Guarded, status: int, body: dict[str, Any]
) -> None:
    with MCPClient(guarded.spec) as client:
        (found,) = tools_of(client)
        assert called(found) == {"text": "hello"}
        guarded.good, guarded.status, guarded.body = "another", status, body
        guarded.calls.clear()
        failure = called(found)
        assert guarded.methods == ["tools/call"]
    assert isinstance(failure, ToolExecutionFailure)
    assert failure.kind == "mcp_unauthorized"
    assert client.name in failure.message
    assert TOKEN not in failure.message


@pytest.mark.parametrize("status", [401, 403])
def test_a_token_that_expires_is_one_by_sse_too(guarded: Guarded, status: int) -> None:
    url = guarded.spec.url.replace("/mcp", "/sse")
    with MCPClient(HttpServer(url, auth=guarded.spec.auth, transport="sse")) as client:
        (found,) = tools_of(client)
        assert called(found) == {"text": "hello"}
        guarded.good, guarded.status = "another", status
        guarded.calls.clear()
        assert called(found).kind == "mcp_unauthorized"
        assert guarded.methods == ["tools/call"]


def test_a_new_token_is_taken_at_the_next_call(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    with MCPClient(guarded.spec) as client:
        (found,) = tools_of(client)
        guarded.good = "another-0123456789"
        assert called(found).kind == "mcp_unauthorized"
        monkeypatch.setenv("THE_TOKEN", guarded.good)
        assert called(found) == {"text": "hello"}


def test_what_one_call_may_not_do_leaves_the_connection_alone(guarded: Guarded) -> None:
    with MCPClient(guarded.spec) as client:
        (found,) = tools_of(client)
        guarded.status, guarded.forbidden = 403, {"tools/call"}
        assert called(found).kind == "mcp_unauthorized"
        assert client.is_connected
        guarded.forbidden = set()
        assert called(found) == {"text": "hello"}
    assert guarded.methods.count("initialize") == 1


def test_a_run_goes_on_and_the_model_reads_why(guarded: Guarded) -> None:
    with MCPClient(guarded.spec) as client:
        (found,) = tools_of(client)
        guarded.good = "another"
        out = run([tool_call("t"), "done"], found)
        assert out.text() == "done"
    said = str([row.payload for row in out.chunk_table.rows])
    assert "mcp_unauthorized" in said
    assert TOKEN not in said
