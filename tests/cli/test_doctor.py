"""`rath doctor` as a whole: how it ends, how it looks, and what it never shows or changes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Process, Rath
from tests.cli.findings import CANARY, doctor
from tests.support.machine import llm_config, write_config


def tree(base: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in base.rglob("*")}


# ---------------------------------------------------------------- the whole


def test_an_empty_machine_has_no_problem_and_stays_empty(rath: Rath, project: Path) -> None:
    before = tree(project.parent)
    result = rath("doctor", ends=0)
    assert result.stdout.splitlines()[-1].startswith("no problems, ")
    assert tree(project.parent) == before


def test_what_is_there_stays_as_it_is(rath: Rath, project: Path, home: Path) -> None:
    write_config(home, llm_config("u", u={"model": "m"}), {"u": CANARY})
    write_config(project, {"memory": {"providers": {"n": {"path": "notes"}}}})
    before = tree(project.parent)
    assert rath("doctor").exit_code == 0
    assert tree(project.parent) == before


def test_nothing_heavy_is_loaded_and_nothing_is_sent(home: Path) -> None:
    write_config(home, llm_config("u", u={"model": "m", "base_url": "http://127.0.0.1:9/v1"}))
    heavy = ("anthropic", "httpx2", "numpy", "onnxruntime", "openai", "xllamacpp")
    code = (
        "import socket, sys\n"
        "def refuse(*_): raise AssertionError('a connection was made')\n"
        "socket.socket.connect = refuse\n"
        "sys.argv = ['rath', 'doctor']\n"
        "from rath.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        f"print(sorted(set({heavy!r}) & set(sys.modules)), file=sys.stderr)\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    assert "\nModels\n" in ran.stdout
    assert ran.stderr == "[]\n"


def test_a_problem_ends_with_status_one_and_a_warning_only_if_strict(
    rath: Rath, home: Path
) -> None:
    path = write_config(home, llm_config("u", u={"model": "m", "modle": "m"}), {"u": CANARY})
    assert doctor(rath).exit_code == 0
    assert doctor(rath, "--strict").exit_code == 1
    path.write_text("{")
    assert doctor(rath).exit_code == 1


def test_json_counts_and_tells_everything(rath: Rath, home: Path) -> None:
    write_config(home, {"llm": {"default_provider": "x"}})
    told = json.loads(doctor(rath).stdout)
    levels = [each["level"] for each in told["findings"]]
    assert told["counts"] == {level: levels.count(level) for level in told["counts"]}
    assert told["counts"]["problem"] == 1
    keys = {"group", "subject", "level", "text", "advice", "details"}
    assert all(set(each) == keys for each in told["findings"])


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (("--provider", "x"), "goes with --live"),
        (("--timeout", "0"), "more than 0 seconds"),
        (("--live", "--provider", "lokal"), "no provider 'lokal'. Did you mean 'local'?"),
    ],
)
def test_misuse(rath: Rath, args: tuple[str, ...], text: str) -> None:
    rath("doctor", *args, ends=2, out="", err=text)


# ---------------------------------------------------------------- how it looks


def test_piped_findings_are_whole_lines(process: Process, home: Path) -> None:
    path = write_config(home, {"llm": {"providers": {"long": {"modle": "x"}}}})
    ran = process("doctor")
    assert ran.stderr == ""
    lines = ran.stdout.splitlines()
    at = next(number for number, line in enumerate(lines) if "rath knows no such key" in line)
    assert lines[at].startswith("  warning  user ")
    assert f"{path}:1:" in lines[at]
    assert lines[at].endswith("Did you mean 'llm.providers.long.model'?")
    assert lines[at + 1].strip() == "-> to take it away: rath config unset llm.providers.long.modle"


def test_on_a_terminal_no_line_is_wider_than_it(
    process: Process, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_config(home, {"llm": {"providers": {"a-name-" * 6: {"modle": "x"}}}})
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    lines = re.sub(r"\x1b\[\d*m", "", process("doctor").stdout).splitlines()
    assert max(map(len, lines)) <= 60
    assert "rath config unset" in " ".join(line.strip() for line in lines)


def test_brackets_are_no_markup(process: Process, home: Path) -> None:
    write_config(home, {"llm": {"providers": {"[red]x[/red]": {"modle": "[b]"}}}})
    assert "[red]x[/red]" in process("doctor").stdout


# ---------------------------------------------------------------- secrets


def test_no_secret_is_ever_shown(
    rath: Rath, process: Process, project: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "OPENAI_CUSTOM_HEADERS"):
        monkeypatch.setenv(name, f"{CANARY}-{name}")
    monkeypatch.setenv("OPENAI_BASE_URL", f"http://u:{CANARY}@127.0.0.1:9/v1?key={CANARY}")
    entry = {"model": "m", "api_key": CANARY, "base_url": f"https://u:{CANARY}@h/v1"}
    config = llm_config("a", a=entry, b={"model": "m", "base_url": f"{CANARY}://x"})
    config["mcp"] = {"servers": {"s": {"command": ["x"], "env": {"TOKEN": CANARY}}}}
    config["backend"] = {"providers": {"k": {"api_key": CANARY, "options": {"token": CANARY}}}}
    write_config(home, config, {"b": CANARY, "stranger": CANARY})
    write_config(project, {"llm": {"providers": {"c": {"temperature": CANARY}}}})
    for args in ((), ("--json",), ("--strict",)):
        result = rath("doctor", *args)
        assert "canary" not in result.output
    ran = process("doctor")
    assert "canary" not in ran.stdout + ran.stderr
