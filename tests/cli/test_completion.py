"""`rath completion`, and what a shell is offered for the word that is being typed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rath.cli.terminal import Exit
from tests.cli.conftest import Rath
from tests.support.store_family import Family


def offered(rath: Rath, monkeypatch: pytest.MonkeyPatch, *words: str) -> dict[str, str]:
    """The candidates for the last word, each with its description."""
    with monkeypatch.context() as patch:
        patch.setenv("_RATH_COMPLETE", "1")
        lines = rath("", *words, ends=Exit.ANSWERED, err="").stdout.splitlines()
    return {value: about for value, _, about in (line.partition("\t") for line in lines)}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["re"], ["replay", "resume"]),
        (["jobs", "re"], ["retry"]),
        (["serve", "token", ""], ["add", "ls", "rm"]),
        (["log", "--gr"], ["--graph"]),
        (["ls", "--by", ""], ["lineage", "run", "time"]),
        (["ls", "--by=t"], ["--by=time"]),
        (["ls", "--state", "needs"], ["needs_approval", "needs_input", "needs_decision"]),
        (["completion", "install", "f"], ["fish"]),
        (["ls", "--limit", ""], []),
        (["nonsense", ""], []),
    ],
    ids=" ".join,
)
def test_words_options_and_values_are_completed(
    rath: Rath, monkeypatch: pytest.MonkeyPatch, words: list[str], expected: list[str]
) -> None:
    assert [*offered(rath, monkeypatch, *words)] == expected


def test_verbs_have_their_summaries(rath: Rath, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "record" in offered(rath, monkeypatch, "repl")["replay"]


def test_sessions_are_completed_by_their_ids(
    rath: Rath, family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = offered(rath, monkeypatch, "show", "")
    assert [*found] == [str(number) * 8 for number in (7, 6, 5, 4, 3, 2, 1)]
    assert found["11111111"] == "completed implicit Fix the parser"
    assert [*offered(rath, monkeypatch, "show", "11111111-")] == [str(family.user.session)]
    assert [*offered(rath, monkeypatch, "diff", "1111", "2")] == ["22222222"]
    assert [*offered(rath, monkeypatch, "ls", "--parent", "3")] == ["33333333"]
    assert offered(rath, monkeypatch, "show", "1111", "") == {}


def test_a_store_that_cannot_be_read_offers_nothing(
    rath: Rath, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert project.is_dir()
    monkeypatch.setenv("OPENRATH_STORE", "nowhere://x")
    assert offered(rath, monkeypatch, "show", "") == {}


@pytest.mark.parametrize(
    ("shell", "script", "rc"),
    [
        ("bash", ".local/share/rath/completion.bash", ".bashrc"),
        ("zsh", ".local/share/rath/completion.zsh", ".zshrc"),
        ("fish", ".config/fish/completions/rath.fish", None),
    ],
)
def test_completion_is_installed_once(
    rath: Rath,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    shell: str,
    script: str,
    rc: str | None,
) -> None:
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "ZDOTDIR"):
        monkeypatch.delenv(name, raising=False)
    if rc is not None:
        (home / rc).write_text("alias x=y", "utf-8")
    monkeypatch.setenv("SHELL", f"/usr/bin/{shell}")
    rath("completion install", ends=Exit.ANSWERED, out=f"Wrote {home / script}")
    rath("completion install", shell, ends=Exit.ANSWERED)
    assert (home / script).read_text("utf-8") == rath("completion show", shell).stdout
    if rc is not None:
        lines = (home / rc).read_text("utf-8").splitlines()
        assert (len(lines), lines[0]) == (2, "alias x=y")
        assert str(home / script) in lines[1]


def test_an_unknown_shell_is_a_misuse(rath: Rath, monkeypatch: pytest.MonkeyPatch) -> None:
    rath("completion install tcsh", ends=Exit.MISUSE, err="expected one of bash, zsh, fish")
    monkeypatch.delenv("SHELL", raising=False)
    rath("completion show", ends=Exit.MISUSE, err="$SHELL names no shell")


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes_a_session(rath: Rath, family: Family, project: Path) -> None:
    script = rath("completion show bash", ends=Exit.ANSWERED).stdout
    program = project / "rath"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m rath "$@"\n', "utf-8")
    program.chmod(0o755)
    asked = f"COMP_WORDS=({program} show {family.plan.session.hex[:3]}); COMP_CWORD=2"
    code = f'{script}\n{asked}\n_rath_completion\necho "${{COMPREPLY[@]}}"'
    run = subprocess.run(
        ["bash", "--norc", "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout == "22222222\n"
