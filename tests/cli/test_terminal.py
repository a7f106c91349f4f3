"""The command line: its ends, its process, and how numbers, times and texts are shown."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from contextlib import redirect_stdout
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from importlib.metadata import EntryPoint
from io import StringIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.text import Text

import rath as package
from rath.cli import app as cli
from rath.cli import main
from rath.cli.render import (
    busy,
    count_of,
    item,
    line,
    moment,
    money,
    progress,
    room,
    say_lines,
    say_table,
    size,
    span,
)
from rath.cli.terminal import Misuse, complain, duration, note, paged, say, time_of, warn
from rath.cli.verbs import SECTIONS
from tests.cli.conftest import Process, Rath
from tests.support.api import UNKNOWN_TIME
from tests.support.store_family import Family

ROOT = Path(package.__file__).parents[2]
VERBS_OF_CONFIG = ("init", "list", "get", "set", "unset", "path")


def test_version(rath: Rath) -> None:
    result = rath("--version")
    assert (result.exit_code, result.stdout) == (0, f"rath {package.__version__}\n")


@pytest.mark.parametrize("args", [(), ("--help",), ("-h",)])
def test_help_names_every_verb(rath: Rath, args: tuple[str, ...]) -> None:
    result = rath(*args, ends=0)
    assert all(f"\n  {verb.split()[0]} " in result.stdout for verb in cli.VERBS)
    assert "<bool>" not in result.stdout


def test_every_verb_stands_in_one_section_of_the_help() -> None:
    names = [name for section in SECTIONS.values() for name in section]
    assert sorted(names) == sorted({verb.split()[0] for verb in cli.VERBS})


def test_an_unknown_option_names_the_nearest(rath: Rath) -> None:
    rath("ls --jsno", ends=2, out="", err="no option '--jsno'. Did you mean '--json'?")
    rath("ls -x", ends=2, out="", err="no option '-x'.")


def test_a_choice_that_is_none_is_refused_without_words_of_a_library(rath: Rath) -> None:
    done = rath("ls --by state", ends=2, out="", err="'state' is not one of")
    assert "Value error" not in done.stderr


@pytest.mark.parametrize(
    ("words", "near"),
    [("show 11111112", "11111111"), ("ls --state faild", "failed"), ("shwo", "show")],
)
def test_a_typing_error_names_the_nearest(
    rath: Rath, family: Family, words: str, near: str
) -> None:
    assert family.directory.is_dir()
    assert f"Did you mean '{near}'?" in rath(words, out="").stderr


def test_an_unknown_verb_is_a_misuse_that_names_the_nearest(rath: Rath) -> None:
    result = rath("confg", ends=2, out="")
    assert result.stderr.startswith("error: no verb 'confg'. Did you mean 'config'? Known: ")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        ("help", "no verb 'help'. Did you mean `rath --help`?"),
        ("version", "no verb 'version'. Did you mean `rath --version`?"),
        ("config lst", "no verb 'lst' of `rath config`. Did you mean 'list'? Known: init, set"),
        ("show", "Missing argument 'SESSION'. `rath ls` lists the sessions"),
    ],
)
def test_what_newcomers_type_is_answered_with_what_there_is(
    rath: Rath, words: str, advice: str
) -> None:
    rath(words, ends=2, out="", err=advice)


@pytest.mark.parametrize(
    "args", [("--no-such-option",), ("config", "get"), ("config", "set"), ("config", "get", "--x")]
)
def test_a_misuse_is_reported_in_two_lines(rath: Rath, args: tuple[str, ...]) -> None:
    result = rath(*args, ends=2, out="")
    first, second = result.stderr.splitlines()
    assert first.startswith("error: ")
    assert second.startswith("See: rath ")


def test_main_is_what_the_script_calls(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["rath", "--version"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("rath ")


def test_the_script_of_the_package_is_main() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    script = EntryPoint("rath", project["scripts"]["rath"], "console_scripts")
    assert script.load() is main


def test_every_verb_and_option_stands_in_the_reference(rath: Rath) -> None:
    page = (ROOT / "docs" / "source" / "reference" / "cli.md").read_text("utf-8")
    helps = [rath("config", name, "--help").stdout for name in VERBS_OF_CONFIG]
    options = {
        option for text in helps for option in re.findall(r"(?m)^  (?:-\w, )?(--[\w-]+)", text)
    }
    assert {"--yes", "--force", "--json", "--project"} <= options
    assert {name for name in VERBS_OF_CONFIG if f"## rath config {name}\n" not in page} == set()
    assert {option for option in options - {"--help"} if f"`{option}`" not in page} == set()


CANARY = "canary-0123456789"


def test_version_is_fast_to_load(process: Process) -> None:
    result = process("--version")
    assert (result.returncode, result.stderr) == (0, "")
    code = (
        "import sys\nfrom rath.cli import main\nsys.argv = ['rath', '--version']\n"
        "try:\n    main()\nexcept SystemExit:\n    print(*sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"pydantic", "rath.llm", "rath.config.store", "openai", "anthropic", "httpx2"}
    assert heavy.isdisjoint(run.stdout.split())


def test_text_and_defaults_are_taken_without_pydantic(tmp_path: Path) -> None:
    arguments = [
        "rath",
        "ls",
        "word",
        "--state",
        "failed",
        "--by",
        "time",
        "--store",
        str(tmp_path),
    ]
    code = (
        f"import sys\nfrom rath.cli import main\nsys.argv = {arguments!r}\n"
        "try:\n    main()\nexcept SystemExit as end:\n    print(end.code, *sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    status, *modules = run.stdout.split()
    assert (status, "pydantic" in modules) == ("0", False)
    assert run.stderr == f"note: no session of {tmp_path} fits\n"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--limit", "x"], "'--limit' / '-n'"),
        (["--by", "size"], "'size' is not one of 'lineage', 'run', 'time'"),
        (["--limit", "-1"], "'--limit' / '-n'"),
    ],
)
def test_what_is_no_value_of_an_option_is_named(
    process: Process, arguments: list[str], problem: str
) -> None:
    result = process("ls", *arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert problem in result.stderr


def test_only_the_command_loads_its_libraries() -> None:
    code = "import sys, rath, rath.flow, rath.config\nprint(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {"typer", "rich", "pydantic", "rath.cli"}.isdisjoint(run.stdout.split())


def test_a_misuse_ends_with_two_and_no_traceback(process: Process) -> None:
    result = process("config", "get")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "error: Missing argument 'KEY'.\nSee: rath config get --help\n"


def test_a_guided_setup_through_a_pipe(process: Process, home: Path) -> None:
    answers = ["user", "openai", "m", "http://127.0.0.1:9/v1", CANARY]
    result = process("config", "init", input="\n".join(answers) + "\n")
    assert result.returncode == 0
    assert CANARY not in result.stdout + result.stderr
    assert "\x1b[" not in result.stdout + result.stderr
    listed = process("config", "list", "--json", "--show-origin")
    beside = home / ".openrath" / "credentials.json"
    assert {"key": "llm.providers.main.api_key", "value": "***", "origin": f"config {beside}"} in (
        json.loads(listed.stdout)["settings"]
    )


HOSTILE = "a\x1b[31mb\x07c\x08d\re"
SHOWN = r"a\x1b[31mb\x07c\x08d\re"


def say_as_a_line(text: str) -> None:
    say_lines([line((text, "red"))])


def say_as_a_row(text: str) -> None:
    say_table([["label", text]], ["bold", ""], is_folded=True)


TELL: list[Callable[[str], None]] = [say, note, warn, complain, item, say_as_a_line, say_as_a_row]


@pytest.mark.parametrize("tell", TELL)
@pytest.mark.parametrize("is_terminal", [False, True], ids=["pipe", "terminal"])
def test_no_control_character_is_sent_or_lost(
    tell: Callable[[str], None],
    is_terminal: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if is_terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.delenv("NO_COLOR", raising=False)
    tell(HOSTILE)
    told = capsys.readouterr()
    assert SHOWN in told.out + told.err


@given(st.text(max_size=30), st.integers(20, 40))
def test_a_cut_line_fits_and_is_a_beginning(text: str, columns: int) -> None:
    made = line(text)
    whole = made.plain.rstrip()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as out:
        patch.setenv("COLUMNS", str(columns))
        say_lines([made])
    shown = out.getvalue().removesuffix("\n")
    assert cell_len(shown) <= columns
    assert shown == whole or whole.startswith(shown.removesuffix("…"))


def test_control_characters_are_written_out() -> None:
    assert line("\x1b[31mred\nand more").plain == r"\x1b[31mred\nand more"


def test_a_table_is_cut_or_folded_to_the_width(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = ["请修复" * 9, "12", "word " * 9]
    say_table([row], ["", "right", ""])
    assert capsys.readouterr().out == f"{row[0]}  12  {row[2].rstrip()}\n"
    monkeypatch.setenv("COLUMNS", "30")
    say_table([row[:2]], ["cut", "right"])
    (cut,) = capsys.readouterr().out.splitlines()
    assert (cell_len(cut), cut[-5:]) == (30, "…  12")
    say_table([["label", row[2]]], ["", ""], is_folded=True)
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["label  word word word word", "       word word word word", "       word"]


@pytest.mark.parametrize(
    ("usd", "text"),
    [
        ("0", "$0.00"),
        ("0.01", "$0.01"),
        ("12345.678", "$12,345.68"),
        ("0.0042", "$0.0042"),
        ("0.0000421", "$0.000042"),
        ("0.0000001", "<$0.000001"),
    ],
)
def test_money(usd: str, text: str) -> None:
    assert money(Decimal(usd)) == text


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (0.4, "0 ms"),
        (999, "999 ms"),
        (1500, "1.5 s"),
        (61_000, "1 min 1 s"),
        (3_720_000, "1 h 2 min"),
    ],
)
def test_span(milliseconds: float, text: str) -> None:
    assert span(milliseconds) == text


@pytest.mark.parametrize(
    ("n_bytes", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KB"), (3 << 30, "3.0 GB")]
)
def test_size(n_bytes: int, text: str) -> None:
    assert size(n_bytes) == text


def test_numbers() -> None:
    assert [count_of(n, "call") for n in (0, 1, 2000)] == ["0 calls", "1 call", "2,000 calls"]


def test_moments_are_in_utc() -> None:
    time = datetime(2026, 11, 1, 1, tzinfo=timezone(timedelta(hours=3)))
    assert moment(time) == "2026-10-31 22:00"
    assert moment(time, is_short=True) == "10-31 22:00"
    assert moment(UNKNOWN_TIME) == "unknown"


@pytest.mark.parametrize(
    ("columns", "expected"), [("60", 60), ("7", 20), ("", None), ("wide", None)]
)
def test_the_room_of_a_line(
    monkeypatch: pytest.MonkeyPatch, columns: str, expected: int | None
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert room() == expected


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("1.5h", 5400), (" 2w ", 1_209_600)])
def test_durations(text: str, seconds: float) -> None:
    assert duration("--x", text).total_seconds() == seconds


@pytest.mark.parametrize("text", ["", "d", "-1d", "1y", "1 d"])
def test_what_is_no_duration_names_its_option(text: str) -> None:
    with pytest.raises(Misuse, match=r"^--x .* is no time; expected a number with"):
        duration("--x", text)


def test_a_date_without_a_zone_is_in_utc() -> None:
    assert time_of("--x", "2026-11-01") == datetime(2026, 11, 1, tzinfo=UTC)


def test_an_age_longer_than_time_is_the_beginning_of_it() -> None:
    time = time_of("--x", "9" * 400 + "d")
    assert time is not None
    assert time.year == 1


def test_a_bar_is_drawn_on_a_terminal_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for is_terminal in (False, True):
        if is_terminal:
            monkeypatch.setenv("FORCE_COLOR", "1")
        with progress("reading") as report:
            report(1, 2)
            report(2, 2)
        shown = capsys.readouterr()
        assert shown.out == ""
        assert ("reading" in shown.err and "2/2" in shown.err) == is_terminal


def test_work_of_unknown_length_is_shown_on_a_terminal_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for is_terminal in (False, True):
        if is_terminal:
            monkeypatch.setenv("FORCE_COLOR", "1")
        with busy("moving"):
            pass
        shown = capsys.readouterr()
        assert shown.out == ""
        assert ("moving ..." in shown.err) == is_terminal


@pytest.mark.parametrize("columns", [60, 40])
@pytest.mark.parametrize(
    "words",
    ["log --graph", *(f"cost --by {by}" for by in ("model", "session", "run", "day")),
     *(f"show {digit * 8}" for digit in "1234567")],
)  # fmt: skip
def test_lines_fit_into_a_narrow_terminal(
    rath: Rath, family: Family, monkeypatch: pytest.MonkeyPatch, words: str, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = rath(
        words, ends=0, out="$0.02 + unpriced" if "cost" in words else ()
    ).stdout.splitlines()
    # Ids and paths are whole, so that they can be copied.
    cut = [line for line in lines if not line.startswith(("session", "log"))]
    assert max(map(cell_len, cut)) <= columns


def test_control_characters_of_any_cell_are_written_out(capsys: pytest.CaptureFixture[str]) -> None:
    say_table([["\x1b]0;a\x07", Text("\x9b31m\u202eb", "red")]], ["", ""])
    assert capsys.readouterr().out == "\\x1b]0;a\\x07  \\x9b31m\\u202eb\n"


class Terminal(StringIO):
    """A stdout that is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def paged_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a pager has shown, on a terminal of ten lines."""
    shown = tmp_path / "paged.txt"
    pager = tmp_path / "pager"
    pager.write_text(f"#!/bin/sh\ncat > {shown}\n", "utf-8")
    pager.chmod(0o755)
    monkeypatch.setenv("PAGER", str(pager))
    monkeypatch.setenv("LINES", "10")
    monkeypatch.setenv("COLUMNS", "80")
    return shown


def said(n_lines: int, stdout: StringIO, *, is_off: bool = False) -> str:
    """What stands on stdout after so many lines were said for a pager."""
    with redirect_stdout(stdout), paged(is_off=is_off):
        for number in range(n_lines):
            say(f"line {number}")
    return stdout.getvalue()


def test_what_is_longer_than_the_screen_goes_to_the_pager(paged_text: Path) -> None:
    assert said(10, Terminal()) == ""
    assert paged_text.read_text("utf-8").splitlines()[9] == "line 9"


def test_what_fits_on_the_screen_needs_no_pager(paged_text: Path) -> None:
    assert said(9, Terminal()).count("\n") == 9
    assert not paged_text.exists()


@pytest.mark.parametrize("pager", ["", "cat", "no-such-program-as-this", None])
def test_the_pager_can_be_turned_off(
    paged_text: Path, monkeypatch: pytest.MonkeyPatch, pager: str | None
) -> None:
    if pager is not None:
        monkeypatch.setenv("PAGER", pager)
    assert said(30, Terminal(), is_off=pager is None).count("\n") == 30
    assert not paged_text.exists()


def test_a_pipe_has_no_pager(paged_text: Path) -> None:
    assert said(30, StringIO()).count("\n") == 30
    assert not paged_text.exists()


def say_and_fail() -> None:
    with paged():
        say("before")
        raise Misuse("wrong")


def test_what_was_said_before_an_error_is_shown(paged_text: Path) -> None:
    terminal = Terminal()
    with redirect_stdout(terminal), pytest.raises(Misuse):
        say_and_fail()
    assert terminal.getvalue() == "before\n"
    assert not paged_text.exists()
