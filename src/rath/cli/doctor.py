"""`rath doctor`: problems that would keep programs from running here."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Annotated

import typer

import rath
from rath._core.text import valid_unicode
from rath.cli import doctor_machine as machine
from rath.cli.doctor_config import check_configs
from rath.cli.doctor_models import check_models, check_models_live, usable_configs
from rath.cli.render import CheckFinding, count_levels, say_findings
from rath.cli.terminal import (
    AsJson,
    CommandError,
    Exit,
    IsAgreed,
    Misuse,
    ask_yes_no,
    complain,
    note,
    say,
)
from rath.config.env import EnvKind, all_env_specs, env_value
from rath.config.redaction import redact
from rath.errors import RathError
from rath.llm.credentials import password_in
from rath.llm.probe import DEFAULT_PROBE_TIMEOUT

CHECKS: tuple[Callable[[], Iterable[CheckFinding]], ...] = (
    check_configs,
    check_models,
    machine.check_installation,
    machine.check_extras,
    machine.check_planes,
    machine.check_stores,
    machine.check_index,
    machine.check_disk,
)
"""Each yields its findings: a group and a subject, a level, a text and an advice."""


def doctor(
    live: Annotated[
        bool, typer.Option("--live", help="Also ask the models: a few small calls each.")
    ] = False,
    providers: Annotated[
        list[str] | None,
        typer.Option(
            "--provider",
            metavar="PROVIDER",
            help="Ask only this one: a name of the config, or a kind. Repeatable.",
        ),
    ] = None,
    timeout: Annotated[
        float, typer.Option("--timeout", help="Seconds for each step of asking.")
    ] = DEFAULT_PROBE_TIMEOUT,
    is_strict: Annotated[
        bool, typer.Option("--strict", help="End with status 1 for warnings too.")
    ] = False,
    is_fixing: Annotated[
        bool, typer.Option("--fix", help="Offer what can be done, and do it where you agree.")
    ] = False,
    is_agreed: IsAgreed = False,
    as_json: AsJson = False,
) -> None:
    """Check configuration, keys, packages, sandboxes and files; --live also asks the models.

    Without --live nothing is sent, no model is loaded and nothing is changed. The exit status is 1
    where there is a problem. With --fix each thing that can be done is asked about, and then all
    is checked again; --yes asks nothing. No project is trusted and no package installed by that.
    """
    if is_agreed and not is_fixing:
        raise Misuse("--yes agrees to what --fix offers, so it goes with --fix")
    if is_fixing and as_json and not is_agreed:
        raise Misuse("--fix asks, which --json cannot; add --yes")
    if providers and not live:
        raise Misuse("--provider says which models to ask, so it goes with --live")
    if not timeout > 0:
        raise Misuse("--timeout takes more than 0 seconds")
    try:
        with _quiet_logs():
            found = _check_all()
            fixed = _fix(found, is_agreed=is_agreed, as_json=as_json) if is_fixing else []
            if fixed:
                found = _check_all()
            if live:
                found += check_models_live(providers or (), timeout=timeout)
    except KeyboardInterrupt:
        complain("stopped")
        raise typer.Exit(Exit.INTERRUPTED) from None
    levels = count_levels(found)
    clean = _without_secrets()
    payload = {"rath": rath.__version__, "counts": levels}
    payload |= {"fixed": fixed} if is_fixing else {}
    say_findings([finding.cleaned(clean) for finding in found], payload, as_json=as_json)
    n_problems, n_warnings = levels["problem"], levels["warning"]
    if not as_json:
        say(f"{_count(n_problems, 'problem')}, {_count(n_warnings, 'warning')}")
    if n_problems or (is_strict and n_warnings):
        raise typer.Exit(Exit.WORLD)


def _check_all() -> list[CheckFinding]:
    return [finding for check in CHECKS for finding in check()]


def _fix(found: Iterable[CheckFinding], *, is_agreed: bool, as_json: bool) -> list[str]:
    """Do what can be done about findings, where the user agrees; return what was done."""
    clean = _without_secrets()
    offers = {each.fix.text: each for each in found if each.fix is not None}
    fixed: list[str] = []
    for text, each in offers.items():
        assert each.fix is not None  # they were chosen by it
        text = clean(text)
        if not is_agreed:
            note(f"{each.subject}: {clean(each.text)}")
            if not ask_yes_no(f"{text[:1].upper()}{text[1:]}?"):
                continue
        try:
            each.fix.make()
        except (RathError, OSError, CommandError, sqlite3.Error) as exc:
            complain(f"could not {text}: {clean(str(exc))}")
            continue
        fixed.append(text)
        if not as_json:
            say(f"done: {text}")
    if not offers:
        note("there is nothing that could be done by itself")
    return fixed


def _count(number: int, noun: str) -> str:
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
    """Return a function that takes every known key out of a text, as the last of several guards."""
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
