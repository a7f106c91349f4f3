"""Which session and which store a command line names."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from uuid import UUID

import pytest

import rath as package
from rath.cli.terminal import Exit
from tests.cli.conftest import Rath
from tests.support.logs import LogMaker
from tests.support.store_family import Family, damage, ident, save

VERBS = ("show", "tail", "verify", "cost", "log", "rm")


@pytest.mark.parametrize("text", ["11111111-0000-4000-8000-000000000001", "11111111", "1111"])
def test_an_id_or_its_beginning_names_a_session(rath: Rath, family: Family, text: str) -> None:
    rath("show", text, ends=Exit.ANSWERED, out=str(family.user.session))


def test_a_file_names_a_session(rath: Rath, family: Family, tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere.txt"
    copy.write_bytes(family.user.data)
    for path in (str(copy), str(family.directory / f"{family.user.session}.jsonl")):
        rath("show", path, ends=Exit.ANSWERED, out=str(family.user.session))


def test_a_file_of_the_working_directory_needs_no_directory(rath: Rath, project: Path) -> None:
    log = LogMaker().said("here").ended()
    (project / "run.log").write_bytes(log.data)
    assert str(log.session) in rath("show run.log").stdout


@pytest.mark.parametrize("verb", VERBS)
def test_an_ambiguous_beginning_lists_what_begins_so(rath: Rath, sessions: Path, verb: str) -> None:
    save(sessions, *(LogMaker(UUID(f"abcd{n:028x}")) for n in range(12)))
    result = rath(
        verb, "abcd", ends=Exit.MISUSE, out="", err="begins 12 ids; give more digits: abcd0000-"
    )
    assert "and 2 more" in result.stderr


@pytest.mark.parametrize("verb", VERBS)
def test_an_unknown_session_is_a_problem(rath: Rath, family: Family, verb: str) -> None:
    result = rath(verb, "99999999", ends=Exit.WORLD, out="")
    assert result.stderr == (
        "error: no session of the store begins with '99999999'; `rath ls` lists them\n"
    )


@pytest.mark.parametrize("verb", VERBS)
def test_a_whole_unknown_id_is_a_problem_too(rath: Rath, family: Family, verb: str) -> None:
    result = rath(verb, str(ident(9)), ends=Exit.WORLD, out="", err=str(ident(9)))
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("text", ["111", "nonsense", "1" * 40])
def test_what_is_no_id_is_a_misuse(rath: Rath, family: Family, verb: str, text: str) -> None:
    rath(verb, text, ends=Exit.MISUSE, out="", err=repr(text))


def test_a_file_that_is_not_there_is_a_problem(rath: Rath) -> None:
    result = rath("show nowhere/run.jsonl", ends=Exit.WORLD)
    assert result.stderr == "error: no session file 'nowhere/run.jsonl'\n"


def test_a_file_that_is_none_of_a_session_is_damaged(rath: Rath, project: Path) -> None:
    (project / "notes.jsonl").write_text('{"a": 1}\n')
    rath("show ./notes.jsonl", ends=Exit.DAMAGED, err="notes.jsonl:1: missing header")


def test_another_store_is_named_by_its_directory_or_url(
    rath: Rath, family: Family, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert rath("show 11111111").exit_code == Exit.WORLD
    for store in (str(family.directory), family.directory.as_uri().replace("file:", "files:")):
        assert rath("show 11111111 --store", store).exit_code == Exit.ANSWERED


def test_a_store_of_an_unknown_kind_is_a_misuse(rath: Rath) -> None:
    rath(
        "ls --store nosuch://here", ends=Exit.MISUSE, out="", err="no session store named 'nosuch'"
    )


@pytest.mark.parametrize("verb", ["show", "tail", "verify"])
def test_a_damaged_log_ends_with_four(rath: Rath, family: Family, verb: str) -> None:
    damage(family.directory, family.user)
    result = rath(verb, "11111111", ends=Exit.DAMAGED)
    assert "11111111-0000-4000-8000-000000000001.jsonl:2: the checksum does not fit" in (
        result.stdout + result.stderr
    )


@pytest.mark.parametrize("verb", ["ls", "show", "tail", "log", "cost", "verify", "prune", "rm"])
def test_every_option_stands_in_the_reference(rath: Rath, verb: str) -> None:
    page = (Path(package.__file__).parents[2] / "docs/source/reference/cli.md").read_text("utf-8")
    section = page.partition(f"## rath {verb}\n")[2].partition("\n## ")[0]
    shared_options = page.partition("## Stored sessions\n")[2].partition("\n## ")[0]
    options = set(re.findall(r"│[ *]+(--[\w-]+)", rath(verb, "--help").stdout)) - {"--help"}
    assert "--store" in options
    assert {each for each in options if each not in section + shared_options} == set()


@pytest.mark.skipif(os.name == "nt", reason="there are no such pipes")
def test_a_reader_that_goes_away_is_no_error(family: Family, project: Path) -> None:
    command = [sys.executable, "-m", "rath", "ls"]
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, cwd=project, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, b"")
