"""What `rath doctor` says of the config files: readable, valid, private, and true to each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

from pydantic import ValidationError

from rath._core.text import did_you_mean
from rath.cli.checked_file import CheckedFile, Key, Table
from rath.cli.findings import Finding
from rath.cli.target import all_places
from rath.config.credentials import CREDENTIALS_FILENAME, SECRET_SECTIONS, secrets_from_config
from rath.config.keys import format_key, is_known, near_key
from rath.config.manifest import MANIFEST_FILENAME, check_manifest, read_manifest
from rath.config.schema import SCHEMA_VERSION, RathConfig
from rath.config.secrets import looks_secret
from rath.config.store import ConfigStore
from rath.config.trust import untrusted_entries
from rath.errors import ConfigError, ManifestVersionError
from rath.llm.credentials import SALT_FILENAME

__all__ = ["check_configs"]

_GROUP = "Config"
_DEFAULTS = {
    "llm": ("default_provider", "embedding_provider", "vlm_provider"),
    "memory": ("default_provider",),
    "backend": ("default_provider",),
}
"""For each section what in it names an entry."""


def check_configs() -> list[Finding]:
    """Return what is found in every config that counts here, and in the files beside it."""
    try:
        places = all_places()
    except OSError as exc:
        return [Finding(_GROUP, "place", "problem", str(exc))]
    configs = [CheckedFile(_GROUP, place.role, place.file) for place in places]
    for config in configs:
        config.read()
    findings: list[Finding] = []
    for config in configs:
        if config.payload is not None:
            _check_content(config, config.payload, configs)
        _check_neighbours(config)
        _check_trust(config)
        if not config.findings:
            is_there = config.payload is not None
            config.add(*(("ok", "is valid") if is_there else ("note", "is not there")))
        findings += config.findings
    return findings


def _check_trust(config: CheckedFile) -> None:
    """Find what a project's config names and the user has not trusted."""
    try:
        for entry in untrusted_entries([ConfigStore.load(config.path)]):
            text = f"it is not used: {entry.why()}"
            config.add("warning", text, "rath config trust", key=entry.key)
    except (ConfigError, ManifestVersionError, OSError):
        return  # what is wrong with the file is told by itself


def _check_content(config: CheckedFile, payload: Table, configs: Sequence[CheckedFile]) -> None:
    try:
        RathConfig.model_validate(payload)
    except ValidationError as exc:
        for problem in exc.errors(include_url=False, include_input=False, include_context=False):
            config.add("problem", problem["msg"], key=problem["loc"])
    _check_unknown(config, payload)
    _check_references(config, payload, configs)
    version = payload.get("version")
    if isinstance(version, int) and version > SCHEMA_VERSION:
        text = f"{version} is newer than {SCHEMA_VERSION}, which this rath knows"
        config.add("warning", text, "upgrade rath", key=["version"])
    secrets = list(_secrets(payload, ()))
    if secrets:
        config.check_private()
    for key in secrets:
        if key[-1] == "api_key":
            advice = f"move it to {CREDENTIALS_FILENAME}: rath config set {format_key(key)} -"
            config.add("warning", "a key stands in the config itself", advice, key=key)


def _check_unknown(config: CheckedFile, payload: Table) -> None:
    for key in _unknown_keys(payload, ()):
        near = near_key(key)
        if near is None and len(key) == 1:
            continue  # a section of somebody else
        hint = f" Did you mean {near!r}?" if near else ""
        advice = f"to take it away: rath config unset {format_key(key)}"
        config.add("warning", f"rath knows no such key.{hint}", advice, key=key)


def _unknown_keys(table: Table, above: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for name, value in table.items():
        key = (*above, name)
        if not is_known(key):
            yield key
        elif isinstance(value, dict):
            yield from _unknown_keys(cast("Table", value), key)


def _secrets(table: Table, above: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Give the keys of what is probably secret."""
    for name, value in table.items():
        if looks_secret(name) and value:
            yield (*above, name)
        elif isinstance(value, dict):
            yield from _secrets(cast("Table", value), (*above, name))


def _check_references(config: CheckedFile, payload: Table, configs: Sequence[CheckedFile]) -> None:
    """Find names that stand for an entry which no config has."""
    for key, section, name in _references(payload):
        # The servers that a config turns on are its own.
        looked_at = [config] if section == "mcp" else configs
        known = [other for each in looked_at for other in _entries(each.payload or {}, section)]
        if name not in known:
            advice = f"known: {', '.join(dict.fromkeys(known))}" if known else ""
            text = f"there is no {name!r}.{did_you_mean(name, known)}"
            config.add("problem", text, advice, key=key)


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


def _check_neighbours(config: CheckedFile) -> None:
    """Check the files beside a config."""
    keys = _beside(config, CREDENTIALS_FILENAME)
    keys.read()
    keys.check_private()
    if keys.payload is not None:
        _check_strangers(keys, keys.payload, config.payload or {})
    salt = _beside(config, SALT_FILENAME)
    salt.check_private()
    manifest = _beside(config, MANIFEST_FILENAME)
    try:
        check_manifest(manifest.path.parent)
        if manifest.path.exists() and read_manifest(manifest.path.parent) is None:
            manifest.add("warning", "is damaged; the next change of the config writes it anew")
    except ManifestVersionError as exc:
        manifest.findings.append(Finding(_GROUP, config.subject, "problem", str(exc)))
    except OSError as exc:
        manifest.add("problem", f"cannot be read: {exc.strerror or exc}")
    config.findings += keys.findings + salt.findings + manifest.findings


def _beside(config: CheckedFile, name: str) -> CheckedFile:
    return CheckedFile(config.group, config.subject, config.path.with_name(name))


def _check_strangers(keys: CheckedFile, payload: Table, config: Table) -> None:
    """Find keys that belong to nobody."""
    entries = {section: list(_entries(config, section)) for section in SECRET_SECTIONS}
    for section, name in secrets_from_config(dict(payload)):
        if name not in entries[section]:
            near = did_you_mean(name, entries[section])
            text = f"a key for {name!r}, which is no entry of {section}.providers.{near}"
            keys.add("warning", text, key=[section, "providers", name])


def _entries(payload: Table, section: str) -> Table:
    return _table(_table(payload.get(section)).get("servers" if section == "mcp" else "providers"))


def _table(value: object) -> Table:
    return cast("Table", value) if isinstance(value, dict) else {}
