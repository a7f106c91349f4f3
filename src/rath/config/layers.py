"""Values from all configs that count: the project's before the user's.

An entry is taken whole from the first file that has its name; a default is taken from the first
file that sets it. `OPENRATH_HOME` leaves one file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from pydantic import BaseModel

from rath._core.text import did_you_mean
from rath.config.paths import config_layer_paths
from rath.config.schema import (
    BackendProviderConfig,
    LLMProviderConfig,
    MCPServerConfig,
    MemoryProviderConfig,
    RathConfig,
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
    looked_at = iter_layers() if stores is None else stores
    names = (getattr(store.config.llm, field) for store in looked_at)
    return next((str(name) for name in names if name), None)


def find_llm_provider(name: str | None = None) -> Found[LLMProviderConfig]:
    """Return a model endpoint by name, or that of `llm.default_provider`.

    Raises:
        KeyError: No such entry, or no default; the text says what each file has.
    """
    section = _Section(
        "LLM provider", "llm", lambda c: c.llm.default_provider, lambda c: c.llm.providers
    )
    return section.find(name)


def find_memory_provider(name: str | None = None) -> Found[MemoryProviderConfig]:
    """Return a memory store by name, or that of `memory.default_provider`.

    Raises:
        KeyError: No such entry, or no default; the text says what each file has.
    """
    section = _Section(
        "memory provider",
        "memory",
        lambda c: c.memory.default_provider,
        lambda c: c.memory.providers,
    )
    return section.find(name)


def find_backend_provider(name: str | None = None) -> Found[BackendProviderConfig]:
    """Return a sandbox service by name, or that of `backend.default_provider`.

    Raises:
        KeyError: No such entry, or no default; the text says what each file has.
    """
    section = _Section(
        "backend provider",
        "backend",
        lambda c: c.backend.default_provider,
        lambda c: c.backend.providers,
    )
    return section.find(name)


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
    looked_at = tuple(iter_layers() if stores is None else stores)
    listed = (
        f"{', '.join(store.config.mcp.servers) or 'none'} in {store.path}" for store in looked_at
    )
    available = f"Available: {'; '.join(listed)}."
    if name is None:
        lists = (store.config.mcp.default_enabled for store in looked_at)
        enabled = next(filter(None, lists), None)
        if enabled is None:
            raise KeyError(
                f"no MCP server name given, and mcp.default_enabled is empty. {available}"
            )
        if len(enabled) > 1:
            raise KeyError(
                f"no MCP server name given, and mcp.default_enabled is ambiguous: it names "
                f"{', '.join(enabled)}. Name one of them"
            )
        name = enabled[0]
    for store in looked_at:
        if name in store.config.mcp.servers:
            return Found(store, name, store.config.mcp.servers[name])
    known = [known for store in looked_at for known in store.config.mcp.servers]
    raise KeyError(f"no MCP server named {name!r}.{did_you_mean(name, known)} {available}")


@dataclass(frozen=True, slots=True)
class _Section(Generic[EntryT]):
    """A part of the config that names entries, and one of them as the default."""

    what: str
    name: str
    default_of: Callable[[RathConfig], str | None]
    entries_of: Callable[[RathConfig], Mapping[str, EntryT]]

    def find(self, name: str | None) -> Found[EntryT]:
        wanted = self._default() if name is None else name
        if wanted is None:
            files = " or ".join(str(path) for path in config_layer_paths())
            raise KeyError(
                f"no {self.what} name given, and {self.name}.default_provider is not set in "
                f"{files}. {self._available()}"
            )
        for store in iter_layers():
            entry = self.entries_of(store.config).get(wanted)
            if entry is not None:
                return Found(store, wanted, entry)
        known = [known for store in iter_layers() for known in self.entries_of(store.config)]
        near = did_you_mean(wanted, known)
        raise KeyError(f"no {self.what} named {wanted!r}.{near} {self._available()}")

    def _default(self) -> str | None:
        return next(filter(None, (self.default_of(store.config) for store in iter_layers())), None)

    def _available(self) -> str:
        listed = (
            f"{', '.join(self.entries_of(store.config)) or 'none'} in {store.path}"
            for store in iter_layers()
        )
        return f"Available: {'; '.join(listed)}."
