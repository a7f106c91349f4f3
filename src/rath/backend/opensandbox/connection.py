"""The server that is asked, with its key and their origin, and the errors of asking it."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rath import config
from rath._core.dataclasses import dataclass
from rath._core.options import Sourced, first_set
from rath._installation import install_advice
from rath.backend.results import ToolExecutionFailure
from rath.config.env import env_flag, resolve_with_origin
from rath.config.paths import config_layer_paths
from rath.errors import BackendError, ConfigError, ManifestVersionError

if TYPE_CHECKING:
    from rath.config.layers import Found
    from rath.config.schema import BackendProviderConfig

KIND = "opensandbox"
ROOT = "/workspace"
"""The workspace inside."""

LIFETIME = timedelta(minutes=10)
"""How long the server lets a sandbox live unless its spec says otherwise."""

DEFAULT_DOMAIN = "localhost:8080"
"""Where a server listens that was set up on this host."""

MISSING_DOMAIN = (
    "no OpenSandbox server is named; set OPEN_SANDBOX_DOMAIN=host:port, and OPEN_SANDBOX_API_KEY "
    "if it asks for a key, or store both: rath config set backend.providers.NAME.domain host:port"
)

_PACKAGES = ("opensandbox", "code_interpreter")
_SERVER_CONFIG = ".sandbox.toml"
"""In the home: the config of `opensandbox-server`, so a server was set up on this host."""


@dataclass(frozen=True, slots=True)
class ServerAccess:
    """A server and the key for it."""

    domain: str
    """Host and port, after a scheme or not."""

    api_key: str = field(default="", repr=False)
    origin: str = "call"
    """Who named the server: "call", "env NAME", "config FILE" or "default"."""

    protocol: Literal["http", "https"] = "http"
    use_server_proxy: bool = False
    """Whether the server passes on what is meant for sandboxes, where they cannot be reached."""


def is_installed() -> bool:
    """Return whether the SDK is there; it is not imported."""
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
    server, _, _ = _find_server(None)
    return None if server is None else server.value


def find_connection(domain: str | None = None, api_key: str | None = None) -> ServerAccess:
    """Return whom to ask: the arguments, then the environment, then the configs. Reads files.

    A key is bound to the server it belongs to: where the project's own config names the server,
    only the key of that same entry, or one that is given here, is sent there.

    Raises:
        BackendError: Nobody names a server, and none was set up on this host.
        ConfigError: A config cannot be used.
        UntrustedConfig: A project's config names it, and the user has not trusted that.
    """
    server, entry, is_of_entry = _find_server(domain)
    if server is None:
        if not _has_server_config():
            raise BackendError(MISSING_DOMAIN)
        server = Sourced(DEFAULT_DOMAIN, "default")
    keys: list[Sourced[str | None]] = [Sourced(api_key, "call")]
    if entry is None or not (is_of_entry and entry.store.is_project_local):
        keys.append(resolve_with_origin("OPEN_SANDBOX_API_KEY"))
    if entry is not None:
        # An entry of the user without a domain is for any server.
        is_general = not entry.store.is_project_local and not (entry.entry.domain or "").strip()
        if is_of_entry or is_general:
            keys.append(Sourced(entry.entry.api_key, "config"))
    key = first_set(*keys)
    options = entry.entry.options if entry is not None and is_of_entry else {}
    is_https = server.value.startswith("https://") or options.get("protocol") == "https"
    return ServerAccess(
        server.value.rstrip("/"),
        key.value if key is not None else "",
        server.origin,
        "https" if is_https else "http",
        options.get("use_server_proxy") is True,
    )


def unavailable_reason() -> str | None:
    """Return why no sandbox can be opened and what to do about it, None if nothing is missing."""
    if not is_installed():
        return f"it needs {install_advice('opensandbox')}"
    try:
        domain = resolve_opensandbox_domain()
    except (ConfigError, ManifestVersionError, OSError) as exc:
        return str(exc)
    return None if domain or _has_server_config() else MISSING_DOMAIN


def _has_server_config() -> bool:
    try:
        return (Path.home() / _SERVER_CONFIG).is_file()
    except (OSError, RuntimeError):
        return False


def _find_server(
    domain: str | None,
) -> tuple[Sourced[str] | None, Found[BackendProviderConfig] | None, bool]:
    """Return the server, the entry of the configs, and whether that names this server."""
    entry, origin = _find_entry(), None
    names: list[Sourced[str | None]] = [Sourced(domain, "call")]
    names.append(resolve_with_origin("OPEN_SANDBOX_DOMAIN"))
    if entry is not None:
        origin = entry.store.origin_of(entry.entry, "domain")
        names.append(Sourced(entry.entry.domain, origin))
    server = first_set(*names)
    is_of_entry = entry is not None and server is not None and server.origin == origin
    if entry is not None and is_of_entry:
        config.check_trusted(entry.store, "backend", "providers", entry.name)
    return server, entry, is_of_entry


def _find_entry() -> Found[BackendProviderConfig] | None:
    """Return the default entry of the configs if it is of this kind, else the first that is."""
    if not any(path.is_file() for path in config_layer_paths()):
        # The schema takes longer to import than all else here.
        return None
    try:
        default = config.find_backend_provider()
    except KeyError:
        default = None
    if default is not None and default.entry.backend_kind == KIND:
        return default
    for store in config.config_layers():
        for name, entry in store.config.backend.providers.items():
            if entry.backend_kind == KIND:
                return config.Found(store, name, entry)
    return None


# ---------------------------------------------------------------- errors

_MOUNT_WORDS = re.compile(r"allowed.{0,40}(prefix|path)|host.?path|bind mount", re.IGNORECASE)


class SandboxGone(Exception):
    """The server has no such sandbox any more."""


class RemoteError(Exception):
    """Base of the errors of the client; its text says what happened."""


class NotReached(RemoteError):
    """The request was not sent, so it did nothing."""


class NotReady(RemoteError):
    """A sandbox, or the interpreters in it, did not begin to answer in time."""


class AnswerLost(RemoteError):
    """The request was sent and no complete answer came: its effect is not known."""


class Broken(RemoteError):
    """The SDK could not make sense of a request or an answer."""


class RequestRefused(RemoteError):
    """The server answered that it cannot or will not do it."""

    def __init__(self, message: str, *, status: int, code: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code

    @property
    def is_missing_file(self) -> bool:
        """Whether a path is not there."""
        text = str(self).lower()
        is_unnamed = self.status == 404 and "no such file" in text
        # What would lie below a file the server calls an error of its own.
        is_below_file = "lstat" in text and "not a directory" in text
        return self.code == "FILE_NOT_FOUND" or is_unnamed or is_below_file

    @property
    def is_missing_sandbox(self) -> bool:
        """Whether the server knows no such sandbox."""
        return self.status == 404 and self.code.endswith("SANDBOX_NOT_FOUND")

    @property
    def is_about_mounts(self) -> bool:
        """Whether a directory of the host may not be mounted."""
        names_mount = _MOUNT_WORDS.search(f"{self.code} {self}") is not None
        return self.status == 422 or (400 <= self.status < 500 and names_mount)

    @property
    def is_busy(self) -> bool:
        """Whether an interpreter did not take the code because it runs other code."""
        return "session is busy" in str(self).lower()


_FAILURES: dict[type[RemoteError], tuple[str, str, str]] = {
    NotReached: (
        "dispatch_error",
        "{operation} was not sent, since the sandbox cannot be reached: {error}",
        "not reached",
    ),
    NotReady: (
        "dispatch_error",
        "{operation} was not sent, since the sandbox is not ready for it: {error}",
        "not ready",
    ),
    AnswerLost: (
        "sandbox_sdk_error",
        "the connection was lost before the sandbox said what became of {operation}: it may have "
        "taken effect or not ({error})",
        "connection lost",
    ),
    RequestRefused: ("dispatch_error", "{error}", "{error.code}"),
    Broken: ("sandbox_sdk_error", "{error}", "Broken"),
}
"""For each error the kind, message and detail of the failure of an operation."""


def failure_of(error: RemoteError, operation: str) -> ToolExecutionFailure:
    """Return the failure of an operation.

    Args:
        error: What went wrong.
        operation: The subject of a sentence: "the command".
    """
    kind, *texts = _FAILURES[type(error)]
    message, detail = (text.format(operation=operation, error=error) for text in texts)
    return ToolExecutionFailure(kind, message, detail)
