"""Which entries of the configs say what a provider leaves open."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Literal, Protocol

from rath import config
from rath.config.paths import config_layer_paths
from rath.errors import ConfigError, ManifestVersionError
from rath.llm.provider import ConfigEntry

__all__ = ["AccountSource", "Purpose", "entries_for"]

Purpose = Literal["chat", "embedding", "vlm"]
"""What a model is called for; it decides which entry of a config is looked at first."""

_log = logging.getLogger(__name__)


class AccountSource(Protocol):
    """What was asked for: a `Provider`, or one for embeddings or images."""

    @property
    def model(self) -> str | None: ...

    @property
    def base_url(self) -> str | None: ...

    @property
    def api_key(self) -> str | None: ...

    @property
    def config_entry(self) -> ConfigEntry | None:
        """The entry that it was read from, which says where its values came from."""


def entries_for(
    source: AccountSource, kind: str, purpose: Purpose
) -> tuple[list[ConfigEntry], list[str]]:
    """Return the entries that say what the source leaves open, and why files cannot be used.

    An entry that names an endpoint or a key speaks of one account: nothing that another file
    says of another account is mixed into it.
    """
    stores, problems = _usable_configs()
    entries = [] if source.config_entry is None else [source.config_entry]
    default = _default_name(stores, purpose)
    for store in stores:
        for name in _names(store, source.config_entry, default, kind=kind, purpose=purpose):
            found = ConfigEntry.of(store, name, store.config.llm.providers[name])
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


def _default_name(
    stores: Sequence[config.ConfigStore], purpose: Purpose
) -> tuple[str | None, bool]:
    """Return the name of the default entry, and whether it may be of any kind."""
    if not stores:
        return None, False
    named = None
    if purpose != "chat":
        named = config.llm_default(
            "embedding_provider" if purpose == "embedding" else "vlm_provider", stores
        )
    return (named, True) if named else (config.llm_default("default_provider", stores), False)


def _names(
    store: config.ConfigStore,
    asked: ConfigEntry | None,
    default: tuple[str | None, bool],
    *,
    kind: str,
    purpose: Purpose,
) -> Iterator[str]:
    """Give the names of the entries of one config that are looked at, the first one first."""
    providers = store.config.llm.providers

    def is_there(name: str | None, *, of_any_kind: bool) -> bool:
        entry = providers.get(name or "")
        return entry is not None and (of_any_kind or entry.provider_kind == kind)

    # Whoever asks for embeddings or images may have named an entry of any kind.
    if asked is not None and is_there(asked.name, of_any_kind=purpose != "chat"):
        yield asked.name
    name, may_be_any = default
    if name is not None and is_there(name, of_any_kind=may_be_any):
        yield name
    elif purpose == "chat":
        first = store.find_provider_by_kind(kind)
        yield from (name for name, entry in providers.items() if entry is first)
