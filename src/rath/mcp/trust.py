"""Which servers of a project's config the user has allowed: `mcp_trust.json` in his own home."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

from rath.config.paths import is_of_some_project, own_config_dir
from rath.config.schema import MCPServerConfig
from rath.config.store import ConfigStore
from rath.errors import UntrustedServer
from rath.mcp.records import change_file, read_file

__all__ = [
    "TRUST_FILENAME",
    "check_trusted",
    "comes_from_elsewhere",
    "is_trusted",
    "project_of",
    "revoke_trust",
    "trust_server",
]

TRUST_FILENAME = "mcp_trust.json"


def comes_from_elsewhere(store: ConfigStore) -> bool:
    """Tell whether a config is a project's, in whatever directory, and not the user's own."""
    return is_of_some_project(store.path.parent)


def project_of(store: ConfigStore) -> str:
    """Return the directory by which a project is known, that of its config."""
    return os.path.realpath(store.path.parent)


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
    entry = store.get_mcp_server(name)
    if not comes_from_elsewhere(store):
        return True
    said: object = read_file(_path())
    for key in ("trusted", project_of(store), name, "digest"):
        # The file is the user's own, and may have been edited into any shape.
        said = cast("dict[str, object]", said).get(key) if isinstance(said, dict) else None
    return said == _digest(entry)


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
    digest = _digest(store.get_mcp_server(name))
    if not comes_from_elsewhere(store):
        return
    said = {"digest": digest, "at": datetime.now(UTC).isoformat(timespec="seconds")}

    def add(payload: dict[str, Any]) -> None:
        payload.setdefault("trusted", {}).setdefault(project_of(store), {})[name] = said

    change_file(_path(), add)


def revoke_trust(name: str, store: ConfigStore) -> bool:
    """Trust a server of a project's config no longer, and tell whether it was trusted.

    Args:
        name: Name of the server.
        store: The config that it stands in.

    Raises:
        ConfigError: The file cannot be read or changed.
    """
    found: list[object] = []

    def take_away(payload: dict[str, Any]) -> None:
        projects = payload.get("trusted", {})
        servers = projects.get(project_of(store), {})
        found.append(servers.pop(name, None))
        if not servers:
            projects.pop(project_of(store), None)

    change_file(_path(), take_away)
    return found != [None]


def _path() -> Path:
    return own_config_dir() / TRUST_FILENAME


def _digest(entry: MCPServerConfig) -> str:
    content = json.dumps(entry.model_dump(mode="json"), sort_keys=True)
    return sha256(content.encode(errors="replace")).hexdigest()
