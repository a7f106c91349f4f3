"""Which key, endpoint and model a client uses, and where each of them came from."""

from __future__ import annotations

import hmac
import os
import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rath._core.options import Sourced, first_set
from rath.config.env import resolve_with_origin
from rath.config.paths import resolve_config_dir, resolve_config_path
from rath.config.secrets import ensure_config_dir_gitignore
from rath.llm.call import ProviderOrigin
from rath.llm.config_entries import AccountSource, Purpose, entries_for
from rath.llm.endpoint import public_url
from rath.llm.provider import ConfigEntry
from rath.llm.variables import Variables

if TYPE_CHECKING:
    from rath.config.trust import GuardedEntry

__all__ = [
    "Account",
    "AccountSource",
    "Purpose",
    "Variables",
    "credential_digest",
    "find_account",
    "kept_salt",
    "refuse_unsendable",
    "resolve_account",
    "resolve_credential",
]

_UNSENDABLE = re.compile(r"[^!-~]")

_Name = Literal["model", "base_url", "api_key"]

SALT_FILENAME = "credential.salt"
_SALT_BYTES = 32


@dataclass(frozen=True, slots=True)
class Account:
    """What a client calls with."""

    api_key: Sourced[str] = field(repr=False)
    """An empty text where there is none."""

    base_url: Sourced[str] = field(repr=False)
    """Hidden like the key, since a URL may hold a password."""

    model: Sourced[str] | None
    from_project: bool
    """Whether the endpoint was named by the project's own config."""

    guards: tuple[GuardedEntry, ...] = field(default=(), repr=False)
    """The entries of a project that anything here which acts is taken from."""

    def check_trusted(self) -> None:
        """Refuse an account of which a project's config says more than the user has trusted.

        Raises:
            UntrustedConfig: An entry is not trusted, or was changed since.
        """
        for guard in self.guards:
            guard.check()

    @property
    def origins(self) -> tuple[tuple[str, str], ...]:
        """Where model, base_url and api_key came from."""
        model = (("model", self.model.origin),) if self.model else ()
        rest = (("base_url", self.base_url.origin), ("api_key", self.api_key.origin))
        return (*model, *rest)

    def origins_for(
        self, model: str, *, provider_origin: ProviderOrigin
    ) -> tuple[tuple[str, str], ...]:
        """Return where the values of a call for `model` came from.

        Args:
            model: The model that is asked, which may be another than that of the account.
            provider_origin: Who brought what the provider says itself.
        """
        origins = {"model": "call"} | dict(self.origins)
        if self.model is None or self.model.value != model:
            origins["model"] = "call"
        return tuple(
            (name, provider_origin if origin == "call" else origin)
            for name, origin in origins.items()
        )


def resolve_credential(*candidates: str | None) -> str:
    """Return the first candidate that is not blank, stripped, or an empty text."""
    found = first_set(*(Sourced(candidate, "call") for candidate in candidates))
    return found.value if found else ""


def find_account(
    source: AccountSource,
    *,
    kind: str,
    variables: Variables,
    default_base_url: str,
    purpose: Purpose = "chat",
) -> Account:
    """Return what to call with: the source's own values, then the environment, then the configs.

    A key is bound to the endpoint it belongs to: when the project's own config names the
    endpoint, only a key from the call or from that same config goes there.

    Whoever calls with it must `check_trusted()` first, as `resolve_account` does.

    Args:
        source: What was asked for.
        kind: Entries of the configs of this kind are looked at.
        variables: Environment variables of this kind.
        default_base_url: Endpoint when nobody names one.
        purpose: Which entry is looked at first, unless `source` came from one. "chat": that of
            `llm.default_provider`, else the first of this kind. The others: that of
            `llm.embedding_provider` or `llm.vlm_provider`, of whatever kind; without these that
            of `llm.default_provider`, if it is of this kind.
    """
    entries, _ = entries_for(source, kind, purpose)
    return _account(source, entries, variables, default_base_url)


def resolve_account(
    source: AccountSource,
    *,
    kind: str,
    variables: Variables,
    default_base_url: str,
    purpose: Purpose = "chat",
    missing: str | None = None,
) -> Account:
    """Return what `find_account` finds for the same arguments; it holds a key and is trusted.

    Args:
        source: What was asked for.
        kind: Entries of the configs of this kind are looked at.
        variables: Environment variables of this kind.
        default_base_url: Endpoint when nobody names one.
        purpose: Which entry is looked at first.
        missing: How the error begins when there is no key.

    Raises:
        ValueError: There is no key, or none that may or can be sent to this endpoint.
        UntrustedConfig: A project's config names endpoint or key, and the user has not trusted it.
    """
    entries, problems = entries_for(source, kind, purpose)
    account = _account(source, entries, variables, default_base_url)
    account.check_trusted()
    if account.api_key.value:
        refuse_unsendable(account.api_key)
        return account
    head = missing or "No API key found"
    if account.from_project:
        raise ValueError(_no_key_for_project(head, account))
    head = missing or f"{head} for provider kind {kind!r}"
    advice = [f"Set {variables.api_key(account.base_url.value)[0]}"]
    advice += [f"pass {type(source).__name__}(api_key=...)", f"or store one with {_config_path()}"]
    local = (
        ' A model that needs no key runs inside the process: Provider(provider_kind="local").'
        if purpose == "chat"
        else ""
    )
    broken = "".join(f" {problem}." for problem in problems)
    raise ValueError(f"{head}. {', '.join(advice)}.{local}{broken}")


def refuse_unsendable(key: Sourced[str]) -> None:
    """Refuse a key that no header can carry, which was copied with something that is not its own.

    Raises:
        ValueError: It holds white space, or something else than printable ASCII.
    """
    found = _UNSENDABLE.search(key.value)
    if found is not None:
        raise ValueError(
            f"the API key that came from {key.origin} holds a character that cannot be sent: "
            f"number {found.start() + 1} of {len(key.value)}. Copy the key again, and it alone"
        )


def credential_digest(key: Sourced[str]) -> str:
    """Return the origin of a key and a digest of it that only this home can compare.

    Reads or creates the salt of the home directory, so it blocks. Without a home that can be
    written the salt lasts as long as the process, and the text says so.
    """
    salt, lasting = _salt(_home())
    digest = hmac.new(salt, key.value.encode(errors="replace"), "sha256").hexdigest()[:16]
    return f"{key.origin} {digest}" + ("" if lasting else " process")


def _account(
    source: AccountSource,
    entries: Sequence[ConfigEntry],
    variables: Variables,
    default_base_url: str,
) -> Account:
    base_url = first_set(
        _own(source, "base_url", source.base_url),
        *(resolve_with_origin(name) for name in variables.base_url),
        *(_of(entry, "base_url") for entry in entries),
    ) or Sourced(default_base_url, "default")
    model = first_set(
        _own(source, "model", source.model),
        *(resolve_with_origin(name) for name in variables.model),
        *(_of(entry, "model") for entry in entries),
    )
    own = _own(source, "api_key", source.api_key)
    project = _project_entry(base_url, entries)
    if project is None:
        names = variables.api_key(base_url.value)
        keys = [own, *(resolve_with_origin(name) for name in names)]
        keys += [_of(entry, "api_key") for entry in entries]
    else:
        keys = [own] if own.origin in {"call", project.key_origin, project.origin} else []
        keys += [_of(entry, "api_key") for entry in entries if entry.origin == project.origin]
    key = first_set(*keys) or Sourced("", "default")
    used: dict[_Name, Sourced[str] | None] = {
        "base_url": base_url, "api_key": key, "model": model,
    }  # fmt: skip
    guards = tuple(
        entry.guard
        for entry in entries
        if entry.guard is not None
        and any(
            name in entry.guard.acting and first_set(_of(entry, name)) == found
            for name, found in used.items()
        )
    )
    return Account(key, base_url, model, from_project=project is not None, guards=guards)


def _own(source: AccountSource, name: _Name, value: str | None) -> Sourced[str | None]:
    """Return a value of the source, which may have got it from a config."""
    if source.config_entry is not None:
        known = _of(source.config_entry, name)
        if value is not None and known.value == value:
            return known
    return Sourced(value, "call")


def _of(entry: ConfigEntry, name: _Name) -> Sourced[str | None]:
    if name == "api_key":
        return Sourced(entry.api_key, entry.key_origin)
    return Sourced(entry.model if name == "model" else entry.base_url, entry.origin)


def _project_entry(base_url: Sourced[str], entries: Iterable[ConfigEntry]) -> ConfigEntry | None:
    """Return the project's config entry that named the endpoint, if one did."""
    for entry in entries:
        if entry.from_project and entry.origin == base_url.origin:
            return entry
    return None


def _no_key_for_project(head: str, account: Account) -> str:
    return (
        f"{head} that may go to {public_url(account.base_url.value)!r}: the project's own "
        f"{account.base_url.origin} names this endpoint, and keys of the environment or of your "
        "own config are never sent there. Pass api_key=..., or store a key in that project's "
        "credentials: rath config set --project llm.providers.NAME.api_key -"
    )


def _config_path() -> str:
    try:
        return repr(str(resolve_config_path()))
    except OSError:
        return "a config"


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
