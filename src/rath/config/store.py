"""Read, look up and write `config.json` and the keys beside it."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, NoReturn, Self, TypeVar, cast

from pydantic import BaseModel, ValidationError

from rath._core.files import atomic_write_json, read_small_file
from rath._core.text import did_you_mean
from rath.config.credentials import (
    CREDENTIALS_FILENAME,
    SECRET_SECTIONS,
    secrets_from_config,
    split_secrets,
)
from rath.config.manifest import check_manifest, ensure_manifest
from rath.config.paths import (
    comes_from_project,
    is_project_local,
    own_directories,
    resolve_config_dir,
    resolve_config_path,
    working_directory,
)
from rath.config.records import exclusive
from rath.config.schema import (
    SCHEMA_VERSION,
    BackendProviderConfig,
    LLMProviderConfig,
    MCPServerConfig,
    MemoryProviderConfig,
    RathConfig,
)
from rath.config.secrets import (
    ensure_config_dir_gitignore,
    ensure_project_gitignore_entry,
    warn_if_world_readable,
)
from rath.config.trust import belongs_to_project, entry_values, pin_written
from rath.errors import ConfigConflict, ConfigError

__all__ = ["ConfigError", "ConfigStore", "default_store", "resolve_config_dir"]

EntryT = TypeVar("EntryT", bound=BaseModel)
_Where = tuple[Path, Path | None, bool]
_Stamp = tuple[tuple[int, int] | None, ...]

_LOCK_FILENAME = ".config.lock"

_MAX_BYTES = 16_000_000
"""Size of the largest file that is read as a config; a guess far above any real one."""

_logger = logging.getLogger(__name__)


class ConfigStore:
    """One `config.json` in memory, with the keys of the `credentials.json` beside it.

    A missing file gives the defaults. Change `config` in place, then `save()`.

    Args:
        path: The file; by default the one in `resolve_config_dir()`.

    Raises:
        ConfigError: A file cannot be read, is not JSON or does not fit the schema.
        ManifestVersionError: A newer version of rath has laid out the directory.
    """

    _loaded: ClassVar[dict[_Where, tuple[_Stamp, ConfigStore]]] = {}
    _loaded_lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, path: Path | None = None) -> None:
        self.path: Path = resolve_config_path() if path is None else Path(path)
        self.is_project_local: bool = comes_from_project(self.path.parent)
        """Whether the file was brought by the project in the working directory, not by the user."""
        check_manifest(self.path.parent)
        if belongs_to_project(self):
            _refuse_links_home(self.path, self._credentials_path)
        self._read_at = self._stamps()
        self._config = _validated(_read_object(self.path), self.path)
        self._credentials = _read_object(self._credentials_path)
        self._keys_beside = self._take_keys()
        self._places = set(self._entries_that_hold_keys())
        self.values_read: Mapping[tuple[str, ...], Mapping[str, Any]] = {}
        """What the entries of a project's file say, as it was read or last written."""
        self._note_entries()

    @classmethod
    def load(cls, path: Path | None = None) -> Self:
        """Return the store of a file, the same one until the file or the keys beside it change.

        A missing config file is looked for again each time.

        Args:
            path: The file; `resolve_config_path()` by default.
        """
        path = resolve_config_path() if path is None else path
        # The same file is the project's or the user's, by where one stands.
        place = (path, working_directory(), comes_from_project(path.parent))
        stamp = _stamps(path)
        if stamp[0] is None:
            return cls(path)
        with cls._loaded_lock:
            known_stamp, known = cls._loaded.get(place, (None, None))
        if known_stamp == stamp and isinstance(known, cls):
            return known
        store = cls(path)
        with cls._loaded_lock:
            cls._loaded[place] = (stamp, store)
        return store

    @property
    def config(self) -> RathConfig:
        """The whole config; changes in it are kept by `save()`."""
        return self._config

    def origin_of(self, entry: BaseModel, field: str) -> str:
        """Return "config FILE" for the file that gave a field of an entry of this store."""
        file = self.path
        if field == "api_key" and any(entry is beside for beside in self._keys_beside):
            file = self._credentials_path
        return f"config {file}"

    def save(self) -> None:
        """Write the config, and its keys apart from it, both readable by their owner only.

        Also keeps both out of version control and brings the manifest up to date. What this program
        has put into a project's config is trusted by that; what it found there is not.

        Raises:
            ConfigConflict: Somebody else changed a file since it was read; nothing is written.
            ConfigError: The config does not fit the schema any more; nothing is written.
        """
        self._config.version = SCHEMA_VERSION
        # A warning of pydantic would show the value that it is about.
        payload = self._config.model_dump(mode="json", warnings=False)
        _validated(payload, self.path)
        if set(payload["sessions"].values()) == {None}:
            del payload["sessions"]  # OpenRath 1.3 knew none: such a config is saved as it was.
        config, credentials = split_secrets(payload)
        directory = self.path.parent
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        ensure_config_dir_gitignore(directory)
        if is_project_local(directory):
            ensure_project_gitignore_entry(directory.parent)
        with exclusive(directory, _LOCK_FILENAME):
            if self._stamps() != self._read_at:
                raise ConfigConflict(
                    f"{self.path} was changed by somebody else since it was read; nothing is "
                    "written. Read it again, and make the change anew"
                )
            # The keys go first: a crash in between leaves them in two places rather than in none.
            self._write_keys(credentials)
            atomic_write_json(self.path, config, mode=0o600)
            self._read_at = self._stamps()
        self._keys_beside = [
            entry for entry in self._entries_that_hold_keys().values() if entry.api_key
        ]
        ensure_manifest(directory)
        try:
            pin_written(self)
        except (OSError, ConfigError) as exc:
            _logger.warning("%s is written, but not trusted: %s", self.path, exc)
        self._note_entries()
        with self._loaded_lock:
            for place in [place for place in self._loaded if place[0] == self.path]:
                del self._loaded[place]

    def get_llm_provider(self, name: str | None) -> LLMProviderConfig:
        """Return a model endpoint by name, or `llm.default_provider` for None.

        Raises:
            KeyError: No such entry, or no default; the text names the file and what it has.
        """
        llm = self._config.llm
        return self._find("LLM provider", "llm", name or llm.default_provider, llm.providers)

    def find_provider_by_kind(self, kind: str) -> LLMProviderConfig | None:
        """Return the default model endpoint if it is of that kind, else the first that is."""
        llm = self._config.llm
        default = llm.providers.get(llm.default_provider or "")
        candidates = ([default] if default else []) + list(llm.providers.values())
        return next((entry for entry in candidates if entry.provider_kind == kind), None)

    def get_memory_provider(self, name: str | None) -> MemoryProviderConfig:
        """Return a memory store by name, or `memory.default_provider` for None.

        Raises:
            KeyError: No such entry, or no default; the text names the file and what it has.
        """
        memory = self._config.memory
        wanted = name or memory.default_provider
        return self._find("memory provider", "memory", wanted, memory.providers)

    def get_backend_provider(self, name: str | None) -> BackendProviderConfig:
        """Return a sandbox service by name, or `backend.default_provider` for None.

        Raises:
            KeyError: No such entry, or no default; the text names the file and what it has.
        """
        backend = self._config.backend
        wanted = name or backend.default_provider
        return self._find("backend provider", "backend", wanted, backend.providers)

    def get_mcp_server(self, name: str) -> MCPServerConfig:
        """Return a tool server by name.

        Raises:
            KeyError: No such entry; the text names the file and what it has.
        """
        return self._find("MCP server", "mcp", name, self._config.mcp.servers)

    def enabled_mcp_servers(self) -> list[MCPServerConfig]:
        """Return the tool servers of `mcp.default_enabled`, in its order.

        Raises:
            KeyError: `mcp.default_enabled` names a server that is not configured.
        """
        return [self.get_mcp_server(name) for name in self._config.mcp.default_enabled]

    def _find(
        self, what: str, section: str, name: str | None, entries: Mapping[str, EntryT]
    ) -> EntryT:
        available = f"Available: {', '.join(entries) or 'none'}."
        if not name:
            raise KeyError(
                f"no {what} name given, and {section}.default_provider is not set in {self.path}. "
                f"{available}"
            )
        if name not in entries:
            near = did_you_mean(name, entries)
            raise KeyError(f"no {what} named {name!r} in {self.path}.{near} {available}")
        return entries[name]

    def _note_entries(self) -> None:
        try:
            self.values_read = entry_values(self._config) if belongs_to_project(self) else {}
        except (RecursionError, ValueError):  # pydantic has a limit of its own
            raise ConfigError(
                f"{self.path} is nested too deeply for a config; correct it or remove the file"
            ) from None

    def _stamps(self) -> _Stamp:
        return _stamps(self.path)

    @property
    def _credentials_path(self) -> Path:
        return self.path.with_name(CREDENTIALS_FILENAME)

    def _entries_that_hold_keys(
        self,
    ) -> dict[tuple[str, str], LLMProviderConfig | BackendProviderConfig | MemoryProviderConfig]:
        config = self._config
        return {
            **{("llm", name): entry for name, entry in config.llm.providers.items()},
            **{("backend", name): entry for name, entry in config.backend.providers.items()},
            **{("memory", name): entry for name, entry in config.memory.providers.items()},
        }

    def _take_keys(self) -> list[BaseModel]:
        """Give each entry without a key its own from the file beside; return those entries."""
        keys = secrets_from_config(self._credentials)
        taken: list[BaseModel] = []
        for place, entry in self._entries_that_hold_keys().items():
            inline = (entry.api_key or "").strip()
            if place in keys and not inline:
                entry.api_key = keys[place]
                taken.append(entry)
        return taken

    def _with_strangers(self, credentials: dict[str, Any]) -> dict[str, Any]:
        """Return `credentials` with what stood in their file and belonged to no entry."""
        unknown = {
            section: body
            for section, body in self._credentials.items()
            if section not in {*SECRET_SECTIONS, "version"}
        }
        merged: dict[str, Any] = {**unknown, **credentials}
        for (section, name), key in secrets_from_config(self._credentials).items():
            if (section, name) not in self._places:
                merged.setdefault(section, {"providers": {}})["providers"].setdefault(name, key)
        return merged

    def _write_keys(self, credentials: dict[str, Any]) -> None:
        path = self._credentials_path
        credentials = self._with_strangers(credentials)
        if not credentials:
            path.unlink(missing_ok=True)
            return
        inline = [
            f"{section}.{name}"
            for (section, name), entry in self._entries_that_hold_keys().items()
            if entry.api_key and not any(entry is beside for beside in self._keys_beside)
        ]
        if inline:
            _logger.info("the keys of %s are kept in %s now", ", ".join(inline), path)
        atomic_write_json(path, {**credentials, "version": SCHEMA_VERSION}, mode=0o600)


def default_store() -> ConfigStore:
    """Read the config of `resolve_config_path()` now; unlike `ConfigStore.load()`, never shared."""
    return ConfigStore()


def _refuse_links_home(*files: Path) -> None:
    """Refuse files of a project that are links into the user's own directory.

    By such a link a project would get the user's keys for an endpoint of its choice.
    """
    for file in files:
        target = Path(os.path.realpath(file))
        start = Path(os.path.realpath(file.parent))
        if any(
            target.is_relative_to(own) and not start.is_relative_to(own)
            for own in own_directories()
        ):
            raise ConfigError(
                f"{file} is a link into your own directory, {target.parent}; a project has a "
                "config and keys of its own. Remove the link"
            )


def _stamps(path: Path) -> _Stamp:
    return tuple(_stamp(file) for file in (path, path.with_name(CREDENTIALS_FILENAME)))


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_mtime_ns, status.st_size


def _read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file, an empty one when there is no file."""
    try:
        # Some editors put a byte order mark in front; utf-8-sig reads both.
        text = read_small_file(path, max_bytes=_MAX_BYTES).decode("utf-8-sig")
        warn_if_world_readable(path)
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"{path} cannot be read: {exc}; expected a UTF-8 JSON file") from exc
    try:
        payload: object = json.loads(text, parse_constant=_no_constant)
    except json.JSONDecodeError as exc:
        raise ConfigError(
            f"{path} is not valid JSON at line {exc.lineno} col {exc.colno}: {exc.msg}; correct it "
            "or remove the file"
        ) from None
    except RecursionError:
        raise ConfigError(
            f"{path} is nested too deeply for a config; correct it or remove the file"
        ) from None
    except _NoJson as exc:
        raise ConfigError(
            f"{path} is not valid JSON: it holds {exc}, which JSON has no form for; correct it or "
            "remove the file"
        ) from None
    except ValueError as exc:  # Python takes no number of more than some thousand digits
        raise ConfigError(f"{path} cannot be read: {exc}; correct it or remove the file") from None
    if not isinstance(payload, dict):
        raise ConfigError(
            f"{path} must be a JSON object, found {type(payload).__name__}; correct it or remove "
            "the file"
        )
    return cast("dict[str, Any]", payload)


class _NoJson(Exception):
    """A number that is written like one of JSON and is none; its text is that number."""


def _no_constant(name: str) -> NoReturn:
    raise _NoJson(name)


def _validated(payload: dict[str, Any], path: Path) -> RathConfig:
    try:
        return RathConfig.model_validate(payload)
    except ValidationError as exc:
        problems = exc.errors(include_url=False, include_input=False, include_context=False)
        raise ConfigError(
            f"{path} has values that do not fit: {_listed(problems)}; correct them there, or with "
            "rath config set or unset"
        ) from exc


def _listed(problems: Iterable[Any]) -> str:
    return "; ".join(
        f"{'.'.join(str(part) for part in problem['loc'])}: {problem['msg']}"
        for problem in problems
    )
