"""Which key, endpoint and model a client uses, and where each of them came from."""

from __future__ import annotations

import hmac
import os
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Literal

from rath import config
from rath._core.options import Sourced, first_set
from rath.config.env import resolve_with_origin
from rath.config.paths import resolve_config_dir, resolve_config_path
from rath.config.secrets import ensure_config_dir_gitignore
from rath.errors import ConfigError, ManifestVersionError
from rath.llm.provider import ConfigEntry, Provider

__all__ = [
    "Account",
    "Variables",
    "credential_digest",
    "kept_salt",
    "resolve_account",
    "resolve_credential",
]

_Name = Literal["model", "base_url", "api_key"]

SALT_FILENAME = "credential.salt"
_SALT_BYTES = 32


@dataclass(frozen=True, slots=True)
class Variables:
    """Names of the environment variables that a provider kind reads, first one first."""

    api_key: Callable[[str], Sequence[str]]
    """Gives the names for an endpoint."""

    base_url: Sequence[str]
    model: Sequence[str]


@dataclass(frozen=True, slots=True)
class Account:
    """What a client calls with."""

    api_key: Sourced[str] = field(repr=False)
    base_url: Sourced[str]
    model: Sourced[str] | None
    from_project: bool
    """Whether the endpoint was named by the project's own config."""

    @property
    def origins(self) -> tuple[tuple[str, str], ...]:
        """Where model, base_url and api_key came from."""
        model = (("model", self.model.origin),) if self.model else ()
        rest = (("base_url", self.base_url.origin), ("api_key", self.api_key.origin))
        return (*model, *rest)


def resolve_credential(*candidates: str | None) -> str:
    """Return the first candidate that is not blank, stripped, or an empty text."""
    found = first_set(*(Sourced(candidate, "call") for candidate in candidates))
    return found.value if found else ""


def resolve_account(
    provider: Provider, *, kind: str, variables: Variables, default_base_url: str
) -> Account:
    """Return what to call with: the provider's own values, then the environment, then the config.

    A key is bound to the endpoint it belongs to: when the project's own config names the
    endpoint, only a key from the call or from that same config goes there.

    Args:
        provider: What was asked for.
        kind: Entries of the config of this kind are looked at.
        variables: Environment variables of this kind.
        default_base_url: Endpoint when nobody names one.

    Raises:
        ValueError: There is no key, or none that may be sent to this endpoint.
    """
    entry = _configured(kind)
    base_url = first_set(
        _own(provider, "base_url", provider.base_url),
        *(resolve_with_origin(name) for name in variables.base_url),
        _of(entry, "base_url"),
    ) or Sourced(default_base_url, "default")
    endpoint_from = _project_entry(base_url, provider.config_entry, entry)
    model = first_set(
        _own(provider, "model", provider.model),
        *(resolve_with_origin(name) for name in variables.model),
        _of(entry, "model"),
    )
    names = variables.api_key(base_url.value)
    key = _key(provider, entry, names, endpoint_from)
    if key is None:
        raise ValueError(_no_key(kind, names, base_url, endpoint_from))
    return Account(key, base_url, model, from_project=endpoint_from is not None)


def credential_digest(key: Sourced[str]) -> str:
    """Return the origin of a key and a digest of it that only this home can compare.

    Reads or creates the salt of the home directory, so it blocks. Without a home that can be
    written the salt lasts as long as the process, and the text says so.
    """
    salt, lasting = _salt(_home())
    digest = hmac.new(salt, key.value.encode(errors="replace"), "sha256").hexdigest()[:16]
    return f"{key.origin} {digest}" + ("" if lasting else " process")


def _own(provider: Provider, name: _Name, value: str | None) -> Sourced[str | None]:
    """Return a value of the provider, which may have got it from a config."""
    known = _of(provider.config_entry, name)
    return known if value is not None and known.value == value else Sourced(value, "call")


def _of(entry: ConfigEntry | None, name: _Name) -> Sourced[str | None]:
    """Return what a config entry says, if there is one."""
    if entry is None:
        return Sourced(None, "default")
    if name == "api_key":
        return Sourced(entry.api_key, entry.key_origin)
    return Sourced(entry.model if name == "model" else entry.base_url, entry.origin)


def _configured(kind: str) -> ConfigEntry | None:
    """Return the config's entry for a kind; a config that cannot be used counts as none."""
    try:
        if not resolve_config_path().is_file():
            return None
        store = config.ConfigStore.load()
    except (ConfigError, ManifestVersionError, OSError):
        return None
    entry = store.find_provider_by_kind(kind)
    return None if entry is None else ConfigEntry.of(store, entry)


def _project_entry(base_url: Sourced[str], *entries: ConfigEntry | None) -> ConfigEntry | None:
    """Return the project's config entry that named the endpoint, if one did."""
    for entry in entries:
        if entry is not None and entry.from_project and entry.origin == base_url.origin:
            return entry
    return None


def _key(
    provider: Provider,
    entry: ConfigEntry | None,
    names: Sequence[str],
    endpoint_from: ConfigEntry | None,
) -> Sourced[str] | None:
    own = _own(provider, "api_key", provider.api_key)
    configured = _of(entry, "api_key")
    if endpoint_from is None:
        return first_set(own, *(resolve_with_origin(name) for name in names), configured)
    is_same_project = entry is not None and entry.origin == endpoint_from.origin
    beside = _of(endpoint_from, "api_key")
    return first_set(own, beside, configured if is_same_project else beside)


def _no_key(
    kind: str,
    names: Sequence[str],
    base_url: Sourced[str],
    endpoint_from: ConfigEntry | None,
) -> str:
    if endpoint_from is not None:
        return (
            f"No API key found that may go to {base_url.value!r}: the project's own "
            f"{base_url.origin} names this endpoint, and keys of the environment or of your own "
            "config are never sent there. Pass Provider(api_key=...), or store a key in that "
            "project's credentials"
        )
    return (
        f"No API key found for provider kind {kind!r}. Set {names[0]}, pass "
        f"Provider(api_key=...), or store a key with {str(_config_path())!r}. A model that needs "
        'no key runs inside the process: Provider(provider_kind="local")'
    )


def _config_path() -> Path | str:
    try:
        return resolve_config_path()
    except OSError:
        return "config.json"


def _home() -> str | None:
    try:
        return str(resolve_config_dir())
    except OSError:
        return None


@lru_cache(maxsize=8)
def _salt(home: str | None) -> tuple[bytes, bool]:
    """Return the salt of a home, and whether it will be the same next time."""
    salt = b"" if home is None else kept_salt(Path(home) / SALT_FILENAME)
    return (salt, True) if len(salt) == _SALT_BYTES else (secrets.token_bytes(_SALT_BYTES), False)


def kept_salt(path: Path) -> bytes:
    """Return the salt in a file, made if it is missing; empty where that cannot be done."""
    try:
        if not path.exists():
            _create_salt(path)
        return path.read_bytes()
    except OSError:
        return b""


def _create_salt(path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    ensure_config_dir_gitignore(path.parent)
    new = path.with_name(f".{SALT_FILENAME}.{secrets.token_hex(8)}")
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600)
    try:
        with os.fdopen(fd, "wb") as handle:
            handle.write(secrets.token_bytes(_SALT_BYTES))
        # A link is made whole or not at all, and never replaces the salt of another process.
        os.link(new, path)
    except FileExistsError:
        pass
    finally:
        new.unlink()
