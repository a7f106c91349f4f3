"""The command as a whole: help, version, verbs, and how it ends."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import rath as package
from rath.cli import app as cli
from rath.cli import main
from tests.cli.conftest import Rath

ROOT = Path(package.__file__).parents[2]
VERBS_OF_CONFIG = ("init", "list", "get", "set", "unset", "path")


def test_version(rath: Rath) -> None:
    result = rath("--version")
    assert (result.exit_code, result.stdout) == (0, f"rath {package.__version__}\n")


@pytest.mark.parametrize("args", [(), ("--help",), ("-h",)])
def test_help_names_every_verb(rath: Rath, args: tuple[str, ...]) -> None:
    result = rath(*args, ends=0)
    assert all(verb.split()[0] in result.stdout for verb in cli.VERBS)


def test_an_unknown_verb_is_a_misuse_that_names_the_nearest(rath: Rath) -> None:
    result = rath("confg", ends=2, out="")
    assert result.stderr.startswith("error: no verb 'confg'. Did you mean 'config'? Known: ")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "args", [("--no-such-option",), ("config", "get"), ("config", "set"), ("config", "x")]
)
def test_a_misuse_is_told_in_two_lines(rath: Rath, args: tuple[str, ...]) -> None:
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
    options = {option for text in helps for option in re.findall(r"(?<=│ )--[\w-]+", text)}
    assert {"--yes", "--force", "--json", "--project"} <= options
    assert {name for name in VERBS_OF_CONFIG if f"## rath config {name}\n" not in page} == set()
    assert {option for option in options - {"--help"} if f"`{option}`" not in page} == set()
