"""A server at an address that does not know the session any more is asked in a new one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rath.errors import MCPConnectionError
from rath.mcp import MCPClient
from tests.support.mcp_http import HttpCall, HttpReply, ToolServer


class Forgetful(ToolServer):
    """Knows the sessions in `known`; a new one is `s1`, `s2`, and so on."""

    def __init__(self) -> None:
        super().__init__()
        self.n_sessions = 0
        self.known: set[str] = set()
        self.remembers = True

    def reply(self, call: HttpCall) -> HttpReply:
        if call.verb != "POST":
            return super().reply(call)
        session = next((call.headers[n] for n in call.headers if n.lower() == "mcp-session-id"), "")
        if call.method == "initialize":
            self.n_sessions += 1
            session = f"s{self.n_sessions}"
            if self.remembers:
                self.known.add(session)
            found = super().reply(call)
            return HttpReply(found.payload, headers={"Mcp-Session-Id": session})
        if session not in self.known:
            return HttpReply(None, 404 if session else 400)
        self.results["tools/call"] = {"content": [{"type": "text", "text": session}]}
        return super().reply(call)


@pytest.fixture
def forgetful() -> Iterator[Forgetful]:
    with Forgetful() as server:
        yield server


def said(client: MCPClient) -> str | None:
    """The session in which a call was made."""
    (content,) = client.call_tool("t", {}).content
    return getattr(content, "text", None)


def test_a_call_is_made_in_a_new_session(forgetful: Forgetful) -> None:
    with MCPClient(f"{forgetful.origin}/mcp") as client:
        assert said(client) == "s1"
        forgetful.known.clear()
        assert said(client) == "s2"


def test_a_server_that_remembers_nothing_is_given_up(forgetful: Forgetful) -> None:
    forgetful.remembers = False
    client = MCPClient(f"{forgetful.origin}/mcp")
    with client, pytest.raises(MCPConnectionError, match="does not know the session any more"):
        said(client)
    assert forgetful.n_sessions == 2
