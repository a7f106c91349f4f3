"""What the command shows and answers, as files; `RATH_WRITE_GOLDEN=1` writes them anew.

Sessions are shown by `explain`, `show`, `cost` and `verify` elsewhere; here are the other verbs.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from rath.cli.app import VERBS, app
from rath.session import Session
from tests.cli.conftest import Rath
from tests.support.approvals import go, waiting
from tests.support.machine import llm_config, write_config
from tests.support.store_family import Family

GOLDEN = Path(__file__).parents[1] / "data" / "cli"
ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
DIGEST = re.compile(r"\b(?<!\.)[0-9a-f]{16,64}\b")
SIZE = re.compile(r'"size": \d+')
"""The bytes of a log are a matter of its format."""
TIME = re.compile(r"\b(?!2026-11-01)\d{4}-\d\d-\d\dT[\d:.]+(?:Z|\+00:00)?")
"""Times of now; those of the stored family are on a day of its own."""


def compare(name: str, text: str) -> None:
    """Compare a text with a golden file, or write that."""
    path = GOLDEN / name
    if os.environ.get("RATH_WRITE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, "utf-8")
    stored = path.read_text("utf-8")
    lines = difflib.unified_diff(
        stored.splitlines(), text.splitlines(), "stored", "today", n=5, lineterm=""
    )
    difference = "\n".join(lines)
    assert not difference, f"{path.name} differs:\n{difference}"


def commands(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The words and the object of a verb, and of all verbs below it."""
    yield path, command
    if hasattr(command, "list_commands"):
        context = command.make_context("rath", [], resilient_parsing=True)
        for name in command.list_commands(context):
            yield from commands(command.get_command(context, name), (*path, name))


def all_commands() -> list[tuple[tuple[str, ...], Any]]:
    """Every verb and sub-verb of the command."""
    return [*commands(typer.main.get_command(app), ())]


def describe(path: tuple[str, ...], command: Any) -> Iterator[str]:
    """Write a verb with its help and parameters, whatever version of typer draws them."""
    yield f"$ rath {' '.join(path)}".rstrip()
    yield from (f"  {line}".rstrip() for line in (command.help or "").splitlines())
    for each in command.params:
        if each.name == "help":
            continue
        required = " required" if each.required else ""
        many = " many" if each.multiple or each.nargs != 1 else ""
        default = "" if callable(each.default) else f" = {each.default!r}"
        names = " ".join([*each.opts, *each.secondary_opts])
        yield f"  {names} [{each.metavar}]{required}{many}{default}"
        if each.param_type_name == "option":  # old versions keep those of arguments elsewhere
            yield f"      {each.help or ''}".rstrip()
    yield ""


def normal(text: str, base: Path) -> str:
    """Write a text without what differs from test to test: paths, ids, times and digests."""
    text = text.replace(str(base), "<base>")
    for pattern, kind in ((ID, "id"), (DIGEST, "digest")):
        known: dict[str, str] = {}
        for found in pattern.findall(text):
            text = text.replace(found, known.setdefault(found, f"<{kind} {len(known)}>"))
    return SIZE.sub('"size": "<size>"', TIME.sub("<time>", text))


def rounded(number: str) -> float:
    """Read a number so that its last bits do not matter."""
    return round(float(number), 6)


def answers(rath: Rath, base: Path, *calls: tuple[str, ...]) -> str:
    """The exit status and the JSON of calls, one after another."""
    told: list[dict[str, Any]] = []
    for call in calls:
        done = rath(*call, "--json")
        told.append(
            {
                "call": " ".join(call),
                "exit": done.exit_code,
                "json": json.loads(done.stdout, parse_float=rounded) if done.stdout else None,
                "stderr": done.stderr.splitlines(),
            }
        )
    return normal(json.dumps(told, indent=1, ensure_ascii=False) + "\n", base)


def test_every_verb_has_the_same_help_and_parameters() -> None:
    lines = [line for path, command in all_commands() for line in describe(path, command)]
    compare("verbs.txt", "\n".join(lines))


def test_every_summary_is_the_beginning_of_the_help_of_its_verb() -> None:
    beginnings = {
        " ".join(path): (command.help or "").partition("\n\n")[0]
        for path, command in all_commands()
        if path and not hasattr(command, "list_commands")
    }
    assert beginnings == {name: verb.summary for name, verb in VERBS.items()}


def test_help_is_drawn_the_same(rath: Rath, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "PY_COLORS", "TTY_COMPATIBLE", "GITHUB_ACTIONS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERM", "dumb")
    pages = [
        f"$ rath {' '.join((*path, '--help'))}\n{rath(*path, '--help').stdout}"
        for path, _ in all_commands()
    ]
    text = "\n".join(line.rstrip() for line in "".join(pages).splitlines())
    compare("help.txt", f"{text}\n")


def test_verbs_of_stored_sessions(rath: Rath, family: Family, tmp_path: Path) -> None:
    left, right, both = (str(log.session) for log in (family.left, family.right, family.both))
    text = answers(
        rath, tmp_path,
        ("ls",),
        ("ls", "--state", "failed"),
        ("log",),
        ("log", both),
        ("blame", left, "left"),
        ("diff", left, right),
        ("diff", left, both),
        ("fork", left),
        ("fork", left, "--at", "1"),
        ("prune", "--older-than", "9000d"),
        ("replay", left),
        ("resume", left),
        ("approve", left, "c1"),
        ("ls", "00000000-0000-4000-8000-000000000000"),
    )  # fmt: skip
    compare("sessions.json", text)


def test_verbs_of_decisions(rath: Rath, project: Path, tmp_path: Path) -> None:
    assert project.exists()
    ident = str(waiting(1, 2, 3, persist=True).id)
    ended = str(go(["done"], persist=True).synchronize().id)
    text = answers(
        rath, tmp_path,
        ("approve", ident, "c1"),
        ("deny", ident, "c2", "too early", "--by", "ada"),
        ("edit", ident, "c3", '{"n": 7}'),
        ("answer", ident, "c3", "1"),
        ("approve", ended, "c1"),
        ("replay", ended),
        ("ls", "--state", "needs_approval"),
    )  # fmt: skip
    assert Session.load(ident).questions == ()
    compare("decisions.json", text)


def test_verbs_of_the_config(rath: Rath, home: Path, project: Path, tmp_path: Path) -> None:
    served = {"model": "m", "base_url": "http://127.0.0.1:9/v1"}
    write_config(home, llm_config("u", u=served), {"u": "sk-canary-0123456789"})
    servers = {"notes": {"command": ["no-such-program", "--fast"]}}
    write_config(
        project, {"mcp": {"servers": servers}, "llm": {"providers": {"p": {"model": "x"}}}}
    )
    text = answers(
        rath, tmp_path,
        ("config", "list"),
        ("config", "get", "llm.providers.u.model"),
        ("config", "get", "llm.providers"),
        ("config", "get", "llm.providers.u.api_key"),
        ("config", "get", "llm.nothing"),
        ("config", "path"),
        ("mcp", "ls"),
        ("config", "trust"),
        ("config", "trust", "--yes"),
        ("config", "list"),
        ("mcp", "ls"),
        ("mcp", "test", "nobody"),
        ("mcp", "call", "nobody", "tool"),
    )  # fmt: skip
    compare("config.json", text)


def test_verbs_of_memory(rath: Rath, tmp_path: Path) -> None:
    uri = "memory://user/facts/tea"
    text = answers(
        rath, tmp_path,
        ("memory", "ls"),
        ("memory", "add", "The guest drinks tea.", "--uri", uri),
        ("memory", "add", "The neighbour drinks coffee.", "--uri", "user/facts/coffee"),
        ("memory", "ls"),
        ("memory", "find", "tea"),
        ("memory", "show", uri),
        ("memory", "rebuild"),
        ("memory", "forget", uri, "--yes"),
        ("memory", "show", uri),
        ("memory", "ls"),
    )  # fmt: skip
    compare("memory.json", text)


def test_the_doctor_checks_the_same_things(rath: Rath, home: Path) -> None:
    write_config(home, llm_config("u", u={"model": "m", "modle": "m"}), {"u": "sk-canary-0123"})
    told = json.loads(rath("doctor --json").stdout)
    # What it finds is a matter of the machine; what it looks at is not.
    groups = [*dict.fromkeys(each["group"] for each in told["findings"])]
    config = [each for each in told["findings"] if "modle" in each["text"]]
    shape = {"keys": sorted(told), "groups": groups, "config": config}
    compare("doctor.json", normal(json.dumps(shape, indent=1) + "\n", home.parent))
