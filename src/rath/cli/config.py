"""`rath config`: see and change the configuration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer

from rath.cli import config_init, config_trust, config_write
from rath.cli.settings import Setting, Settings, as_text, read_settings
from rath.cli.target import Place, all_places
from rath.cli.terminal import Misuse, Problem, complain, say, say_json, say_rows, show_help
from rath.config.env import all_env_specs
from rath.config.keys import format_key, is_known, parse_key

__all__ = ["app"]

AsJson = Annotated[bool, typer.Option("--json", help="Write JSON, for programs.")]
ShowOrigin = Annotated[
    bool, typer.Option("--show-origin", help="Say which file or variable a value comes from.")
]

app = typer.Typer(add_completion=False)
app.callback(invoke_without_command=True, help="See and change the configuration.")(show_help)
app.command("init")(config_init.init)
app.command("set")(config_write.set_value)
app.command("unset")(config_write.unset)
app.command("trust")(config_trust.trust)


@app.command("list")
def list_values(show_origin: ShowOrigin = False, as_json: AsJson = False) -> None:
    """Show every value that counts here: of the environment, the project and yourself.

    Secrets are hidden. What nobody sets is not listed.
    """
    settings = read_settings()
    if as_json:
        ignored = [config_trust.entry_as_json(entry) for entry in settings.untrusted]
        say_json({"settings": [asdict(each) for each in settings.values], "untrusted": ignored})
    elif settings.values:
        _say_all(settings.values, show_origin)
    elif not settings.problems:
        say("Nothing is set. Set up a model with: rath config init")
    if not as_json:
        config_trust.note_untrusted(settings.untrusted)
    _fail_on_problems(settings)


@app.command()
def get(
    key: Annotated[str, typer.Argument(metavar="KEY", help="As `rath config list` shows.")],
    show_origin: ShowOrigin = False,
    as_json: AsJson = False,
) -> None:
    """Show one value as it counts here, or all values of a table; secrets are hidden."""
    settings = read_settings()
    try:
        parts = parse_key(key)
    except ValueError as exc:
        raise Misuse(str(exc)) from None
    wanted = format_key(parts)
    found = settings.at(wanted)
    inside = settings.under(wanted)
    if found is None and not inside:
        _fail_on_problems(settings)
        raise _not_there(parts)
    if as_json:
        say_json(asdict(found) if found else {"settings": [asdict(each) for each in inside]})
    elif found is None:
        _say_all(inside, show_origin)
    elif show_origin:
        say_rows([[as_text(found.value), found.origin]], ["", "dim"])
    else:
        say(as_text(found.value))
    _fail_on_problems(settings)


@app.command()
def path(as_json: AsJson = False) -> None:
    """Show the config files in the order in which they count, and which one is written to."""
    places = all_places()
    if as_json:
        say_json({"files": [_as_json(place) for place in places]})
        return
    say_rows([[place.role, str(place.file), _state(place)] for place in places], ["bold", "", ""])


def _as_json(place: Place) -> dict[str, object]:
    return {
        "role": place.role,
        "file": str(place.file),
        "exists": place.exists,
        "has_keys": place.has_keys,
        "is_written": place.is_written,
        "trust": config_trust.trust_of(place.file) if place.exists else None,
    }


def _state(place: Place) -> str:
    states = ["there" if place.exists else "not there"]
    states += ["keys beside it"] if place.has_keys else []
    states += ["written to"] if place.is_written else []
    trusted = config_trust.trust_of(place.file) if place.exists else None
    states += [trusted] if trusted in ("trusted", "not trusted") else []
    return ", ".join(states)


def _say_all(settings: Sequence[Setting], show_origin: bool) -> None:
    rows = [[each.key, as_text(each.value), each.origin] for each in settings]
    columns = 3 if show_origin else 2
    say_rows([row[:columns] for row in rows], ["bold", "", "dim"][:columns])


def _not_there(parts: tuple[str, ...]) -> Problem:
    key = format_key(parts)
    variables = [spec.name for spec in all_env_specs()]
    if is_known(parts) or key in variables:
        return Problem(f"{key} is not set")
    return Misuse(config_write.unknown_key(parts, *variables))


def _fail_on_problems(settings: Settings) -> None:
    """End with status 1 after what could be told, where a config cannot be used."""
    for problem in settings.problems:
        complain(problem)
    if settings.problems:
        raise typer.Exit(1)
