"""Values from all configs that count: the project's before the user's.

An entry is taken whole from the first file that has its name; a default is taken from the first
file that sets it. `OPENRATH_HOME` leaves one file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel

from rath._core.dataclasses import dataclass
from rath._core.text import did_you_mean
from rath.config.paths import config_layer_paths
from rath.config.schema import (
    BackendProviderConfig,
    LLMProviderConfig,
    MCPServerConfig,
    MemoryProviderConfig,
)
from rath.config.store import ConfigStore

__all__ = [
    "Found",
    "LLMDefault",
    "config_layers",
    "find_backend_provider",
    "find_llm_provider",
    "find_mcp_server",
    "find_memory_provider",
    "iter_layers",
    "llm_default",
]

EntryT = TypeVar("EntryT", bound=BaseModel)

LLMDefault = Literal["default_provider", "embedding_provider", "vlm_provider"]


@dataclass(frozen=True, slots=True)
class Found(Generic[EntryT]):
    """An entry, its name, and the config that it stands in."""

    store: ConfigStore
    name: str
    entry: EntryT


def iter_layers() -> Iterator[ConfigStore]:
    """Give the configs to read values from, the strongest first; each is read when its turn comes.

    Raises:
        ConfigError: A file cannot be used.
        ManifestVersionError: A newer version of rath has laid out its directory.
    """
    for path in config_layer_paths():
        yield ConfigStore.load(path)


def config_layers() -> tuple[ConfigStore, ...]:
    """Return the configs to read values from, the strongest first; a missing file is an empty one.

    Raises:
        ConfigError: A file cannot be used.
        ManifestVersionError: A newer version of rath has laid out its directory.
    """
    return tuple(iter_layers())


def llm_default(field: LLMDefault, stores: Iterable[ConfigStore] | None = None) -> str | None:
    """Return the name that the first config to set a default of `llm` gives, or None.

    Args:
        field: Which default.
        stores: Where to look; `iter_layers()` by default.
    """
    layers = iter_layers() if stores is None else stores
    names = (getattr(store.config.llm, field) for store in layers)
    return next((str(name) for name in names if name), None)


def find_llm_provider(name: str | None = None) -> Found[LLMProviderConfig]:
    """Return a model endpoint by name, or that of `llm.default_provider`.

    Raises:
        KeyError: No such entry, or no default; the text says what each file has.
    """
    return _find_provider("LLM provider", "llm", name)


def find_memory_provider(name: str | None = None) -> Found[MemoryProviderConfig]:
    """Return a memory store by name, or that of `memory.default_provider`.

    Raises:
        KeyError: No such entry, or no default; the text says what each file has.
    """
    return _find_provider("memory provider", "memory", name)


def find_backend_provider(name: str | None = None) -> Found[BackendProviderConfig]:
    """Return a sandbox service by name, or that of `backend.default_provider`.

    Raises:
        KeyError: No such entry, or no default; the text says what each file has.
    """
    return _find_provider("backend provider", "backend", name)


def find_mcp_server(
    name: str | None = None, stores: Iterable[ConfigStore] | None = None
) -> Found[MCPServerConfig]:
    """Return a tool server by name, or the only one of `mcp.default_enabled`.

    Args:
        name: Its name.
        stores: Where to look; `iter_layers()` by default.

    Raises:
        KeyError: No such entry, or none or more than one by default; the text says what each file
            has.
    """
    layers = tuple(iter_layers() if stores is None else stores)
    servers = [(store, store.config.mcp.servers) for store in layers]
    if name is None:
        lists = (store.config.mcp.default_enabled for store in layers)
        enabled = next(filter(None, lists), None)
        if enabled is None:
            raise KeyError(
                "no MCP server name given, and mcp.default_enabled is empty. "
                f"{_available('MCP server', servers)}"
            )
        if len(enabled) > 1:
            raise KeyError(
                f"no MCP server name given, and mcp.default_enabled is ambiguous: it names "
                f"{', '.join(enabled)}. Name one of them"
            )
        name = enabled[0]
    return _find_entry("MCP server", name, servers)


def _find_provider(noun: str, section: str, name: str | None) -> Found[Any]:
    """Return an entry of `SECTION.providers` by name, or that of `SECTION.default_provider`."""
    # Read one by one: an entry of the project is found although the user's file is damaged.
    parts = ((store, getattr(store.config, section)) for store in iter_layers())
    tables = ((store, part.providers) for store, part in parts)
    if name is None:
        defaults = (getattr(store.config, section).default_provider for store in iter_layers())
        name = next((str(each) for each in defaults if each), None)
    if name is None:
        files = " or ".join(str(path) for path in config_layer_paths())
        raise KeyError(
            f"no {noun} name given, and {section}.default_provider is not set in {files}. "
            f"{_available(noun, tables)}"
        )
    return _find_entry(noun, name, tables)


def _find_entry(
    noun: str, name: str, tables: Iterable[tuple[ConfigStore, Mapping[str, EntryT]]]
) -> Found[EntryT]:
    searched: list[tuple[ConfigStore, Mapping[str, EntryT]]] = []
    for store, entries in tables:
        if name in entries:
            return Found(store, name, entries[name])
        searched.append((store, entries))
    near = did_you_mean(name, [each for _, entries in searched for each in entries])
    raise KeyError(f"no {noun} named {name!r}.{near} {_available(noun, searched)}")


def _available(noun: str, tables: Iterable[tuple[ConfigStore, Mapping[str, EntryT]]]) -> str:
    listed = [*tables]
    texts = (f"{', '.join(entries) or 'none'} in {store.path}" for store, entries in listed)
    is_bare = noun == "LLM provider" and not any(entries for _, entries in listed)
    advice = " `rath config init` sets one up." if is_bare else ""
    return f"Available: {'; '.join(texts)}.{advice}"
