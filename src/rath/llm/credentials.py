"""Key, endpoint and model of a request, and the origin of each of them."""

from __future__ import annotations

import hmac
import logging
import os
import re
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import field, replace
from functools import lru_cache
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

from rath import config
from rath._core.dataclasses import dataclass
from rath._core.options import Sourced, first_set
from rath.config.env import resolve_with_origin
from rath.config.paths import config_layer_paths, resolve_config_dir
from rath.config.redaction import Redactor
from rath.config.secrets import ensure_config_dir_gitignore
from rath.errors import ConfigError, ManifestVersionError
from rath.llm.provider import DEFAULT_TIMEOUT, ConfigEntry, ProviderOrigin

if TYPE_CHECKING:
    from rath.config.layers import LLMDefault
    from rath.config.trust import GuardedEntry

__all__ = ["resolve_credential"]


_AZURE_SUFFIXES = tuple(
    f".{service}.azure.{cloud}"
    for service in ("openai", "cognitiveservices", "services.ai")
    for cloud in ("com", "us", "cn")
)
"""Hosts of Azure's resources for models, in its clouds. Virtual machines and others of its services
end with `.azure.com` too."""


@lru_cache(maxsize=64)
def public_url(url: str | None) -> str | None:
    """Return scheme, host, port and path of `url`, without query, user and password."""
    parts = _split(url)
    if parts is None or not parts.hostname:
        return None
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    port = f":{parts.port}" if parts.port is not None else ""
    return f"{parts.scheme}://{host}{port}{parts.path}"


def checked_url(url: str, origin: str) -> str:
    """Return a base URL without a slash at its end.

    Args:
        url: What somebody gave.
        origin: Where it came from, for the error.

    Raises:
        ValueError: It is not the URL of a host, by http or https, or more than that.
    """
    parts = _split(url)
    # The text does not repeat it: it may hold a password, or be a key in the wrong place.
    if parts is None or not parts.hostname or parts.scheme not in {"http", "https"}:
        raise ValueError(
            "base_url must begin with http:// or https:// and name a host; the value that does "
            f"not came from {origin}"
        )
    if parts.query or parts.fragment or "@" in parts.path:
        raise ValueError(
            "base_url must end with its path: a query is not sent with calls, and in a password "
            f"the characters / ? # @ are written as %2F %3F %23 %40. The value came from {origin}"
        )
    return url.rstrip("/")


def without_login(url: str) -> str:
    """Return `url` without user and password, and otherwise as it is."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def password_in(url: str) -> str:
    """Return the password in a URL, the user where there is none, or an empty text."""
    parts = _split(url)
    return "" if parts is None else unquote(parts.password or parts.username or "")


def is_azure(url: str | None) -> bool:
    """Tell whether `url` names a model resource of Azure, by its host alone."""
    return _host(url).endswith(_AZURE_SUFFIXES)


def is_loopback(url: str | None) -> bool:
    """Tell whether `url` names this machine, by its host alone."""
    host = _host(url)
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _host(url: str | None) -> str:
    parts = _split(url)
    return (parts.hostname or "").rstrip(".") if parts is not None else ""


def _split(url: str | None) -> SplitResult | None:
    try:
        parts = urlsplit((url or "").strip())
        _ = parts.port
    except ValueError:
        return None
    return parts


Purpose = Literal["chat", "embedding", "vlm"]
"""The purpose of a call; it decides which entry of a config is looked at first."""

SALT_FILENAME = "credential.salt"
_SALT_BYTES = 32
_UNSENDABLE = re.compile(r"[^!-~]")
_Name = Literal["model", "base_url", "api_key"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTarget:
    """Endpoint, model and key of a request, with their origins."""

    kind: str
    """Provider kind, which names an endpoint that is not known yet."""

    endpoint: str | None
    """Scheme, host and path; None until it is known."""

    model: str
    """Empty where no model is asked for anything."""

    path: str = ""
    """The part behind the base URL, for transports that share a connection between paths."""

    origins: tuple[tuple[str, str], ...] = ()
    """Where model, base_url and api_key came from."""

    timeout: float = DEFAULT_TIMEOUT
    """Seconds for an answer, or of silence in a stream."""

    secret: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    """The one in the base URL."""

    @property
    def name(self) -> str:
        """The endpoint, or what else names it, for the words of an error."""
        return self.endpoint or f"the {self.kind} model server"

    @property
    def redactor(self) -> Redactor:
        """Hides the key wherever a vendor or a proxy repeats it."""
        return Redactor((self.secret, self.password))

    def with_provider_origin(self, origin: ProviderOrigin) -> RequestTarget:
        """Return the target with `origin` for what the provider itself says."""
        if origin == "call":
            return self
        own = tuple((name, origin if found == "call" else found) for name, found in self.origins)
        return replace(self, origins=own)

    def origin_of(self, name: Literal["model", "api_key"]) -> str:
        """Return where a value came from, in words."""
        origin = dict(self.origins).get(name, "call")
        return f"the {origin}" if " " not in origin else origin


@dataclass(frozen=True, slots=True)
class Variables:
    """Names of the environment variables that a provider kind reads, first one first."""

    api_key: Callable[[str], Sequence[str]]
    """Gives the names for an endpoint."""

    base_url: Sequence[str]
    model: Sequence[str]


def _openai_keys(base_url: str) -> Sequence[str]:
    """Return the variables that may hold the key; Azure prefers those that bear its name."""
    if is_azure(base_url):
        return "AZURE_OPENAI_API_KEY", "AZURE_API_KEY", "OPENAI_API_KEY"
    return "OPENAI_API_KEY", "AZURE_OPENAI_API_KEY"


OPENAI = Variables(
    api_key=_openai_keys,
    base_url=("OPENAI_BASE_URL", "AZURE_OPENAI_ENDPOINT"),
    model=("OPENAI_DEFAULT_MODEL",),
)
OPENAI_FIXED_MODEL = Variables(
    api_key=lambda url: OPENAI.api_key(url) if is_azure(url) else ("OPENAI_API_KEY",),
    base_url=("OPENAI_BASE_URL",),
    model=(),
)
"""For embeddings and images, where whoever asks names the model."""

ANTHROPIC = Variables(
    api_key=lambda _: ("ANTHROPIC_API_KEY",),
    base_url=("ANTHROPIC_BASE_URL",),
    model=("ANTHROPIC_DEFAULT_MODEL",),
)
LITELLM = Variables(
    api_key=lambda _: ("LITELLM_API_KEY",),
    base_url=("LITELLM_API_BASE",),
    model=("LITELLM_MODEL",),
)

_BY_KIND = {"openai": OPENAI, "anthropic": ANTHROPIC, "litellm": LITELLM}


def variables_of(kind: str) -> Variables:
    """Return the variables of a provider kind; a kind that we do not know reads none of them."""
    return _BY_KIND.get(kind, Variables(api_key=lambda _: (), base_url=(), model=()))


class AccountSource(Protocol):
    """The fields of a `Provider`, or of one for embeddings or images, that an account needs."""

    @property
    def model(self) -> str | None: ...

    @property
    def base_url(self) -> str | None: ...

    @property
    def api_key(self) -> str | None: ...

    @property
    def config_entry(self) -> ConfigEntry | None:
        """The entry that it was read from, which says where its values came from."""


@dataclass(frozen=True, slots=True)
class Account:
    """Key, endpoint and model that a client calls with."""

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

    def model_for(self, requested: str | None, *, advice: str) -> str:
        """Return the model of a call: the requested one, else that of the account.

        Raises:
            ValueError: There is none; `advice` says where to name one.
        """
        chosen = requested or (self.model.value if self.model else None)
        if not chosen:
            raise ValueError(f"model is required: name one{advice}; `rath config init` sets one up")
        return chosen

    def target(
        self,
        model: str,
        *,
        kind: str,
        endpoint: str | None,
        path: str = "",
        timeout: float | None = None,
    ) -> RequestTarget:
        """Return the target of a request through this account.

        Args:
            model: The model that is asked, which may be another than that of the account.
            kind: Provider kind.
            endpoint: Scheme, host and path; None where it is not known.
            path: What follows the base URL.
            timeout: Seconds; 300 by default.
        """
        origins = {"model": "call"} | dict(self.origins)
        if self.model is None or self.model.value != model:
            origins["model"] = "call"
        return RequestTarget(
            kind=kind,
            endpoint=endpoint,
            model=model,
            path=path,
            origins=tuple(origins.items()),
            timeout=DEFAULT_TIMEOUT if timeout is None else timeout,
            secret=self.api_key.value,
            password=password_in(self.base_url.value),
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
    entries, _ = _entries_for(source, kind, purpose)
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
    account = _given_account(source)
    if account is not None:
        refuse_unsendable(account.api_key)
        return account
    entries, problems = _entries_for(source, kind, purpose)
    account = _account(source, entries, variables, default_base_url)
    account.check_trusted()
    if account.api_key.value:
        refuse_unsendable(account.api_key)
        return account
    if account.from_project:
        raise ValueError(
            f"{missing or 'No API key found'} that may go to "
            f"{public_url(account.base_url.value)!r}: the project's own {account.base_url.origin} "
            "names this endpoint, and keys of the environment or of your own config are never "
            "sent there. Pass api_key=..., or store a key in that project's credentials: "
            "rath config set --project llm.providers.NAME.api_key -"
        )
    head = missing or f"No API key found for provider kind {kind!r}"
    variable = variables.api_key(account.base_url.value)[0]
    other = _default_of_another_kind(kind) if purpose == "chat" else None
    if other is None or source.config_entry is not None:
        first = "Run `rath config init`"
    else:
        first = f"Use Provider.from_config(), which is {other} in the config"
    advice = [first, f"set {variable}", f"or pass {type(source).__name__}(api_key=...)"]
    local = (
        ' A model that needs no key runs inside the process: Provider(provider_kind="local").'
        if purpose == "chat" and other is None
        else ""
    )
    broken = "".join(f" {problem}." for problem in problems)
    raise ValueError(f"{head}. {', '.join(advice)}.{local}{broken}")


def _default_of_another_kind(kind: str) -> str | None:
    """Describe the entry of `llm.default_provider` where it is of another kind."""
    # A damaged file is a problem that stands in the message already.
    with suppress(KeyError, ConfigError, ManifestVersionError):
        found = config.find_llm_provider()
        if found.entry.provider_kind != kind:
            return f"{found.name!r} of kind {found.entry.provider_kind!r}"
    return None


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
    try:
        home = str(resolve_config_dir())
    except OSError:
        home = None
    salt, lasting = _salt(home)
    digest = hmac.new(salt, key.value.encode(errors="replace"), "sha256").hexdigest()[:16]
    return f"{key.origin} {digest}" + ("" if lasting else " process")


EntryFound: TypeAlias = "tuple[config.LLMProviderConfig, ConfigEntry]"
"""An entry of `llm.providers`, and where its values came from."""


def entry_for(
    name: str | None, *, default: LLMDefault, store: config.ConfigStore | None
) -> EntryFound | None:
    """Return an entry by name, or the one that a default of the config names, if there is one.

    Args:
        name: Entry of `llm.providers`.
        default: Field of `llm` that names the entry otherwise.
        store: The config to read; the project's and the user's by default.

    Raises:
        KeyError: `name` is given, and there is no such entry.
    """
    if name:
        return ConfigEntry.find(name, store)
    named = config.llm_default(default, None if store is None else [store])
    if named is None:
        return None
    try:
        return ConfigEntry.find(named, store)
    except KeyError:
        return None


def default_entry(store: config.ConfigStore | None) -> EntryFound | None:
    """Return the entry of `llm.default_provider`, if there is one."""
    return entry_for(None, default="default_provider", store=store)


def _given_account(source: AccountSource) -> Account | None:
    """Return the account of a source that leaves nothing open, so that nothing is looked up."""
    if source.config_entry is not None:
        return None
    key, base_url, model = (
        first_set(Sourced(value, "call"))
        for value in (source.api_key, source.base_url, source.model)
    )
    if key is None or base_url is None or model is None:
        return None
    return Account(key, base_url, model, from_project=False)


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
    project = next(
        (each for each in entries if each.from_project and each.origin == base_url.origin), None
    )
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


@lru_cache(maxsize=8)
def _salt(home: str | None) -> tuple[bytes, bool]:
    """Return the salt of a home, and whether it will be the same next time."""
    salt = b"" if home is None else salt_in(Path(home) / SALT_FILENAME)
    return (salt, True) if len(salt) == _SALT_BYTES else (secrets.token_bytes(_SALT_BYTES), False)


def salt_in(path: Path) -> bytes:
    """Return the salt in a file, made if it is missing; empty where that cannot be done."""
    try:
        if path.exists():
            return path.read_bytes()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        ensure_config_dir_gitignore(path.parent)
        new = path.with_name(f".{SALT_FILENAME}.{secrets.token_hex(8)}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        fd = os.open(new, flags, 0o600)
        try:
            with os.fdopen(fd, "wb") as handle:
                handle.write(secrets.token_bytes(_SALT_BYTES))
            # A link is complete or not there, and never replaces the salt of another process.
            with suppress(FileExistsError):
                os.link(new, path)
        finally:
            new.unlink()
        return path.read_bytes()
    except OSError:
        return b""


def _entries_for(
    source: AccountSource, kind: str, purpose: Purpose
) -> tuple[list[ConfigEntry], list[str]]:
    """Return the entries that say what the source leaves open, and why files cannot be used.

    An entry that names an endpoint or a key speaks of one account: nothing that another file
    says of another account is mixed into it.
    """
    stores, problems = _usable_configs()
    entries = [] if source.config_entry is None else [source.config_entry]
    default = None
    if stores and purpose != "chat":
        field_name: LLMDefault = "embedding_provider" if purpose == "embedding" else "vlm_provider"
        default = config.llm_default(field_name, stores)
    of_any_kind = bool(default)
    if stores and not default:
        default = config.llm_default("default_provider", stores)
    own = source.config_entry
    for store in stores:
        providers = store.config.llm.providers
        of_kind = [name for name, entry in providers.items() if entry.provider_kind == kind]
        names: list[str] = []
        # Whoever asks for embeddings or images may have named an entry of any kind.
        if own is not None and own.name in (of_kind if purpose == "chat" else providers):
            names.append(own.name)
        if default is not None and default in (providers if of_any_kind else of_kind):
            names.append(default)
        elif purpose == "chat":
            first = store.find_provider_by_kind(kind)
            names += [name for name, entry in providers.items() if entry is first]
        for name in names:
            found = ConfigEntry.of(store, name, providers[name])
            if not any(each.names_account and each.origin != found.origin for each in entries):
                entries.append(found)
    return entries, problems


def _usable_configs() -> tuple[list[config.ConfigStore], list[str]]:
    """Return the configs that exist, and why some of them cannot be used; these count as empty."""
    stores: list[config.ConfigStore] = []
    problems: list[str] = []
    try:
        # Only what exists is loaded: the schema takes longer to import than all else here.
        paths = [path for path in config_layer_paths() if path.is_file()]
    except OSError as exc:
        paths, problems = [], [str(exc)]
    for path in paths:
        try:
            stores.append(config.ConfigStore.load(path))
        except (ConfigError, ManifestVersionError, OSError) as exc:
            problems.append(str(exc))
    for problem in problems:
        _warn_once(problem)
    return stores, problems


@lru_cache(maxsize=64)
def _warn_once(problem: str) -> None:
    _log.warning("a config counts as empty: %s", problem)
