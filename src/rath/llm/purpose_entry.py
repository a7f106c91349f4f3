"""Which entry of a config a provider for embeddings or images is read from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rath import config
from rath.llm.provider import ConfigEntry

if TYPE_CHECKING:
    from rath.config.layers import LLMDefault

__all__ = ["EntryFound", "default_entry", "entry_for"]


@dataclass(frozen=True, slots=True)
class EntryFound:
    """An entry of `llm.providers`, and what says where its values came from."""

    entry: config.LLMProviderConfig
    origin: ConfigEntry


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
        return _get(name, store)
    named = config.llm_default(default, None if store is None else [store])
    if named is None:
        return None
    try:
        return _get(named, store)
    except KeyError:
        return None


def default_entry(store: config.ConfigStore | None) -> EntryFound | None:
    """Return the entry of `llm.default_provider`, if there is one."""
    return entry_for(None, default="default_provider", store=store)


def _get(name: str, store: config.ConfigStore | None) -> EntryFound:
    if store is None:
        found = config.find_llm_provider(name)
        store, entry = found.store, found.entry
    else:
        entry = store.get_llm_provider(name)
    return EntryFound(entry, ConfigEntry.of(store, name, entry))
