"""`rath config`: the configuration, seen, changed and trusted."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from rath._core.text import did_you_mean, visible
from rath.cli import terminal
from rath.cli.lists import Limit, TextFilter, page_of, say_page
from rath.cli.mcp import entry_lines, mask
from rath.cli.render import count_of, say_table
from rath.cli.settings import (
    ForProject,
    Setting,
    Settings,
    all_places,
    as_text,
    change_config,
    endpoint_problem,
    key_needed,
    key_problem,
    model_problem,
    read_settings,
    target_path,
    trust_of,
)
from rath.config import keys
from rath.config import trust as trusts
from rath.config.credentials import CREDENTIALS_FILENAME, SECRET_SECTIONS
from rath.config.env import all_env_specs
from rath.config.keys import format_key
from rath.config.paths import config_layer_paths
from rath.config.redaction import HIDDEN, looks_secret, redact_setting
from rath.config.store import ConfigStore
from rath.llm.provider import Provider
from rath.llm.registry import registered_kinds
from rath.mcp.configured import configured_server

Key = Annotated[str, typer.Argument(metavar="KEY", help="Such as llm.providers.main.model.")]
ShowOrigin = Annotated[
    bool, typer.Option("--show-origin", help="Say which file or variable a value comes from.")
]
_ENTRY_DEPTH = 3
"""Parts of the key of a named entry, as in `llm.providers.main`."""


def list_values(
    show_origin: ShowOrigin = False,
    text: TextFilter = None,
    limit: Limit = 0,
    as_json: terminal.AsJson = False,
) -> None:
    """List the values in effect: of the environment, the project and yourself.

    Secrets are hidden. What nobody sets is not listed.
    """
    settings = read_settings()
    nothing = "nothing is set; set up a model with: rath config init"
    say_page(
        page_of(settings.values, "value", text=text, limit=limit),
        "settings",
        lambda shown: _say_all(shown, show_origin),
        as_json=as_json,
        empty="" if settings.problems else "no value fits" if settings.values else nothing,
        facts={"untrusted": [_guarded_json(entry) for entry in settings.untrusted]},
    )
    if not as_json:
        _note_untrusted(settings.untrusted)
    _fail_on_problems(settings)


def get(
    key: Annotated[str, typer.Argument(metavar="KEY", help="As `rath config list` shows.")],
    show_origin: ShowOrigin = False,
    as_json: terminal.AsJson = False,
) -> None:
    """Show a value in effect, or all of a table; secrets are redacted."""
    settings = read_settings()
    parts = _parse_key(key)
    wanted = format_key(parts)
    found, inside = settings.at(wanted), settings.under(wanted)
    if found is None and not inside:
        _fail_on_problems(settings)
        variables = [spec.name for spec in all_env_specs()]
        if keys.is_known(parts) or wanted in variables:
            raise terminal.CommandError(f"{wanted} is not set")
        raise terminal.Misuse(_unknown_key(parts, *variables))
    if as_json:
        terminal.say_json(found or {"settings": inside})
    elif found is None:
        _say_all(inside, show_origin)
    elif show_origin:
        say_table([[as_text(found.value), found.origin]], ["", "dim"])
    else:
        terminal.say(as_text(found.value))
    _fail_on_problems(settings)


def path(as_json: terminal.AsJson = False) -> None:
    """List the config files by precedence, and which one is written to."""
    places = all_places()
    if as_json:
        terminal.say_json({"files": places})
        return
    rows: list[list[str]] = []
    for each in places:
        states = ["there" if each.exists else "not there"]
        states += ["keys beside it"] if each.has_keys else []
        states += ["written to"] if each.is_written else []
        states += [each.trust] if each.trust in ("trusted", "not trusted") else []
        rows.append([each.role, str(each.file), ", ".join(states)])
    say_table(rows, ["bold", "", ""])


def _say_all(settings: Sequence[Setting], show_origin: bool) -> None:
    n_columns = 3 if show_origin else 2
    rows = [[each.key, as_text(each.value), each.origin][:n_columns] for each in settings]
    say_table(rows, ["bold", "", "dim"][:n_columns])


def _fail_on_problems(settings: Settings) -> None:
    """End with status 1 after what could be told, where a config cannot be used."""
    for problem in settings.problems:
        terminal.complain(problem)
    if settings.problems:
        raise typer.Exit(1)


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
    """Set a value; keys of models go to credentials.json, for you alone."""
    parts = _parse_key(key)
    if not force and not keys.is_known(parts):
        raise terminal.Misuse(
            f"{_unknown_key(parts)}\nTo set it all the same: rath config set --force"
        )
    if parts == ("version",):
        raise terminal.Misuse("version is that of the file, and set by rath")
    is_secret = _is_secret(parts)
    text = _read_value(format_key(parts), value, is_secret=is_secret)
    if not force:
        _check(parts, text)
    with terminal.misuse_on(ValueError):
        parsed = keys.parse_value(parts, text)
        _check_number(parts, parsed)
        store = change_config(
            target_path(for_project), lambda it: keys.assign(it.config, parts, parsed)
        )
    value_text = HIDDEN if is_secret else as_text(redact_setting(parts[-1], parsed))
    terminal.say(f"{format_key(parts)} = {value_text}, in {_file_of(parts, store.path)}")
    settings = read_settings()
    if not settings.problems:
        _tell_what_counts(parts, store, settings)
        _tell_what_lacks(parts, store, settings)
    written = {format_key(parts[:depth]) for depth in range(1, len(parts) + 1)}
    _note_untrusted([each for each in settings.untrusted if format_key(each.key) in written])


def unset(
    key: Key,
    for_project: ForProject = None,
) -> None:
    """Remove a value, or an entry such as llm.providers.main with its key."""
    parts = _parse_key(key)
    if keys.is_known(parts) and keys.is_table(parts) and len(parts) < _ENTRY_DEPTH:
        raise terminal.Misuse(f"{key} holds many values; name one of them, or an entry in it")
    store = change_config(target_path(for_project), lambda it: _remove(it, parts))
    terminal.say(f"{format_key(parts)} is gone from {_file_of(parts, store.path)}")
    llm = store.config.llm
    if parts == ("llm", "providers", llm.default_provider):
        terminal.note("llm.default_provider still names it: rath config unset llm.default_provider")


def _unknown_key(parts: Sequence[str], *others: str) -> str:
    """Return what to say of a key that is neither in the schema nor one of `others`."""
    near = keys.near_key(parts)
    hint = f" Did you mean {near!r}?" if near else did_you_mean(format_key(parts), others)
    return f"no key {format_key(parts)!r}.{hint}"


def _parse_key(key: str) -> tuple[str, ...]:
    with terminal.misuse_on(ValueError):
        return keys.parse_key(key)


def _read_value(key: str, value: str | None, *, is_secret: bool) -> str:
    """Return the value to set, read from where it was pointed to."""
    if value is not None and value != "-":
        if is_secret:
            terminal.warn(
                "what is typed here stays in the shell's history; next time: "
                f"rath config set {key} -"
            )
        return value
    if is_secret:
        text = terminal.ask_secret(f"{key} (hidden)")
    elif value == "-":
        text = sys.stdin.read().strip()
    else:
        raise terminal.Misuse(f"no value for {key}; to take it away: rath config unset {key}")
    if not text:
        raise terminal.CommandError(f"nothing was given for {key}, so nothing is written")
    return text


def _check(parts: Sequence[str], text: str) -> None:
    """Refuse what the schema takes and no model endpoint does."""
    if parts[:2] != ("llm", "providers"):
        return
    checks: dict[str, Callable[[str], str | None]] = {
        "base_url": endpoint_problem, "model": model_problem, "api_key": key_problem,
    }  # fmt: skip
    check = checks.get(parts[-1])
    problem = None if check is None else check(text)
    if problem is not None:
        raise terminal.Misuse(problem)
    kinds = registered_kinds()
    if parts[-1] == "provider_kind" and text not in kinds:
        raise terminal.Misuse(
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
    if keys.remove(store.config, parts):
        return
    if not keys.is_known(parts):
        raise terminal.Misuse(_unknown_key(parts))
    found = read_settings().at(format_key(parts))
    elsewhere = f"; it comes from: {found.origin}" if found else ""
    raise terminal.CommandError(f"{format_key(parts)} is not set in {store.path}{elsewhere}")


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
    neighbours = settings.under(format_key(parts[:_ENTRY_DEPTH]))
    origins = [found.origin] if found else [each.origin for each in neighbours]
    others = [origin for origin in origins if origin.startswith("config ")]
    if others and own.isdisjoint(others):
        terminal.note(f"it does not count in this directory, where {others[0][7:]} comes first")


def _tell_what_lacks(parts: Sequence[str], store: ConfigStore, settings: Settings) -> None:
    """Say what else a model endpoint needs before it is of use."""
    llm = store.config.llm
    if parts == ("llm", "default_provider"):
        wanted = llm.default_provider or ""
        if not settings.under(format_key(("llm", "providers", wanted))):
            terminal.note(f"no config has a provider {wanted!r} yet")
    if len(parts) <= _ENTRY_DEPTH or parts[:2] != ("llm", "providers"):
        return
    name = parts[2]
    if parts[-1] == "base_url" and store.is_project_local and not llm.providers[name].api_key:
        terminal.note(key_needed(name))
    if settings.at("llm.default_provider") is None:
        terminal.note(
            f"no provider is the default yet: rath config set llm.default_provider {name}"
        )


def trust(
    is_agreed: terminal.IsAgreed = False,
    is_revoked: Annotated[
        bool, typer.Option("--revoke", help="Trust the config of this directory no longer.")
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Write JSON, for programs; without --yes nothing is changed."),
    ] = False,
) -> None:
    """Trust the endpoints, commands and stores that a project's config names.

    They are shown first. A changed entry asks anew.
    """
    if is_agreed and is_revoked:
        raise terminal.Misuse("--revoke asks nothing, so it goes without --yes")
    store = ConfigStore.load(config_layer_paths()[0])
    revoked = trusts.revoke_trust(trusts.project_of(store)) if is_revoked else ()
    entries, waiting = trusts.guarded_entries(store), trusts.untrusted_entries([store])
    if as_json:
        # What is trusted is what was read, also where the file has been changed meanwhile.
        trusts.trust_entries(waiting if is_agreed else ())
        guarded = [_guarded_json(entry) for entry in entries]
        terminal.say_json({"file": store.path, "trust": trust_of(store.path), "entries": guarded})
    elif is_revoked:
        count = count_of(len(revoked), "setting")
        terminal.say(f"{count} trusted no longer" if revoked else f"{store.path} was not trusted")
    elif not trusts.belongs_to_project(store):
        terminal.note(f"{store.path} is your own config, so it needs no trust")
    elif not entries:
        terminal.note(f"{store.path} names nothing that acts, so it needs no trust")
    else:
        terminal.say(f"{visible(str(store.path), but='')}, the config of a project")
        for entry in entries:
            for text in _entry_lines(store, entry):
                terminal.say(visible(text, but=""))
        _trust(store, waiting, is_agreed=is_agreed)


def _trust(store: ConfigStore, waiting: Sequence[trusts.GuardedEntry], *, is_agreed: bool) -> None:
    if not waiting:
        terminal.note("you have trusted all of it before")
        return
    count = count_of(len(waiting), "setting")
    if not is_agreed and not terminal.ask_yes_no(f"Trust {count}?"):
        raise terminal.CommandError(f"{store.path} is not trusted; nothing is changed")
    trusts.trust_entries(waiting)
    terminal.say(f"{count} trusted")


def _note_untrusted(entries: Sequence[trusts.GuardedEntry]) -> None:
    """Tell what is not used, and what to do about it."""
    for entry in entries:
        is_new = entry.state() == "not trusted"
        state = "is not trusted" if is_new else "has changed since you trusted it"
        file = visible(str(entry.file), but="")
        terminal.note(f"{entry.name} of {file} {state}, so it is not used")
    if entries:
        terminal.note("to look at it and allow it: rath config trust")


def _guarded_json(entry: trusts.GuardedEntry) -> dict[str, Any]:
    """Return an entry for programs; its secrets are hidden."""
    return {
        "key": entry.name,
        "file": entry.file,
        "trust": entry.state(),
        "values": entry.public_values,
        "changes": entry.changes(),
    }


def _entry_lines(store: ConfigStore, entry: trusts.GuardedEntry) -> Iterator[str]:
    """Yield all that an entry does; what was hidden could not be judged."""
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
            text = mask(secret) if isinstance(secret, str) else json.dumps(value)
            yield f"  {name:<13} {text}"
    yield from (f"  changed: {change}" for change in entry.changes())
