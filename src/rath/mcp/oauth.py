"""OAuth 2 client credentials: tokens asked for by the program itself, kept in memory."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlsplit

import httpx2
from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken

from rath.mcp.environment import expanded
from rath.mcp.spec import ClientCredentials

__all__ = ["client_credentials"]


class _Memory:
    """Where a token is kept: with the connection, and nowhere else."""

    def __init__(self, on_token: Callable[[str], None]) -> None:
        self._on_token = on_token
        self._tokens: OAuthToken | None = None
        self._client: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self._tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self._tokens = tokens
        for token in (tokens.access_token, tokens.refresh_token):
            if token is not None:
                self._on_token(token)

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self._client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self._client = client_info


def client_credentials(
    url: str, credentials: ClientCredentials, secret: str, *, on_token: Callable[[str], None]
) -> httpx2.Auth:
    """Return what gets, sends and renews the token of a server.

    Args:
        url: The server's address.
        credentials: Who asks, and the issuer, to which alone the secret goes.
        secret: The client's secret.
        on_token: Is told each token that is got, since no text may hold it.
    """
    return ClientCredentialsOAuthProvider(
        # The issuer is told it as the resource; what the query holds is not meant for that one.
        urlsplit(url)._replace(query="").geturl(),
        _Memory(on_token),
        expanded(credentials.client_id, "auth.client_id"),
        secret,
        credentials.method,
        " ".join(credentials.scopes) or None,
        credentials.issuer,
    )
