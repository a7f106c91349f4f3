"""Servers of the config, as clients."""

from __future__ import annotations

from rath._core.dataclasses import dataclass
from rath.config.layers import find_mcp_server
from rath.config.schema import MCPServerConfig
from rath.config.store import ConfigStore
from rath.config.trust import belongs_to_project, project_of
from rath.mcp.client import MCPClient
from rath.mcp.spec import (
    Auth,
    Bearer,
    ClientCredentials,
    HttpServer,
    ServerSpec,
    StdioServer,
)
from rath.mcp.trust import check_trusted

__all__ = ["ConfiguredServer", "configured_server"]


@dataclass(frozen=True, slots=True)
class ConfiguredServer:
    """A server of the config, and the file that it stands in."""

    name: str
    entry: MCPServerConfig
    store: ConfigStore

    @property
    def spec(self) -> ServerSpec:
        """Specification of the server.

        Raises:
            ValueError: Its command is empty.
        """
        entry = self.entry
        if entry.url is not None:
            return HttpServer(
                entry.url, dict(entry.headers), _auth(entry), entry.transport or "auto"
            )
        if not entry.command:
            raise ValueError(
                f"mcp.servers.{self.name}.command in {self.store.path} is empty; name a program"
            )
        program, *args = entry.command
        return StdioServer(program, tuple(args), dict(entry.env), entry.cwd)

    @property
    def project(self) -> str | None:
        """Directory of the project's config that names it; None where the user's own does."""
        return project_of(self.store) if belongs_to_project(self.store) else None

    @property
    def believes_annotations(self) -> bool:
        """Whether what the server says of its tools' effects is believed."""
        setting = self.entry.trust_annotations
        return not belongs_to_project(self.store) if setting is None else setting

    def client(self) -> MCPClient:
        """Return a client, which connects when it is first used.

        Raises:
            UntrustedServer: A project names the server, and the user has not trusted it.
            ValueError: Its command is empty.
        """
        check_trusted(self.name, self.store)
        timeout = self.entry.timeout
        return MCPClient(self.spec) if timeout is None else MCPClient(self.spec, timeout=timeout)


def configured_server(
    name: str | None = None, *, store: ConfigStore | None = None
) -> ConfiguredServer:
    """Return a server of the config by name, or the only one of `mcp.default_enabled`.

    Args:
        name: Its name.
        store: The one config to look at; by default the project's, then the user's.

    Raises:
        KeyError: No such server, or none or more than one by default.
    """
    found = find_mcp_server(name, None if store is None else (store,))
    return ConfiguredServer(found.name, found.entry, found.store)


def _auth(entry: MCPServerConfig) -> Auth | None:
    if entry.bearer_env is not None:
        return Bearer(env=entry.bearer_env)
    if entry.oauth is not None:
        oauth = entry.oauth
        return ClientCredentials(
            oauth.client_id, oauth.secret_env, oauth.issuer, tuple(oauth.scopes), oauth.method
        )
    return None
