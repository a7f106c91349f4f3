"""OAuth client credentials: a token is asked for and renewed; the secret stays with its issuer."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs

import pytest

from rath.errors import MCPAuthenticationError
from rath.mcp import ClientCredentials, HttpServer, MCPClient
from tests.support.mcp_http import HttpCall, HttpReply, ToolServer

SECRET = "canary-0123456789"


class Guarded(ToolServer):
    """A tool server and its authorization server in one; each token is good for a few requests."""

    def __init__(self) -> None:
        super().__init__()
        self.n_tokens = self.n_left = 0
        self.n_uses = 4
        self.asked: list[dict[str, Any]] = []

    @property
    def token(self) -> str:
        return f"long-token-{self.n_tokens}-0123456789"

    def reply(self, call: HttpCall) -> HttpReply:
        if "oauth-protected-resource" in call.path:
            resource = f"{self.origin}/mcp"
            return HttpReply({"resource": resource, "authorization_servers": [self.origin]})
        if "oauth-authorization-server" in call.path:
            paths = {"authorization_endpoint": "authorize", "token_endpoint": "token"}
            named = {name: f"{self.origin}/{path}" for name, path in paths.items()}
            return HttpReply({"issuer": self.origin, **named, "response_types_supported": ["code"]})
        authorization = call.headers.get("Authorization")
        if call.path == "/token":
            self.asked.append({"auth": authorization, **parse_qs(call.content.decode())})
            self.n_tokens += 1
            self.n_left = self.n_uses
            return HttpReply({"access_token": self.token, "token_type": "Bearer"})
        if call.verb == "POST":
            if authorization != f"Bearer {self.token}" or self.n_left == 0:
                return HttpReply({}, 401)
            self.n_left -= 1
        return super().reply(call)


@pytest.fixture
def guarded(monkeypatch: pytest.MonkeyPatch) -> Iterator[Guarded]:
    monkeypatch.setenv("THE_SECRET", SECRET)
    with Guarded() as server:
        yield server


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


def test_what_the_query_holds_is_not_reported_to_the_issuer(guarded: Guarded) -> None:
    auth = ClientCredentials("me", "THE_SECRET", guarded.origin)
    url = f"http://user:{SECRET}@127.0.0.1:{guarded.server_port}/mcp?key={SECRET}"
    with MCPClient(HttpServer(url, auth=auth, transport="http")) as client:
        assert client.list_tools() == []
    (asked,) = guarded.asked
    assert asked["resource"] == [f"{guarded.origin}/mcp"]


def test_a_token_that_was_fetched_is_redacted_in_texts(guarded: Guarded) -> None:
    with client_of(guarded) as client:
        client.list_tools()
        assert client.without_tokens({"said": "got long-token-1-0123456789"}) == {"said": "got ***"}
