"""OAuth 2 client credentials: tokens asked for by the program itself, kept in memory."""

from __future__ import annotations

import httpx2
from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken

from rath.mcp.environment import expanded
from rath.mcp.spec import ClientCredentials

__all__ = ["client_credentials"]


class _Memory:
    """Where a token is kept: with the connection, and nowhere else."""

    def __init__(self) -> None:
        self._tokens: OAuthToken | None = None
        self._client: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self._tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self._tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self._client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self._client = client_info


def client_credentials(url: str, credentials: ClientCredentials, secret: str) -> httpx2.Auth:
    """Return what gets, sends and renews the token of a server.

    Args:
        url: The server's address.
        credentials: Who asks, and the issuer, to which alone the secret goes.
        secret: The client's secret.
    """
    return ClientCredentialsOAuthProvider(
        url,
        _Memory(),
        expanded(credentials.client_id, "auth.client_id"),
        secret,
        credentials.method,
        " ".join(credentials.scopes) or None,
        credentials.issuer,
    )
