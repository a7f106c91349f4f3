"""Checks of `rath doctor` on the config files: readable, valid, private, and true to each other."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import TypeAlias, cast

from pydantic import ValidationError

from rath._core.dataclasses import dataclass
from rath._core.text import did_you_mean
from rath.cli.render import CheckFinding, Fix, Level
from rath.cli.settings import all_places
from rath.config.credentials import CREDENTIALS_FILENAME, secrets_from_config
from rath.config.keys import format_key, is_known, near_key
from rath.config.manifest import MANIFEST_FILENAME, check_manifest, read_manifest
from rath.config.redaction import looks_secret
from rath.config.schema import SCHEMA_VERSION, RathConfig
from rath.config.store import ConfigStore
from rath.config.trust import untrusted_entries
from rath.errors import ConfigError, ManifestVersionError
from rath.llm.credentials import SALT_FILENAME

Key: TypeAlias = tuple[str | int, ...]
Position: TypeAlias = tuple[int, int]
"""Line and column, both from 1."""

Table: TypeAlias = Mapping[str, object]

_GROUP = "Config"
_DEFAULTS = {
    "llm": ("default_provider", "embedding_provider", "vlm_provider"),
    "memory": ("default_provider",),
    "backend": ("default_provider",),
}
"""For each section the fields that name an entry of it."""

_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_SPACE = re.compile(r"[ \t\n\r]*")


def check_configs() -> Iterator[CheckFinding]:
    """Yield what is found in every config that counts here, and in the files beside it."""
    try:
        places = all_places()
    except OSError as exc:
        yield CheckFinding(_GROUP, "place", "problem", str(exc))
        return
    configs = [_CheckedFile(place.role, place.file) for place in places]
    for config in configs:
        config.read()
    for config in configs:
        if config.payload is not None:
            _check_content(config, config.payload, configs)
        _check_neighbours(config)
        try:
            for entry in untrusted_entries([ConfigStore.load(config.path)]):
                text = f"it is not used: {entry.why()}"
                config.add("warning", text, "rath config trust", key=entry.key)
        except (ConfigError, ManifestVersionError, OSError):
            pass  # what is wrong with the file is told by itself
        if not config.findings:
            is_there = config.payload is not None
            config.add(*(("ok", "is valid") if is_there else ("note", "is not there")))
        yield from config.findings


@dataclass(slots=True)
class _CheckedFile:
    """Reads a file as a JSON object; what is wrong is a finding with its place."""

    subject: str
    path: Path
    findings: list[CheckFinding] = field(default_factory=list[CheckFinding])
    payload: Table | None = None
    """None where it is missing or cannot be used."""

    places: Mapping[Key, Position] = field(default_factory=dict[Key, Position])

    def add(
        self,
        level: Level,
        text: str,
        advice: str = "",
        *,
        key: Sequence[str | int] = (),
        place: Position | None = None,
        fix: Fix | None = None,
    ) -> None:
        """Add a finding about the file, or about what stands in it at a key or a place."""
        place = place or place_in(self.places, key)
        details: dict[str, object] = {"file": str(self.path)}
        where = str(self.path)
        if place is not None:
            line, column = place
            details |= {"line": line, "column": column}
            where = f"{where}:{line}:{column}"
        if key:
            dotted = format_key(map(str, key))
            details["key"] = dotted
            text = f"{dotted}: {text}"
        text = f"{where}: {text}"
        found = CheckFinding(_GROUP, self.subject, level, text, advice, details, fix)
        self.findings.append(found)

    def read(self) -> None:
        """Read the file; a missing one is left out."""
        try:
            text = self.path.read_text(encoding="utf-8-sig")
            payload: object = json.loads(text)
            self.places = places_of(text)
        except FileNotFoundError:
            return
        except json.JSONDecodeError as exc:
            advice = "correct it there; nothing in this file counts until then"
            self.add(
                "problem", f"is not valid JSON: {exc.msg}", advice, place=(exc.lineno, exc.colno)
            )
        except RecursionError:
            self.add("problem", "is nested too deeply to be read")
        except (OSError, UnicodeDecodeError) as exc:
            self.add("problem", f"cannot be read: {exc}", "it must be a JSON file in UTF-8")
        else:
            if isinstance(payload, dict):
                self.payload = cast("Table", payload)
                return
            found = type(payload).__name__
            self.add("problem", f"must hold a JSON object, not {found}", 'it begins with a "{"')

    def check_private(self) -> None:
        """Find out whether other users of the machine can reach the secrets in the file."""
        if os.name != "posix":
            return
        try:
            mode = stat.S_IMODE(self.path.stat().st_mode)
        except OSError:
            return
        if mode & _OTHERS:
            text = f"has permissions {mode:o}, so other users can reach the secrets in it"
            fix = Fix(f"make {self.path} private", partial(self.path.chmod, 0o600))
            self.add("problem", text, f"chmod 600 {self.path}", fix=fix)


def _check_content(config: _CheckedFile, payload: Table, configs: Sequence[_CheckedFile]) -> None:
    try:
        RathConfig.model_validate(payload)
    except ValidationError as exc:
        for problem in exc.errors(include_url=False, include_input=False, include_context=False):
            config.add("problem", problem["msg"], key=problem["loc"])
    for key in _find_keys(payload, lambda key, _: not is_known(key)):
        near = near_key(key)
        if near is not None or len(key) > 1:  # else it is a section of somebody else
            hint = f" Did you mean {near!r}?" if near else ""
            advice = f"to take it away: rath config unset {format_key(key)}"
            config.add("warning", f"rath knows no such key.{hint}", advice, key=key)
    for place, section, name in _references(payload):
        # The servers that a config turns on are its own.
        looked_at = [config] if section == "mcp" else configs
        known = [other for each in looked_at for other in _entries(each.payload or {}, section)]
        if name not in known:
            advice = f"known: {', '.join(dict.fromkeys(known))}" if known else ""
            text = f"there is no {name!r}.{did_you_mean(name, known)}"
            config.add("problem", text, advice, key=place)
    version = payload.get("version")
    if isinstance(version, int) and version > SCHEMA_VERSION:
        text = f"{version} is newer than {SCHEMA_VERSION}, which this rath knows"
        config.add("warning", text, "upgrade rath", key=["version"])
    secrets = [*_find_keys(payload, lambda key, value: looks_secret(key[-1]) and bool(value))]
    if secrets:
        config.check_private()
    for key in secrets:
        if key[-1] == "api_key":
            advice = f"move it to {CREDENTIALS_FILENAME}: rath config set {format_key(key)} -"
            fix = Fix(f"move it to {CREDENTIALS_FILENAME}", partial(_move_keys, config.path))
            config.add("warning", "a key stands in the config itself", advice, key=key, fix=fix)


def _move_keys(path: Path) -> None:
    """Write a config anew, which puts its keys into the file beside it."""
    ConfigStore(path).save()


def _find_keys(
    table: Table, is_wanted: Callable[[tuple[str, ...], object], bool], above: tuple[str, ...] = ()
) -> Iterator[tuple[str, ...]]:
    """Yield the keys of the values that are wanted; in these it does not look."""
    for name, value in table.items():
        key = (*above, name)
        if is_wanted(key, value):
            yield key
        else:
            yield from _find_keys(_table(value), is_wanted, key)


def _references(payload: Table) -> Iterator[tuple[Key, str, str]]:
    """Give each name of an entry: where it stands, the section of that entry, and the name."""
    found: list[tuple[Key, str, object]] = [
        ((section, field), section, _table(payload.get(section)).get(field))
        for section, fields in _DEFAULTS.items()
        for field in fields
    ]
    found += [
        (("memory", "providers", entry, field), "llm", _table(body).get(field))
        for entry, body in _entries(payload, "memory").items()
        for field in ("embedding_provider", "chat_provider")
    ]
    enabled = _table(payload.get("mcp")).get("default_enabled")
    if isinstance(enabled, list):
        servers = enumerate(cast("list[object]", enabled))
        found += [(("mcp", "default_enabled", number), "mcp", name) for number, name in servers]
    for key, section, name in found:
        if isinstance(name, str) and name:
            yield key, section, name


def _check_neighbours(config: _CheckedFile) -> None:
    """Check the files beside a config."""
    keys, salt, manifest = (
        _CheckedFile(config.subject, config.path.with_name(name))
        for name in (CREDENTIALS_FILENAME, SALT_FILENAME, MANIFEST_FILENAME)
    )
    keys.read()
    keys.check_private()
    for section, name in secrets_from_config(dict(keys.payload or {})):
        known = list(_entries(config.payload or {}, section))
        if name not in known:
            near = did_you_mean(name, known)
            text = f"a key for {name!r}, which is no entry of {section}.providers.{near}"
            keys.add("warning", text, key=[section, "providers", name])
    salt.check_private()
    try:
        check_manifest(manifest.path.parent)
        if manifest.path.exists() and read_manifest(manifest.path.parent) is None:
            manifest.add("warning", "is damaged; the next change of the config writes it anew")
    except ManifestVersionError as exc:
        manifest.findings.append(CheckFinding(_GROUP, config.subject, "problem", str(exc)))
    except OSError as exc:
        manifest.add("problem", f"cannot be read: {exc.strerror or exc}")
    config.findings += keys.findings + salt.findings + manifest.findings


def _entries(payload: Table, section: str) -> Table:
    return _table(_table(payload.get(section)).get("servers" if section == "mcp" else "providers"))


def _table(value: object) -> Table:
    return cast("Table", value) if isinstance(value, dict) else {}


def places_of(text: str) -> dict[Key, Position]:
    """Return for everything inside a JSON text where it begins: a member with its name.

    Raises:
        ValueError: It is no JSON text.
    """
    found: dict[Key, int] = {}
    decoder = json.JSONDecoder()

    def after_space(at: int) -> int:
        space = _SPACE.match(text, at)
        return at if space is None else space.end()

    def walk(at: int, key: Key) -> int:
        """Find what is inside the value that begins at `at`, and return where it ends."""
        is_object = text.startswith("{", at)
        if not is_object and not text.startswith("[", at):
            return decoder.raw_decode(text, at)[1]
        at, number = after_space(at + 1), 0
        while not text.startswith("}" if is_object else "]", at):
            inner: Key = (*key, number)
            begin = at
            if is_object:
                name, at = decoder.raw_decode(text, at)
                inner = (*key, str(name))
                at = after_space(after_space(at) + 1)  # behind the colon
            found[inner] = begin
            at = after_space(walk(at, inner))
            at = after_space(at + 1) if text.startswith(",", at) else at
            number += 1
        return at + 1

    walk(after_space(0), ())
    return {
        key: (text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at))
        for key, at in found.items()
    }


def place_in(places: Mapping[Key, Position], key: Sequence[str | int]) -> Position | None:
    """Return where something stands or, where it is missing, what it is missing in."""
    above = (tuple(key[:depth]) for depth in range(len(key), 0, -1))
    return next((places[each] for each in above if each in places), None)
