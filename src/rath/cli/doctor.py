"""`rath doctor`: find what would keep programs from running, here and with this configuration."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Annotated

import typer

import rath
from rath._core.text import valid_unicode
from rath.cli import findings as shown
from rath.cli.doctor_config import check_configs
from rath.cli.doctor_live import ask_models
from rath.cli.doctor_machine import check_installation, check_planes, check_stores
from rath.cli.doctor_models import check_models
from rath.cli.findings import Finding
from rath.cli.model_targets import usable_configs
from rath.cli.terminal import Misuse, complain, say, say_json
from rath.config.env import EnvKind, all_env_specs, env_value
from rath.config.redaction import redact
from rath.llm.endpoint import password_in
from rath.llm.probe import DEFAULT_PROBE_TIMEOUT

__all__ = ["app"]

_INTERRUPTED = 130
"""Exit status of a program that Ctrl-C ended."""

app = typer.Typer(add_completion=False)


@app.command()
def doctor(
    live: Annotated[
        bool, typer.Option("--live", help="Also ask the models: a few small calls each.")
    ] = False,
    providers: Annotated[
        list[str] | None,
        typer.Option(
            "--provider", help="Ask only this one: a name of the config, or a kind. Repeatable."
        ),
    ] = None,
    timeout: Annotated[
        float, typer.Option("--timeout", help="Seconds for each step of asking.")
    ] = DEFAULT_PROBE_TIMEOUT,
    is_strict: Annotated[
        bool, typer.Option("--strict", help="End with status 1 for warnings too.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON, for programs.")] = False,
) -> None:
    """Check configuration, keys, packages, sandboxes and files; with --live also the models.

    Without --live nothing is sent, no model is loaded and nothing is changed. The exit status is 1
    where there is a problem.
    """
    if providers and not live:
        raise Misuse("--provider says which models to ask, so it goes with --live")
    if not timeout > 0:
        raise Misuse("--timeout takes more than 0 seconds")
    try:
        with _quiet_logs():
            found = [*check_configs(), *check_models()]
            found += [*check_installation(), *check_planes(), *check_stores()]
            if live:
                found += ask_models(providers or (), timeout=timeout)
    except KeyboardInterrupt:
        complain("stopped")
        raise typer.Exit(_INTERRUPTED) from None
    clean = _without_secrets()
    _tell([shown.cleaned(finding, clean) for finding in found], as_json=as_json)
    counts = shown.counts(found)
    if counts["problem"] or (is_strict and counts["warning"]):
        raise typer.Exit(1)


def _tell(found: list[Finding], *, as_json: bool) -> None:
    counts = shown.counts(found)
    if as_json:
        told = [shown.as_json(finding) for finding in found]
        say_json({"rath": rath.__version__, "counts": counts, "findings": told})
        return
    shown.show(found)
    say(f"{_counted(counts['problem'], 'problem')}, {_counted(counts['warning'], 'warning')}")


def _counted(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"


@contextmanager
def _quiet_logs() -> Generator[None]:
    """Keep off the terminal what is logged meanwhile: the findings say it all."""
    log = logging.getLogger("rath")
    silence = logging.NullHandler()
    log.addHandler(silence)
    try:
        yield
    finally:
        log.removeHandler(silence)


def _without_secrets() -> Callable[[str], str]:
    """Return what takes every known key out of a text, as the last of several guards."""
    secrets: list[str] = []
    for spec in all_env_specs():
        value = env_value(spec.name) or ""
        secrets.append(value if spec.kind is EnvKind.SECRET else password_in(value))
    for store in usable_configs():
        for entry in store.config.llm.providers.values():
            secrets += [entry.api_key or "", password_in(entry.base_url or "")]
        secrets += [entry.api_key or "" for entry in store.config.backend.providers.values()]

    def clean(text: str) -> str:
        for secret in secrets:
            text = redact(text, secret)
        return valid_unicode(text)

    return clean
