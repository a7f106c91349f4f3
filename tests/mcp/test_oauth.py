"""OAuth client credentials: a token is asked for and renewed; the secret stays with its issuer."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

import pytest

from rath.errors import MCPAuthenticationError
from rath.mcp import ClientCredentials, HttpServer, MCPClient

SECRET = "canary-0123456789"


class Guarded(ThreadingHTTPServer):
    """A tool server and its authorization server in one; each token is good for two requests."""

    daemon_threads = True

    def __init__(self) -> None:
        self.n_tokens = 0
        self.n_left = 0
        self.n_uses = 4
        self.asked: list[dict[str, Any]] = []
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def token(self) -> str:
        return f"long-token-{self.n_tokens}-0123456789"

    @property
    def good(self) -> str:
        return f"Bearer {self.token}"

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Guarded  # pyright: ignore[reportIncompatibleVariableOverride]  # made by that alone

    def do_GET(self) -> None:
        origin = self.server.origin
        if "oauth-protected-resource" in self.path:
            self.say({"resource": f"{origin}/mcp", "authorization_servers": [origin]})
        elif "oauth-authorization-server" in self.path:
            self.say({"issuer": origin, "authorization_endpoint": f"{origin}/authorize",
                      "token_endpoint": f"{origin}/token",
                      "response_types_supported": ["code"]})  # fmt: skip
        else:
            self.say({}, 405)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path == "/token":
            self.give_token(body)
        elif self.headers.get("Authorization") != self.server.good or self.server.n_left == 0:
            self.say({}, 401)
        else:
            self.server.n_left -= 1
            self.answer(json.loads(body))

    def give_token(self, body: bytes) -> None:
        server = self.server
        server.asked.append({"auth": self.headers.get("Authorization"), **parse_qs(body.decode())})
        server.n_tokens += 1
        server.n_left = server.n_uses
        self.say({"access_token": server.token, "token_type": "Bearer"})

    def answer(self, asked: dict[str, Any]) -> None:
        if "id" not in asked:
            self.say({}, 202)
            return
        results: dict[str, Any] = {
            "initialize": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
                           "serverInfo": {"name": "guarded", "version": "1"}},
            "tools/list": {"tools": []},
        }  # fmt: skip
        reply: dict[str, Any] = {"jsonrpc": "2.0", "id": asked["id"]}
        if asked["method"] in results:
            self.say({**reply, "result": results[asked["method"]]})
        else:
            self.say({**reply, "error": {"code": -32601, "message": "no"}})

    def say(self, payload: dict[str, Any], status: int = 200) -> None:
        body = json.dumps(payload).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        return


@pytest.fixture
def guarded(monkeypatch: pytest.MonkeyPatch) -> Iterator[Guarded]:
    monkeypatch.setenv("THE_SECRET", SECRET)
    with Guarded() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def client_of(guarded: Guarded, issuer: str | None = None) -> MCPClient:
    auth = ClientCredentials("me", "THE_SECRET", issuer or guarded.origin, ("read",))
    return MCPClient(HttpServer(f"{guarded.origin}/mcp", auth=auth, transport="http"))


def test_a_token_is_asked_for_with_the_secret(guarded: Guarded) -> None:
    with client_of(guarded) as client:
        assert client.list_tools() == []
    asked = guarded.asked[0]
    assert asked["grant_type"] == ["client_credentials"]
    assert base64.b64decode(asked["auth"].removeprefix("Basic ")).decode() == f"me:{SECRET}"


def test_a_token_that_is_good_no_longer_is_renewed(guarded: Guarded) -> None:
    with client_of(guarded) as client:
        for _ in range(6):
            client.list_tools()
    assert guarded.n_tokens > 1


def test_the_secret_goes_to_no_other_issuer(guarded: Guarded) -> None:
    client = client_of(guarded, "https://login.example.com")
    with client, pytest.raises(MCPAuthenticationError, match="no OAuth token") as caught:
        client.list_tools()
    assert guarded.asked == []
    assert SECRET not in str(caught.value)


def test_an_expired_token_is_fetched_anew_once(guarded: Guarded) -> None:
    with client_of(guarded) as client:
        client.list_tools()
        n_before, guarded.n_left = guarded.n_tokens, 0
        assert client.list_tools() == []
    assert guarded.n_tokens == n_before + 1


def test_a_server_that_takes_no_token_is_given_up_after_one_more(guarded: Guarded) -> None:
    with client_of(guarded) as client:
        client.list_tools()
        n_before, guarded.n_left, guarded.n_uses = guarded.n_tokens, 0, 0
        with pytest.raises(MCPAuthenticationError, match="the credential was refused") as caught:
            client.list_tools()
        assert guarded.n_tokens == n_before + 1
    assert guarded.token not in str(caught.value)


def test_what_the_query_holds_is_not_told_to_the_issuer(guarded: Guarded) -> None:
    auth = ClientCredentials("me", "THE_SECRET", guarded.origin)
    url = f"http://user:{SECRET}@127.0.0.1:{guarded.server_port}/mcp?key={SECRET}"
    with MCPClient(HttpServer(url, auth=auth, transport="http")) as client:
        assert client.list_tools() == []
    (asked,) = guarded.asked
    assert asked["resource"] == [f"{guarded.origin}/mcp"]


def test_a_token_that_was_fetched_is_kept_out_of_texts(guarded: Guarded) -> None:
    with client_of(guarded) as client:
        client.list_tools()
        assert client.without_tokens({"said": "got long-token-1-0123456789"}) == {"said": "got ***"}
