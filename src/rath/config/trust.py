"""Which parts of a project's config act, and which of them the user trusts: `trust.json`.

{"trusted": {PROJECT: {KEY: {"digest": SHA256, "at": TIME, "digests": {FIELD: SHA256},
 "texts": {FIELD: TEXT}}}}, "version": 1}
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import field, replace
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast
from urllib.parse import unquote, urlsplit

from pydantic import BaseModel

from rath._core.dataclasses import dataclass
from rath._core.text import one_line_preview
from rath.config.keys import format_key
from rath.config.paths import (
    USER_DIR_NAME,
    is_of_some_project,
    is_project_local,
    own_config_dir,
)
from rath.config.records import change_file, read_file
from rath.config.redaction import HIDDEN, redact_setting
from rath.errors import UntrustedConfig

if TYPE_CHECKING:
    from rath.config.schema import RathConfig
    from rath.config.store import ConfigStore

__all__ = [
    "TRUST_FILENAME",
    "GuardedEntry",
    "TrustState",
    "belongs_to_project",
    "check_trusted",
    "entry_values",
    "guarded_entries",
    "guarded_entry",
    "pin_written",
    "project_of",
    "revoke_trust",
    "trust_entries",
    "untrusted_entries",
]

TRUST_FILENAME = "trust.json"

TrustState = Literal["trusted", "changed", "not trusted"]

Key = tuple[str, ...]

_ACTION = {
    "llm": "ask a model",
    "memory": "use a memory store",
    "backend": "use a sandbox service",
    "sessions": "store sessions elsewhere",
    "mcp": "use a tool server",
}
"""What the entries of each section would do."""

_VENDORS = frozenset({"openai", "anthropic"})
"""Kinds whose endpoint depends on nothing but `base_url`. The model of any other kind may name a
vendor, an address or a file."""

_LOCAL_MEMORY = frozenset(
    {"backend_kind", "embedding_provider", "chat_provider", "embedding_model", "ranking",
     "min_similarity", "extraction_uri"}
)  # fmt: skip
"""Fields of a local memory store that are parameters, or names of entries checked on their own."""

_MAX_TEXT_CHARS = 300
"""How much of a value an error and the file of trust show. A guess."""

_MAX_CHARS = 2000
"""How much of all values an error shows; a longer one is not shown. A guess."""


@dataclass(frozen=True, slots=True)
class GuardedEntry:
    """An entry of a project's config that acts: it names an endpoint, command, store or sandbox.

    It holds the values as they were read, so that what is checked is what is used.
    """

    key: Key
    file: Path
    project: str
    """Directory by which the project is known."""

    values: Mapping[str, Any] = field(repr=False)
    """All that decides what it does; a change in it asks anew."""

    acting: frozenset[str]
    """The fields of `values` that are dangerous by themselves."""

    @property
    def digest(self) -> str:
        """Return the sha256 over its values, in hex."""
        return _digest(self.values)

    @property
    def name(self) -> str:
        """Return its dotted key, safe for a terminal."""
        return one_line_preview(_printable(format_key(self.key)), _MAX_TEXT_CHARS)

    @property
    def public_values(self) -> dict[str, object]:
        """Return its values with their secrets hidden."""
        public = {name: redact_setting(name, value) for name, value in self.values.items()}
        if self.key[0] == "mcp" and "url" in public:
            parts = urlsplit(str(public["url"]))  # there a token often stands in the path
            public["url"] = f"{parts.scheme}://{parts.netloc}/{HIDDEN}"
        return public

    @property
    def texts(self) -> dict[str, str]:
        """Return its values as JSON without control characters, cut; secrets are hidden."""
        # What is that long is no endpoint; to look for secrets in it could take minutes.
        sizes = {name: len(json.dumps(value)) for name, value in self.values.items()}
        brief = {name: value for name, value in self.values.items() if sizes[name] <= _MAX_CHARS}
        public = replace(self, values=brief).public_values
        return {
            name: one_line_preview(json.dumps(public[name]), _MAX_TEXT_CHARS)
            if name in public
            else f"of {size} characters"
            for name, size in sizes.items()
        }

    @property
    def action(self) -> str:
        """Return what it would do, on one line; secrets are hidden."""
        named = ", ".join(f"{_printable(name)} {text}" for name, text in self.texts.items())
        return f"{_ACTION[self.key[0]]} by {self.name}: {one_line_preview(named, _MAX_CHARS)}"

    def state(self) -> TrustState:
        """Return whether the user trusts it as it is.

        Raises:
            ConfigError: The file of trust cannot be read.
        """
        pin = self._pin()
        if pin is None:
            return "not trusted"
        return "trusted" if pin.get("digest") == self.digest else "changed"

    def check(self) -> None:
        """Refuse it unless the user trusts it as it is.

        Raises:
            UntrustedConfig: It is not trusted, or was changed since.
            ConfigError: The file of trust cannot be read.
        """
        if self.state() != "trusted":
            raise UntrustedConfig(
                f"{_printable(str(self.file))} is the config of a project and would "
                f"{self.action}. {self.why()}; nothing was sent or started. To look at it and "
                "allow it: rath config trust. To go without it, name a home of your own: "
                f"OPENRATH_HOME=~/{USER_DIR_NAME}",
                file=str(self.file),
                key=format_key(self.key),
            )

    def why(self) -> str:
        """Return why it is not trusted: nobody said so, or what has changed since."""
        changes = self.changes()
        if not changes:
            return "You have not trusted it"
        return one_line_preview(
            f"It was changed since you trusted it: {'; '.join(changes)}", _MAX_CHARS
        )

    def changes(self) -> list[str]:
        """Return how its values differ from those that were trusted; empty where none were."""
        pin = self._pin() or {}
        digests, before, texts = _table(pin.get("digests")), _table(pin.get("texts")), self.texts
        if not digests or pin.get("digest") == self.digest:
            return []
        found: list[str] = []
        for name in sorted({*digests, *texts}):
            was, now = _printable(str(before.get(name))), texts.get(name)
            if now is None:
                found.append(f"{name} is gone")
            elif name not in digests:
                found.append(f"{name} {now} is new")
            elif digests[name] != _digest(self.values[name]):
                is_seen = was != now  # a secret looks like any other
                found.append(
                    f"{name} was {was} and is {now}" if is_seen else f"{name} is another one"
                )
        return [_printable(change) for change in found]

    def is_inherited(self, before: Mapping[str, Any]) -> bool:
        """Return whether any value that acts is the one that the entry had `before`."""
        return any(self.values[name] == before.get(name) for name in self.acting)

    def _pin(self) -> dict[str, Any] | None:
        try:
            found: object = read_file(_path())
        except FileNotFoundError:
            return None  # a user without a home has trusted nothing
        for part in ("trusted", self.project, format_key(self.key)):
            found = _table(found).get(part)
        return _table(found) or None


def belongs_to_project(store: ConfigStore) -> bool:
    """Return whether a config is a project's, in whatever directory, and not the user's own."""
    # What was found as the project's stays it, also where the program goes elsewhere.
    return store.is_project_local or is_of_some_project(store.path.parent)


def project_of(store: ConfigStore) -> str:
    """Return the directory by which a project is known, that of its config."""
    return os.path.realpath(store.path.parent)


def guarded_entries(store: ConfigStore) -> list[GuardedEntry]:
    """Return the entries of a project's config that act; the user's own config has none."""
    if not belongs_to_project(store):
        return []
    found = (_guarded(store, key, values) for key, values in entry_values(store.config).items())
    return [entry for entry in found if entry is not None]


def entry_values(config: RathConfig) -> dict[Key, dict[str, Any]]:
    """Return what each entry of a config says, by its key; what is blank is left out."""
    keys: list[Key] = [
        (section, table, name)
        for section, table in _TABLES.items()
        for name in getattr(getattr(config, section), table)
    ]
    found = {key: _values_at(config, key) for key in [*keys, ("sessions", "store")]}
    return {key: values for key, values in found.items() if values}


def untrusted_entries(stores: Iterable[ConfigStore]) -> list[GuardedEntry]:
    """Return the entries of configs that act and that the user has not trusted as they are.

    Raises:
        ConfigError: The file of trust cannot be read.
    """
    entries = [entry for store in stores for entry in guarded_entries(store)]
    return [entry for entry in entries if entry.state() != "trusted"]


def guarded_entry(store: ConfigStore, *key: str) -> GuardedEntry | None:
    """Return an entry of a config if it is a project's and acts, else None.

    What the program itself has put into the config, and no file, is the program's own.

    Args:
        store: The config.
        key: `section, table, name`, or `"sessions", "store"`.
    """
    values = _values_at(store.config, key) if belongs_to_project(store) else {}
    found = _guarded(store, key, values) if values else None
    if found is None or values == store.values_read.get(key):
        return found
    return found if found.is_inherited(store.values_read.get(key, {})) else None


def check_trusted(store: ConfigStore, *key: str, given: Collection[str] = ()) -> None:
    """Refuse an entry of a project's config that acts and that the user has not trusted.

    Args:
        store: The config.
        key: As for `guarded_entry`.
        given: Fields that are not taken from the entry.

    Raises:
        UntrustedConfig: It is not trusted, or was changed since.
        ConfigError: The file of trust cannot be read.
    """
    found = guarded_entry(store, *key)
    if found is not None and not found.acting <= set(given):
        found.check()


def trust_entries(entries: Iterable[GuardedEntry]) -> None:
    """Trust entries as they are.

    Raises:
        ConfigError: The file of trust cannot be read or changed.
        OSError: It cannot be written.
    """
    pins = [(entry.project, format_key(entry.key), _pin_of(entry)) for entry in entries]

    def add(payload: dict[str, Any]) -> None:
        known = _pins_by_project(payload)
        for project, key, pin in pins:
            known.setdefault(project, {})[key] = pin

    if pins:
        change_file(_path(), add)


def revoke_trust(project: str, keys: Collection[str] | None = None) -> list[str]:
    """Trust entries of a project no longer, and return the keys of those that were trusted.

    Args:
        project: Its directory, as `project_of` returns it.
        keys: Dotted keys; all by default.

    Raises:
        ConfigError: The file of trust cannot be read or changed.
        OSError: It cannot be written.
    """
    gone: list[str] = []

    def take_away(payload: dict[str, Any]) -> None:
        projects = _pins_by_project(payload)
        pins = projects.get(project, {})
        gone.extend(key for key in list(pins) if keys is None or key in keys)
        for key in gone:
            del pins[key]
        if not pins:
            projects.pop(project, None)

    change_file(_path(), take_away)
    return gone


def pin_written(store: ConfigStore) -> None:
    """Trust what this program wrote into a project's config, and forget what it took away.

    An entry of somebody else stays untrusted as long as anything that acts in it is still his.

    Args:
        store: The config as it was written; its `values_read` are those from before.

    Raises:
        ConfigError: The file of trust cannot be read or changed.
        OSError: It cannot be written.
    """
    written: list[GuardedEntry] = []
    for entry in guarded_entries(store):
        before = store.values_read.get(entry.key, {})
        earlier = _guarded(store, entry.key, before) if before else None
        was_trusted = earlier is not None and earlier.state() == "trusted"
        if was_trusted or not entry.is_inherited(before):
            written.append(entry)
    trust_entries(written)
    gone = store.values_read.keys() - entry_values(store.config).keys()
    if gone and belongs_to_project(store):
        revoke_trust(project_of(store), {format_key(key) for key in gone})


_TABLES = {"llm": "providers", "memory": "providers", "backend": "providers", "mcp": "servers"}
"""For each section the table of its entries."""

_Values = tuple[Mapping[str, Any], Collection[str]]
"""All that decides what an entry does, and the fields that act by themselves."""


def _guarded(store: ConfigStore, key: Key, given: Mapping[str, Any]) -> GuardedEntry | None:
    values, acting = _VALUES[key[0]](given, _root(store))
    if not acting:
        return None
    return GuardedEntry(key, store.path, project_of(store), values, frozenset(acting))


def _llm(given: Mapping[str, Any], _: Path) -> _Values:
    kind = given.get("provider_kind")
    is_free = kind in _VENDORS or (kind == "local" and "model" not in given)
    named = ["provider_kind", "base_url", "api_key"]
    values = {name: given[name] for name in [*named, *([] if is_free else ["model"])]
              if name in given}  # fmt: skip
    return values, values.keys() - ({"provider_kind"} if is_free else set())


def _memory(given: Mapping[str, Any], root: Path) -> _Values:
    if given.get("backend_kind") != "local":
        return given, given.keys()
    harmless = set(_LOCAL_MEMORY)
    if _is_inside(str(given.get("path", "")), root):
        harmless.add("path")
    return given, given.keys() - harmless


def _backend(given: Mapping[str, Any], _: Path) -> _Values:
    return given, given.keys() - {"backend_kind"}


def _sessions(given: Mapping[str, Any], root: Path) -> _Values:
    url = str(given["store"])
    scheme, separator, _ = url.partition("://")
    path = url
    if separator:
        parts = urlsplit(url)
        path = "" if scheme.lower() != "files" or parts.netloc else unquote(parts.path)
    return given, () if path and _is_inside(path, root) else given.keys()


def _mcp(given: Mapping[str, Any], _: Path) -> _Values:
    return given, given.keys()


_VALUES: Mapping[str, Callable[[Mapping[str, Any], Path], _Values]] = {
    "llm": _llm, "memory": _memory, "backend": _backend, "sessions": _sessions, "mcp": _mcp,
}  # fmt: skip


def _root(store: ConfigStore) -> Path:
    """Return the directory that a project may use without a word."""
    directory = store.path.parent
    return Path(os.path.realpath(os.curdir if is_project_local(directory) else directory.parent))


def _is_inside(path: str, root: Path) -> bool:
    try:
        return Path(os.path.realpath(Path(path).expanduser())).is_relative_to(root)
    except (OSError, RuntimeError, ValueError):
        return False


def _is_blank(value: object) -> bool:
    return value is None or value in ("", [], {}) or (isinstance(value, str) and not value.strip())


def _values_at(config: RathConfig, key: Key) -> dict[str, Any]:
    """Return what an entry says, without what is blank; empty where there is no entry."""
    entry: object = config
    for part in key:
        is_table = isinstance(entry, Mapping)
        table = cast("Mapping[str, object]", entry) if is_table else vars(entry)
        entry = table.get(part)
    dumped = entry.model_dump(mode="json") if isinstance(entry, BaseModel) else {key[-1]: entry}
    return {name: value for name, value in dumped.items() if not _is_blank(value)}


def _pin_of(entry: GuardedEntry) -> dict[str, Any]:
    return {
        "digest": entry.digest,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "digests": {name: _digest(value) for name, value in entry.values.items()},
        "texts": entry.texts,
    }


def _pins_by_project(payload: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the pins to change; what was edited into another shape counts as none."""
    pins = {project: _table(each) for project, each in _table(payload.get("trusted")).items()}
    payload["trusted"] = pins
    return pins


def _table(value: object) -> dict[str, Any]:
    """Return a table of the file of trust, which is the user's own and may have any shape."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _path() -> Path:
    return own_config_dir() / TRUST_FILENAME


def _digest(value: object) -> str:
    return sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _printable(text: str) -> str:
    """Return a text in which no character moves the cursor or turns the reading direction."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )
