"""Which server is asked, with which key, and where both of them came from."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rath import config
from rath._core.options import Sourced, first_set
from rath.backend.opensandbox.defaults import DOMAIN
from rath.config.env import env_flag, resolve_with_origin
from rath.config.paths import config_layer_paths
from rath.errors import BackendError, ConfigError, ManifestVersionError

if TYPE_CHECKING:
    from rath.config.layers import Found
    from rath.config.schema import BackendProviderConfig

__all__ = [
    "Connection",
    "find_connection",
    "is_installed",
    "resolve_opensandbox_domain",
    "strict_workspace_bind",
]

KIND = "opensandbox"
_PACKAGES = ("opensandbox", "code_interpreter")
_DOMAIN_VARIABLE = "OPEN_SANDBOX_DOMAIN"
_KEY_VARIABLE = "OPEN_SANDBOX_API_KEY"
_SERVER_CONFIG = ".sandbox.toml"
"""In the home: what `opensandbox-server` reads, so a server was set up on this host."""


@dataclass(frozen=True, slots=True)
class Connection:
    """A server and what is needed to be let in."""

    domain: str
    """Host and port, after a scheme or not."""

    api_key: str = field(default="", repr=False)
    origin: str = "call"
    """Who named the server: "call", "env NAME", "config FILE" or "default"."""

    protocol: Literal["http", "https"] = "http"
    use_server_proxy: bool = False
    """Whether the server passes on what is meant for sandboxes, where they cannot be reached."""


def is_installed() -> bool:
    """Tell whether the SDK is there; it is not imported."""
    return all(importlib.util.find_spec(name) is not None for name in _PACKAGES)


def strict_workspace_bind() -> bool:
    """Tell whether a workspace that cannot be mounted is an error, as the environment says."""
    return env_flag("RATH_OPENSANDBOX_STRICT_WORKSPACE_BIND")


def resolve_opensandbox_domain() -> str | None:
    """Return the server that the environment or a config names, None where neither does.

    Raises:
        ConfigError: A config cannot be used.
        UntrustedConfig: A project's config names it, and the user has not trusted that.
    """
    entry = _entry()
    found = _named_domain(entry)
    _check_trusted(found, entry)
    return found.value if found is not None else None


def find_connection(domain: str | None = None, api_key: str | None = None) -> Connection:
    """Return whom to ask: what is given, then the environment, then the configs. Reads files.

    A key is bound to the server it belongs to: where the project's own config names the server,
    only the key of that same entry, or one that is given here, is sent there.

    Raises:
        BackendError: Nobody names a server, and none was set up on this host.
        ConfigError: A config cannot be used.
        UntrustedConfig: A project's config names it, and the user has not trusted that.
    """
    entry = _entry()
    asked = first_set(Sourced(domain, "call")) or _named_domain(entry)
    if asked is None:
        if not has_server_config():
            raise BackendError(MISSING_DOMAIN)
        asked = Sourced(DOMAIN, "default")
    _check_trusted(asked, entry)
    is_of_entry = _is_of(asked, entry)
    is_bound = is_of_entry and entry is not None and entry.store.is_project_local
    candidates: list[Sourced[str | None]] = [Sourced(api_key, "call")]
    if not is_bound:
        candidates.append(resolve_with_origin(_KEY_VARIABLE))
    if entry is not None and (is_of_entry or _speaks_of_any_server(entry)):
        candidates.append(Sourced(entry.entry.api_key, "config"))
    key = first_set(*candidates)
    options = entry.entry.options if entry is not None and is_of_entry else {}
    is_https = asked.value.startswith("https://") or options.get("protocol") == "https"
    return Connection(
        asked.value.rstrip("/"),
        key.value if key is not None else "",
        asked.origin,
        "https" if is_https else "http",
        options.get("use_server_proxy") is True,
    )


MISSING_DOMAIN = (
    "no OpenSandbox server is named; set OPEN_SANDBOX_DOMAIN=host:port, and OPEN_SANDBOX_API_KEY "
    "if it asks for a key, or store both: rath config set backend.providers.NAME.domain host:port"
)


def unavailable_reason() -> str | None:
    """Return why no sandbox can be opened and what to do about it, None if nothing is missing."""
    if not is_installed():
        return 'its SDK is not installed: pip install "openrath[opensandbox]"'
    try:
        domain = resolve_opensandbox_domain()
    except (ConfigError, ManifestVersionError, OSError) as exc:
        return str(exc)
    return None if domain or has_server_config() else MISSING_DOMAIN


def has_server_config() -> bool:
    """Tell whether a server was set up on this host, as its config file in the home shows."""
    try:
        return (Path.home() / _SERVER_CONFIG).is_file()
    except (OSError, RuntimeError):
        return False


def _named_domain(entry: Found[BackendProviderConfig] | None) -> Sourced[str] | None:
    of_variable = resolve_with_origin(_DOMAIN_VARIABLE)
    if entry is None:
        return first_set(of_variable)
    origin = entry.store.origin_of(entry.entry, "domain")
    return first_set(of_variable, Sourced(entry.entry.domain, origin))


def _is_of(asked: Sourced[str], entry: Found[BackendProviderConfig] | None) -> bool:
    return entry is not None and asked.origin == entry.store.origin_of(entry.entry, "domain")


def _check_trusted(asked: Sourced[str] | None, entry: Found[BackendProviderConfig] | None) -> None:
    if asked is not None and entry is not None and _is_of(asked, entry):
        config.check_trusted(entry.store, "backend", "providers", entry.name)


def _speaks_of_any_server(entry: Found[BackendProviderConfig]) -> bool:
    return not entry.store.is_project_local and not (entry.entry.domain or "").strip()


def _entry() -> Found[BackendProviderConfig] | None:
    """Return the default entry of the configs if it is of this kind, else the first that is."""
    if not any(path.is_file() for path in config_layer_paths()):
        # The schema takes longer to import than all else here.
        return None
    try:
        found = config.find_backend_provider()
    except KeyError:
        found = None
    if found is not None and found.entry.backend_kind == KIND:
        return found
    for store in config.config_layers():
        for name, entry in store.config.backend.providers.items():
            if entry.backend_kind == KIND:
                return config.Found(store, name, entry)
    return None
