"""`rath config trust`: allow what a project's config names, after showing what it would do."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from rath.cli.layout import number
from rath.cli.mcp_trust import entry_lines, measured
from rath.cli.terminal import Misuse, Problem, ask_yes_no, note, say, say_json, visible
from rath.config.paths import config_layer_paths
from rath.config.secrets import looks_secret
from rath.config.store import ConfigStore
from rath.config.trust import (
    GuardedEntry,
    belongs_to_project,
    guarded_entries,
    project_of,
    revoke_trust,
    trust_entries,
    untrusted_entries,
)
from rath.errors import ConfigError, ManifestVersionError
from rath.mcp.configured import configured_server

__all__ = ["FileTrust", "entry_as_json", "note_untrusted", "trust", "trust_of"]

FileTrust = Literal["own", "harmless", "trusted", "not trusted"]
"""A config of one's own needs no word, nor does one of a project that names nothing that acts."""


def trust(
    is_agreed: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    is_revoked: Annotated[
        bool, typer.Option("--revoke", help="Trust the config of this directory no longer.")
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Write JSON, for programs; without --yes nothing is changed."),
    ] = False,
) -> None:
    """Allow the endpoints, commands, stores and sandboxes that the project's config names.

    They are shown first. A changed entry asks anew.
    """
    if is_agreed and is_revoked:
        raise Misuse("--revoke asks nothing, so it goes without --yes")
    store = ConfigStore.load(config_layer_paths()[0])
    if is_revoked:
        _revoke(store, as_json=as_json)
        return
    entries = guarded_entries(store)
    waiting = untrusted_entries([store])
    if as_json:
        # What is trusted is what was read, also where the file has been changed meanwhile.
        trust_entries(waiting if is_agreed else ())
        _say_json(store, entries)
    elif not belongs_to_project(store):
        note(f"{store.path} is your own config, so it needs no trust")
    elif not entries:
        note(f"{store.path} names nothing that acts, so it needs no trust")
    else:
        _ask(store, entries, waiting, is_agreed=is_agreed)


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


def note_untrusted(entries: Sequence[GuardedEntry]) -> None:
    """Tell what is not used, and what to do about it."""
    for entry in entries:
        is_new = entry.state() == "not trusted"
        state = "is not trusted" if is_new else "has changed since you trusted it"
        note(f"{entry.name} of {visible(str(entry.file), but='')} {state}, so it is not used")
    if entries:
        note("to look at it and allow it: rath config trust")


def entry_as_json(entry: GuardedEntry) -> dict[str, Any]:
    """Return an entry for programs; its secrets are hidden."""
    return {
        "key": entry.name,
        "file": str(entry.file),
        "trust": entry.state(),
        "values": entry.public_values,
        "changes": entry.changes(),
    }


def _ask(
    store: ConfigStore,
    entries: Sequence[GuardedEntry],
    waiting: Sequence[GuardedEntry],
    *,
    is_agreed: bool,
) -> None:
    say(f"{visible(str(store.path), but='')}, the config of a project")
    for entry in entries:
        for line in _lines(store, entry):
            say(visible(line, but=""))
    if not waiting:
        note("you have trusted all of it before")
        return
    count = number(len(waiting), "setting")
    if not is_agreed and not ask_yes_no(f"Trust {count}?"):
        raise Problem(f"{store.path} is not trusted; nothing is changed")
    trust_entries(waiting)
    say(f"{count} trusted")


def _lines(store: ConfigStore, entry: GuardedEntry) -> Iterator[str]:
    """Say all that an entry does; what was hidden could not be judged."""
    state = entry.state()
    if entry.key[0] == "mcp":
        first, *more = entry_lines(configured_server(entry.key[2], store=store))
        yield f"{entry.name}: {state}: {first}"
        yield from more
    else:
        yield f"{entry.name}: {state}"
        for name, value in entry.public_values.items():
            secret = entry.values[name] if looks_secret(name) else None
            # In ASCII: letters of another script look like those of a well-known host.
            text = measured(secret) if isinstance(secret, str) else json.dumps(value)
            yield f"  {name:<13} {text}"
    yield from (f"  changed: {change}" for change in entry.changes())


def _revoke(store: ConfigStore, *, as_json: bool) -> None:
    gone = revoke_trust(project_of(store))
    if as_json:
        _say_json(store, guarded_entries(store))
        return
    count = number(len(gone), "setting")
    say(f"{count} trusted no longer" if gone else f"{store.path} was not trusted")


def _say_json(store: ConfigStore, entries: Sequence[GuardedEntry]) -> None:
    told = [entry_as_json(entry) for entry in entries]
    say_json({"file": str(store.path), "trust": trust_of(store.path), "entries": told})
