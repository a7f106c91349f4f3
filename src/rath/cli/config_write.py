"""`rath config set` and `rath config unset`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from rath._core.text import did_you_mean
from rath.cli.config_trust import note_untrusted
from rath.cli.endpoint import endpoint_problem, needs_own_key
from rath.cli.settings import Settings, as_text, read_settings
from rath.cli.target import ForProject, target_path
from rath.cli.terminal import Misuse, Problem, ask_secret, note, say, warn
from rath.config.credentials import CREDENTIALS_FILENAME, SECRET_SECTIONS
from rath.config.keys import (
    assign,
    format_key,
    is_known,
    is_table,
    near_key,
    parse_key,
    parse_value,
    remove,
)
from rath.config.secrets import HIDDEN, looks_secret, shown
from rath.config.store import ConfigStore
from rath.errors import ConfigConflict, ConfigError
from rath.llm.provider import Provider
from rath.llm.registry import registered_kinds

__all__ = ["set_value", "unknown_key", "unset"]

Key = Annotated[str, typer.Argument(metavar="KEY", help="Such as llm.providers.main.model.")]

_ENTRY_DEPTH = 3
"""Parts of the key of a named entry, as in `llm.providers.main`."""


def set_value(
    key: Key,
    value: Annotated[
        str | None,
        typer.Argument(
            metavar="[VALUE]", help="With - it is read from stdin; a secret is asked for, hidden."
        ),
    ] = None,
    for_project: ForProject = None,
    force: Annotated[
        bool, typer.Option("--force", help="Also a key or a kind that rath does not know.")
    ] = False,
) -> None:
    """Set one value. Keys for models go to credentials.json, which only you can read."""
    parts = _parsed(key)
    if not force and not is_known(parts):
        raise Misuse(f"{unknown_key(parts)}\nTo set it all the same: rath config set --force")
    if parts == ("version",):
        raise Misuse("version is that of the file, and set by rath")
    is_secret = _is_secret(parts)
    text = _given(format_key(parts), value, is_secret=is_secret)
    if not force:
        _check(parts, text)
    try:
        parsed = parse_value(parts, text)
        _check_number(parts, parsed)
        store = _changed(target_path(for_project), lambda it: assign(it.config, parts, parsed))
    except ValueError as exc:
        raise Misuse(str(exc)) from None
    said = HIDDEN if is_secret else as_text(shown(parts[-1], parsed))
    say(f"{format_key(parts)} = {said}, in {_file_of(parts, store.path)}")
    settings = read_settings()
    if not settings.problems:
        _tell_what_counts(parts, store, settings)
        _tell_what_lacks(parts, store, settings)
    written = {format_key(parts[:depth]) for depth in range(1, len(parts) + 1)}
    note_untrusted([each for each in settings.untrusted if format_key(each.key) in written])


def unset(
    key: Key,
    for_project: ForProject = None,
) -> None:
    """Take away one value, or a whole entry such as llm.providers.main with its key."""
    parts = _parsed(key)
    if is_known(parts) and is_table(parts) and len(parts) < _ENTRY_DEPTH:
        raise Misuse(f"{key} holds many values; name one of them, or an entry in it")
    store = _changed(target_path(for_project), lambda it: _remove(it, parts))
    say(f"{format_key(parts)} is gone from {_file_of(parts, store.path)}")
    llm = store.config.llm
    if parts == ("llm", "providers", llm.default_provider):
        note("llm.default_provider still names it: rath config unset llm.default_provider")


def unknown_key(parts: Sequence[str], *others: str) -> str:
    """Return what to say of a key that is neither in the schema nor one of `others`."""
    near = near_key(parts)
    hint = f" Did you mean {near!r}?" if near else did_you_mean(format_key(parts), others)
    return f"no key {format_key(parts)!r}.{hint}"


def _parsed(key: str) -> tuple[str, ...]:
    try:
        return parse_key(key)
    except ValueError as exc:
        raise Misuse(str(exc)) from None


def _given(key: str, value: str | None, *, is_secret: bool) -> str:
    """Return the value to set, read from where it was pointed to."""
    if value is not None and value != "-":
        if is_secret:
            warn(
                "what is typed here stays in the shell's history; next time: "
                f"rath config set {key} -"
            )
        return value
    if is_secret:
        text = ask_secret(f"{key} (hidden)")
    elif value == "-":
        text = sys.stdin.read().strip()
    else:
        raise Misuse(f"no value for {key}; to take it away: rath config unset {key}")
    if not text:
        raise Problem(f"nothing was given for {key}, so nothing is written")
    return text


def _check(parts: Sequence[str], text: str) -> None:
    """Refuse what the schema takes and no model endpoint does."""
    if parts[:2] != ("llm", "providers"):
        return
    problem = endpoint_problem(text) if parts[-1] == "base_url" else None
    if problem is not None:
        raise Misuse(problem)
    kinds = registered_kinds()
    if parts[-1] == "provider_kind" and text not in kinds:
        raise Misuse(
            f"no provider kind {text!r}.{did_you_mean(text, kinds)} Known: {', '.join(kinds)}. For "
            "one that a program registers itself: --force"
        )


def _check_number(parts: Sequence[str], value: object) -> None:
    """Refuse what no provider takes.

    Raises:
        ValueError: The text says what is expected.
    """
    if parts[:2] == ("llm", "providers") and isinstance(value, int | float):
        named: dict[str, Any] = {parts[-1]: value}
        if parts[-1] in {field.name for field in fields(Provider)}:
            Provider(**named)


def _remove(store: ConfigStore, parts: Sequence[str]) -> None:
    if remove(store.config, parts):
        return
    if not is_known(parts):
        raise Misuse(unknown_key(parts))
    found = read_settings().at(format_key(parts))
    elsewhere = f"; it comes from: {found.origin}" if found else ""
    raise Problem(f"{format_key(parts)} is not set in {store.path}{elsewhere}")


def _changed(path: Path, change: Callable[[ConfigStore], None]) -> ConfigStore:
    """Return the config after a change, which is made anew where another process came between."""
    while True:
        store = ConfigStore(path)
        change(store)
        try:
            store.save()
        except ConfigConflict:
            continue
        except ConfigError as exc:
            raise Problem(f"nothing is written: {exc}") from None
        return store


def _is_secret(parts: Sequence[str]) -> bool:
    return any(looks_secret(part) for part in parts[_ENTRY_DEPTH:] or parts[-1:])


def _file_of(parts: Sequence[str], path: Path) -> Path:
    """Return the file that a value is written to."""
    is_key = len(parts) == _ENTRY_DEPTH + 1 and parts[-1] == "api_key"
    is_apart = is_key and parts[0] in SECRET_SECTIONS
    return path.with_name(CREDENTIALS_FILENAME) if is_apart else path


def _tell_what_counts(parts: Sequence[str], store: ConfigStore, settings: Settings) -> None:
    """Say so when another config hides what was written."""
    own = {f"config {_file_of(parts, store.path)}", f"config {store.path}"}
    found = settings.at(format_key(parts))
    beside = settings.under(format_key(parts[:_ENTRY_DEPTH]))
    origins = [found.origin] if found else [each.origin for each in beside]
    others = [origin for origin in origins if origin.startswith("config ")]
    if others and own.isdisjoint(others):
        note(f"it does not count in this directory, where {others[0][7:]} comes first")


def _tell_what_lacks(parts: Sequence[str], store: ConfigStore, settings: Settings) -> None:
    """Say what else a model endpoint needs before it is of use."""
    llm = store.config.llm
    if parts == ("llm", "default_provider"):
        wanted = llm.default_provider or ""
        if not settings.under(format_key(("llm", "providers", wanted))):
            note(f"no config has a provider {wanted!r} yet")
    if len(parts) <= _ENTRY_DEPTH or parts[:2] != ("llm", "providers"):
        return
    name = parts[2]
    if parts[-1] == "base_url" and store.is_project_local and not llm.providers[name].api_key:
        note(needs_own_key(name))
    if settings.at("llm.default_provider") is None:
        note(f"no provider is the default yet: rath config set llm.default_provider {name}")
