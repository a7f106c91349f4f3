"""Config files and settings that count here, and where each value comes from."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, cast

import typer
from pydantic import BaseModel

from rath._core.dataclasses import dataclass
from rath._core.options import Sourced
from rath.cli.terminal import CommandError, Misuse
from rath.config.credentials import CREDENTIALS_FILENAME
from rath.config.env import EnvKind, all_env_specs, env_value, resolve_with_origin
from rath.config.keys import format_key, parse_key
from rath.config.paths import (
    CONFIG_FILENAME,
    OPENRATH_HOME_ENV,
    PROJECT_MARKER_DIR,
    config_layer_paths,
    is_project_local,
    resolve_config_path,
    user_config_dir,
)
from rath.config.redaction import HIDDEN, redact_setting
from rath.config.store import ConfigStore
from rath.config.trust import (
    GuardedEntry,
    belongs_to_project,
    guarded_entries,
    untrusted_entries,
)
from rath.errors import ConfigConflict, ConfigError, ManifestVersionError, UntrustedConfig
from rath.llm.credentials import checked_url, find_account, variables_of
from rath.llm.provider import Provider

ForProject = Annotated[
    bool | None,
    typer.Option(
        "--project/--user",
        help="The config of this directory, or your own; by default the one that "
        "`rath config path` shows as written to.",
        show_default=False,
    ),
]

FileTrust = Literal["own", "harmless", "trusted", "not trusted"]
"""A config of one's own needs no word, nor does one of a project that names nothing that acts."""

_TABLES = {
    "llm": "providers", "memory": "providers", "backend": "providers", "mcp": "servers",
    "sessions": "",  # plain values alone
}  # fmt: skip
"""For each section the table that holds its named entries."""

_KEY = re.compile(r"(sk|pk|rk|gsk|hf|xai|nvapi|pplx|key)[-_][\w-]{12,}|AIza[\w-]{20,}")
"""How keys of vendors begin; models are named otherwise."""

_MODEL = re.compile(
    r"(openai/|anthropic/)?(gpt|claude|gemini|llama|mistral|qwen|deepseek|o[1-9])[\d.]*([-:][\w.-]+)+",
    re.IGNORECASE,
)
"""Names of well-known models."""

_ENTRY_DEPTH = 3
"""Parts of the key of a named entry, as in `llm.providers.main`."""


@dataclass(frozen=True, slots=True)
class ConfigPlace:
    """A config file that may exist."""

    role: str
    """OPENRATH_HOME, project or user."""

    file: Path
    exists: bool
    has_keys: bool
    """Whether keys stand beside it."""

    is_written: bool
    """Whether it is the one that is written to unless another is asked for."""

    trust: FileTrust | None

    @classmethod
    def of(cls, role: str, file: Path) -> ConfigPlace:
        """Look at a file."""
        exists = file.is_file()
        has_keys = file.with_name(CREDENTIALS_FILENAME).is_file()
        trust = trust_of(file) if exists else None
        return cls(role, file, exists, has_keys, file == resolve_config_path(), trust)


def trust_of(path: Path) -> FileTrust | None:
    """Return whether all that acts in a config counts; None where it cannot be read."""
    try:
        store = ConfigStore.load(path)
    except (ConfigError, ManifestVersionError, OSError):
        return None
    if not belongs_to_project(store):
        return "own"
    if not guarded_entries(store):
        return "harmless"
    return "not trusted" if untrusted_entries([store]) else "trusted"


def all_places() -> list[ConfigPlace]:
    """Return where configs are looked for, the strongest first."""
    if env_value(OPENRATH_HOME_ENV) is not None:
        return [ConfigPlace.of(OPENRATH_HOME_ENV, resolve_config_path())]
    if is_project_local(user_config_dir()):
        return [ConfigPlace.of("user", resolve_config_path())]
    return [
        ConfigPlace.of("project", target_path(True)),
        ConfigPlace.of("user", target_path(False)),
    ]


def target_path(for_project: bool | None) -> Path:
    """Return the config file to write to; it may not exist yet.

    Raises:
        Misuse: One of two was asked for where there is only one.
    """
    if for_project is None:
        return resolve_config_path()
    if env_value(OPENRATH_HOME_ENV) is not None:
        raise Misuse(
            f"{OPENRATH_HOME_ENV} is set, so its directory is the only one; unset it, or leave "
            "out --project and --user"
        )
    project = Path(PROJECT_MARKER_DIR).resolve()
    return (project if for_project else user_config_dir()) / CONFIG_FILENAME


def change_config(path: Path, change: Callable[[ConfigStore], None]) -> ConfigStore:
    """Return the config after a change, which is made anew where another process came between.

    Raises:
        CommandError: The config does not fit the schema then; nothing is written.
    """
    while True:
        store = ConfigStore(path)
        change(store)
        try:
            store.save()
        except ConfigConflict:
            continue
        except ConfigError as exc:
            raise CommandError(f"nothing is written: {exc}") from None
        return store


def endpoint_problem(url: str, origin: str = "what was given") -> str | None:
    """Return why no client could call this address, or None where one can."""
    try:
        checked_url(url, origin)
    except ValueError as exc:
        return str(exc)
    return None


def model_problem(text: str) -> str | None:
    """Return why no model has this name, or None where one may; the text may be a secret."""
    if _KEY.match(text.strip()):
        return (
            "this is an API key by its form, and no name of a model; a key is asked for after the "
            "model, or set with: rath config set llm.providers.NAME.api_key -"
        )
    return None


def key_problem(text: str, model: str | None = None) -> str | None:
    """Return why this is no API key, or None where it may be one.

    Args:
        text: What was given as a key.
        model: The model that it was given with.
    """
    text = text.strip()
    if (model and text == model) or _MODEL.match(text):
        return (
            f"{text!r} is the name of a model, and no API key; the vendor's site makes keys, and a "
            "model is set with: rath config set llm.providers.NAME.model MODEL"
        )
    if text.lower().startswith(("http://", "https://")):
        return "this is an address, and no API key; it belongs to base_url"
    return None


def key_needed(name: str) -> str:
    """Return the advice for a provider with an endpoint, but no key, in a project's config."""
    key = format_key(("llm", "providers", name, "api_key"))
    return (
        "an endpoint that a project names never gets a key of the environment or of your own "
        f"config; give it one: rath config set --project {key} -"
    )


@dataclass(frozen=True, slots=True)
class Setting:
    """A value as it may be shown: a secret is hidden."""

    key: str
    """A dotted key of the config, or the name of an environment variable."""

    value: object
    origin: str
    """One of "env NAME", "config FILE", "default"."""


@dataclass(frozen=True, slots=True)
class Settings:
    """All values, and why some config could not be read."""

    values: tuple[Setting, ...]
    problems: tuple[str, ...]

    untrusted: tuple[GuardedEntry, ...] = ()
    """What a project's config names and the user has not trusted, so that it is not used."""

    def at(self, key: str) -> Setting | None:
        """Return the value of a key, or None where nothing is set."""
        return next((each for each in self.values if each.key == key), None)

    def under(self, key: str) -> list[Setting]:
        """Return the values in a table."""
        return [each for each in self.values if each.key.startswith(f"{key}.")]


def read_settings() -> Settings:
    """Read everything that counts in this directory, with this environment."""
    stores: list[ConfigStore] = []
    problems: list[str] = []
    for path in config_layer_paths():
        try:
            stores.append(ConfigStore.load(path))
        except (ConfigError, ManifestVersionError) as exc:
            problems.append(str(exc))
    values = list(_values((), stores))
    # What a broken config would have said of an account is not known.
    accounts = [] if problems else list(_accounts(stores))
    values = _with_neighbours(values, accounts)
    untrusted = tuple(untrusted_entries(stores))
    return Settings((*values, *_environment()), tuple(problems), untrusted)


def as_text(value: object) -> str:
    """Return a value as one reads it: a text as it is, all else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _values(place: tuple[str, ...], stores: Sequence[ConfigStore]) -> Iterator[Setting]:
    """Give all values at a place; a section and its table of entries hold places of their own."""
    table = _TABLES.get(place[0]) if place else None
    if table is not None and len(place) == _ENTRY_DEPTH:
        yield from _entry(place, stores)
    elif not place or (table is not None and place[1:] in ((), (table,))):
        for name in _names(stores, place):
            if (*place, name) != ("version",):
                yield from _values((*place, name), stores)
    else:
        yield from _first(place, stores)


def _entry(place: tuple[str, ...], stores: Sequence[ConfigStore]) -> Iterator[Setting]:
    """Give the fields of a named entry, which is taken whole from the first config that has it."""
    store, entry = next((store, found) for store in stores if (found := _at(store, place)))
    assert isinstance(entry, BaseModel)
    for name in _fields(entry):
        origin = store.origin_of(entry, name) if name in entry.model_fields_set else "default"
        yield from _flat((*place, name), redact_setting(name, getattr(entry, name)), origin)


def _accounts(stores: Sequence[ConfigStore]) -> Iterator[Setting]:
    """Give what model endpoints leave open and find elsewhere, by the rules of a call."""
    for name in _names(stores, ("llm", "providers")):
        try:
            source = Provider.from_config(name)
        except (TypeError, ValueError, UntrustedConfig):
            continue  # what no provider takes, or none may; `rath config` shows it all the same
        kind = source.provider_kind or ""
        account = find_account(source, kind=kind, variables=variables_of(kind), default_base_url="")
        for field in ("model", "base_url", "api_key"):
            found: Sourced[str] | None = getattr(account, field)
            if found is not None and found.value and not getattr(source, field):
                key = format_key(("llm", "providers", name, field))
                yield Setting(key, redact_setting(field, found.value), found.origin)


def _with_neighbours(values: Sequence[Setting], added: Sequence[Setting]) -> list[Setting]:
    """Put each of `added` behind the last value of the same table."""
    merged = list(values)
    for setting in added:
        table = parse_key(setting.key)[:-1]
        last = max(n for n, each in enumerate(merged) if parse_key(each.key)[:-1] == table)
        merged.insert(last + 1, setting)
    return merged


def _first(place: tuple[str, ...], stores: Sequence[ConfigStore]) -> Iterator[Setting]:
    """Give a value as the first config has it that sets it."""
    for store in stores:
        value = _at(store, place)
        if value not in (None, "", [], {}):
            yield from _flat(place, redact_setting(place[-1], value), f"config {store.path}")
            return


def _environment() -> Iterator[Setting]:
    for spec in all_env_specs():
        found = resolve_with_origin(spec.name)
        if found.value is not None and found.origin == f"env {spec.name}":
            is_secret = spec.kind is EnvKind.SECRET
            yield Setting(
                spec.name, HIDDEN if is_secret else redact_setting("", found.value), found.origin
            )


def _flat(place: tuple[str, ...], value: object, origin: str) -> Iterator[Setting]:
    if isinstance(value, Mapping):
        for name, inner in cast("Mapping[str, object]", value).items():
            yield from _flat((*place, str(name)), inner, origin)
    elif value not in (None, "", []):
        yield Setting(format_key(place), value, origin)


def _names(stores: Sequence[ConfigStore], place: tuple[str, ...]) -> list[str]:
    """Return the names in a table, of all configs, each once."""
    return list(dict.fromkeys(name for store in stores for name in _fields(_at(store, place))))


def _at(store: ConfigStore, place: tuple[str, ...]) -> object:
    found: object = store.config
    for name in place:
        if isinstance(found, Mapping):
            found = cast("Mapping[str, object]", found).get(name)
        else:
            found = getattr(found, name, None)
    return found


def _fields(found: object) -> list[str]:
    if isinstance(found, Mapping):
        return list(cast("Mapping[str, object]", found))
    return [name for name, _ in found] if isinstance(found, BaseModel) else []
