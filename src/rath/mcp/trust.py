"""Which servers of a project's config the user has allowed."""

from __future__ import annotations

from rath.config.keys import format_key
from rath.config.store import ConfigStore
from rath.config.trust import (
    TRUST_FILENAME,
    GuardedEntry,
    guarded_entry,
    project_of,
    trust_entries,
)
from rath.config.trust import revoke_trust as revoke_keys
from rath.errors import UntrustedServer

__all__ = ["TRUST_FILENAME", "check_trusted", "is_trusted", "revoke_trust", "trust_server"]


def is_trusted(name: str, store: ConfigStore) -> bool:
    """Tell whether a server may be started or spoken to.

    One of the user's own config always may. One of a project may if the user has trusted exactly
    this entry of this project; a changed entry asks anew.

    Args:
        name: Name of the server.
        store: The config that it stands in.

    Raises:
        KeyError: There is no such server.
        ConfigError: The file cannot be read.
    """
    entry = _guarded(name, store)
    return entry is None or entry.state() == "trusted"


def check_trusted(name: str, store: ConfigStore) -> None:
    """Refuse a server that the user has not trusted.

    Raises:
        UntrustedServer: It stands in a project's config, and `is_trusted` says no.
        KeyError: There is no such server.
        ConfigError: The file cannot be read.
    """
    if not is_trusted(name, store):
        raise UntrustedServer(
            f"MCP server {name!r} comes from the project's config {store.path} and was not trusted "
            "by you, or was changed since; nothing was started. Look at the entry, and if you want "
            f"it run: rath mcp trust {name}",
            server=name,
            file=str(store.path),
            key=format_key(("mcp", "servers", name)),
        )


def trust_server(name: str, store: ConfigStore) -> None:
    """Allow a server of a project's config, as the entry is now.

    Args:
        name: Name of the server.
        store: The config that it stands in; the user's own needs no word, and gets none.

    Raises:
        KeyError: There is no such server.
        ConfigError: The file cannot be read or changed.
    """
    entry = _guarded(name, store)
    if entry is not None:
        trust_entries([entry])


def revoke_trust(name: str, store: ConfigStore) -> bool:
    """Trust a server of a project's config no longer, and tell whether it was trusted.

    Args:
        name: Name of the server.
        store: The config that it stands in.

    Raises:
        ConfigError: The file cannot be read or changed.
    """
    return bool(revoke_keys(project_of(store), {format_key(("mcp", "servers", name))}))


def _guarded(name: str, store: ConfigStore) -> GuardedEntry | None:
    store.get_mcp_server(name)
    return guarded_entry(store, "mcp", "servers", name)
