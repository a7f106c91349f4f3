"""`rath ls`, `log` and `cost`: many sessions of one store, and of others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from rich.cells import cell_len

from rath.cli.terminal import Exit
from rath.session.graph.kind import LineageKind
from rath.session.log.index import SessionSummary
from tests.cli.conftest import Rath
from tests.support.api import INDEX_FILE_NAME
from tests.support.logs import DAY, LogMaker
from tests.support.store_family import RUN, Family, damage, ident, save

TREE = """\
66666666  completed       2026-11-01 17:00  Something else  (1 row)
└─ 77777777  needs_decision  2026-11-01 18:00  run_session_loop  (2 rows, 1 call, $0.01)
11111111  completed       2026-11-01 12:00  Fix the parser  (1 row)
└─ 22222222  completed       2026-11-01 13:00  Team.planner#0  (2 rows, 1 call, $0.01)
   ├─ 33333333  completed       2026-11-01 14:00  Team.coder#0 fork  (1 row, 1 call, unpriced)
   │  55555555  completed       2026-11-01 16:00  merge  (1 row) +44444444
   └─ 44444444  failed          2026-11-01 15:00  Team.coder#1  no answer  (0 rows, 1 call, unpriced)
"""  # noqa: E501  # as it is shown


def ids(stdout: str) -> list[str]:
    """The first digits of the ids, in the order of the lines."""
    words = (line.lstrip("├└│─ ").split() for line in stdout.splitlines())
    return [line[0][0] for line in words if line and line[0].isalnum()]


def listed(rath: Rath, *args: str) -> list[dict[str, Any]]:
    """What a program gets."""
    result = rath("ls --json", *args, ends=Exit.ANSWERED)
    sessions: list[dict[str, Any]] = json.loads(result.stdout)["sessions"]
    return sessions


def test_a_tree_by_lineage(rath: Rath, family: Family) -> None:
    result = rath("ls", ends=Exit.ANSWERED)
    assert result.stdout == TREE
    assert result.stderr == ""


def test_it_says_the_same_when_it_is_asked_again(rath: Rath, family: Family) -> None:
    assert rath("ls").stdout == rath("ls").stdout
    (family.directory / INDEX_FILE_NAME).unlink()
    assert rath("ls").stdout == rath("ls").stdout


def test_by_run(rath: Rath, family: Family) -> None:
    lines = rath("ls --by run").stdout.splitlines()
    assert lines[0] == "no workflow call  4 sessions, $0.01"
    assert lines[5] == "run 0ddba11c  Team  3 sessions, $0.01 + unpriced"
    assert ids("\n".join(lines[6:])) == ["2", "3", "4"]


def test_by_time(rath: Rath, family: Family) -> None:
    stdout = rath("ls --by time").stdout
    assert ids(stdout) == ["7", "6", "5", "4", "3", "2", "1"]
    assert "─" not in stdout


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (("--state", "failed"), "4"),
        (("--state", "failed", "--state", "needs_decision"), "74"),
        (("--since", "2026-11-01T16:00"), "765"),
        (("--until", "2026-11-01T13:00"), "1"),
        (("--since", "2026-11-01T13:00+01:00", "--until", "2026-11-01T14:00+01:00"), "1"),
        (("--operator", "merge"), "5"),
        (("--operator", "op_fork"), "3"),
        (("--model", "CLAUDE"), "3"),
        (("--parent", "2222"), "43"),
        (("--run", "0ddb"), "432"),
        (("parser",), "1"),
        (("something", "els"), "6"),
        (("-n", "2"), "76"),
        (("--limit", "0"), "7654321"),
    ],
    ids=" ".join,
)
def test_filters(rath: Rath, family: Family, args: tuple[str, ...], expected: str) -> None:
    assert ids(rath("ls --by time", *args).stdout) == list(expected)


def test_an_age_counts_from_now(rath: Rath, sessions: Path) -> None:
    now = datetime.now(UTC)
    old = LogMaker(ident(1), at=now - timedelta(days=3)).said("old").ended()
    save(sessions, old, LogMaker(ident(2), at=now - timedelta(hours=1)).said("new").ended())
    assert ids(rath("ls --since 2d").stdout) == ["2"]
    assert ids(rath("ls --until 1.5d").stdout) == ["1"]
    assert ids(rath("ls --since 9999999999999w").stdout) == ["2", "1"]


def test_what_is_left_out_is_reported(rath: Rath, family: Family) -> None:
    result = rath("ls -n 3")
    assert result.stderr == "note: the newest 3 of 7 sessions; --limit 0 lists all\n"


def test_instructions_alone_are_listed_with_all(rath: Rath, sessions: Path) -> None:
    said = LogMaker(ident(1)).said("go").ended()
    save(sessions, said, LogMaker(ident(2)).ended())
    assert ids(rath("ls").stdout) == ["1"]
    assert set(ids(rath("ls --all").stdout)) == {"1", "2"}


def test_an_empty_store_and_one_where_nothing_fits(rath: Rath, sessions: Path) -> None:
    result = rath("ls", ends=Exit.ANSWERED, out="")
    assert result.stderr.startswith(f"note: there are no sessions in {sessions}. rath.autosave()")
    assert rath("log", out="").stderr == result.stderr
    assert not sessions.exists()
    save(sessions, LogMaker().said("go"))
    assert rath("ls else").stderr == f"note: no session of {sessions} fits\n"


@pytest.mark.parametrize("columns", [100, 60, 40])
def test_lines_fit_into_a_narrow_terminal(
    rath: Rath, sessions: Path, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    before = LogMaker(ident(1)).said("请修复 " * 50 + "word " * 50).ended()
    save(sessions, before)
    for number in range(2, 9):
        after = LogMaker(ident(number), parents=(before.session,), begins_with=(before.part(),))
        save(sessions, after.begun(path="Team.planner" * 5).said("x").ended())
    monkeypatch.setenv("COLUMNS", str(columns))
    for by in ("lineage", "run", "time"):
        lines = rath("ls --all --by", by).stdout.splitlines()
        assert max(map(cell_len, lines)) <= columns
        assert all(any(str(n) * 8 in line for line in lines) for n in range(1, 9))
        assert "\n".join(lines).count("completed") == 8


def test_a_long_chain_grows_no_wider(rath: Rath, sessions: Path) -> None:
    before = LogMaker().said("go").ended()
    save(sessions, before)
    for _ in range(30):
        before = LogMaker(parents=(before.session,), at=before.now()).ended()
        save(sessions, before)
    lines = rath("ls --all").stdout.splitlines()
    assert len(lines) == 31
    assert {line.index("completed") for line in lines[1:]} == {13}


def test_damaged_sessions_are_listed_with_their_problem(rath: Rath, family: Family) -> None:
    damage(family.directory, family.user)
    result = rath("ls --state damaged", ends=Exit.ANSWERED, out="11111111  damaged")
    assert "line 2: the checksum does not fit" in result.stdout


def test_json_has_all_that_is_known(rath: Rath, family: Family) -> None:
    (plan,) = listed(rath, "--run", str(RUN), "--until", "2026-11-01T13:30")
    assert set(plan) == {*SessionSummary.__slots__, "n_turns"}
    assert plan | {"updated_at": "", "size": 0} == {
        "id": str(family.plan.session),
        "created_at": "2026-11-01T13:00:00+00:00",
        "updated_at": "",
        "state": "completed",
        "problem": "",
        "operator": "run_session_loop",
        "kind": "op_session_loop",
        "parents": [str(family.user.session)],
        "run": str(RUN),
        "path": "Team.planner",
        "ordinal": 0,
        "title": "Fix the parser",
        "n_rows": 2,
        "n_calls": 1,
        "n_tool_runs": 0,
        "tokens": 110,
        "usd": "0.01",
        "is_priced": True,
        "models": ["gpt-5-mini"],
        "backend": None,
        "size": 0,
        "n_turns": 1,
    }


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (("--state", "zzz"), "no state 'zzz'. Expected one of completed, "),
        (("--since", "yesterday"), "--since 'yesterday' is no time; expected an age such as"),
        (("--until", "7"), "--until '7' is no time"),
        (("--run", "xyz"), "'xyz' names no workflow call"),
        (("--run", "0dd"), "'0dd' names no workflow call"),
    ],
)
def test_a_wrong_filter_is_a_misuse(
    rath: Rath, family: Family, args: tuple[str, ...], problem: str
) -> None:
    rath("ls", *args, ends=Exit.MISUSE, out="", err=problem)


def test_an_unknown_run_is_a_problem(rath: Rath, family: Family) -> None:
    result = rath("ls --run 99999999", ends=Exit.WORLD)
    assert "no workflow call of the store begins with '99999999'" in result.stderr


def test_an_index_that_cannot_be_preserved_is_noted(rath: Rath, family: Family) -> None:
    (family.directory / INDEX_FILE_NAME).mkdir()
    result = rath("ls", ends=Exit.ANSWERED)
    assert len(ids(result.stdout)) == 7
    assert "so all logs were read" in result.stderr


def test_what_is_reported_sends_no_commands_to_a_terminal(rath: Rath, sessions: Path) -> None:
    save(sessions, LogMaker().said("\x1b[2J\x07 fine").ended())
    assert "\\x1b[2J" in rath("ls").stdout


GRAPH = """\
●    77777777  needs_decision  2026-11-01 18:00  run_session_loop
●    66666666  completed  2026-11-01 17:00  Something else
●    55555555  completed  2026-11-01 16:00  merge
├─╮
│ ●  44444444  failed  2026-11-01 15:00  Team.coder#1  no answer
● │  33333333  completed  2026-11-01 14:00  Team.coder#0 fork
├─╯
●    22222222  completed  2026-11-01 13:00  Team.planner#0
●    11111111  completed  2026-11-01 12:00  Fix the parser
"""


def test_the_graph_of_a_store(rath: Rath, family: Family) -> None:
    result = rath("log --graph")
    assert (result.exit_code, result.stdout, result.stderr) == (Exit.ANSWERED, GRAPH, "")


def test_what_a_session_came_from(rath: Rath, family: Family) -> None:
    lines = rath("log 33333333").stdout.splitlines()
    assert [line[:8] for line in lines] == ["33333333", "22222222", "11111111"]


def test_what_came_from_a_session_too(rath: Rath, family: Family) -> None:
    lines = rath("log 3333 --descendants").stdout.splitlines()
    assert [line[:8] for line in lines] == ["55555555", "33333333", "22222222", "11111111"]


def test_a_limit_is_reported(rath: Rath, family: Family) -> None:
    result = rath("log -n 2")
    assert len(result.stdout.splitlines()) == 2
    assert result.stderr == "note: the newest 2 of 7 sessions; --limit 0 lists all\n"
    assert len(rath("log -n 0").stdout.splitlines()) == 7


def test_json_says_that_it_was_cut_and_how_to_get_all(rath: Rath, family: Family) -> None:
    assert family.directory.is_dir()
    for verb in ("ls", "log"):
        cut = json.loads(rath(verb, "--json", "-n", "3", ends=Exit.ANSWERED).stdout)
        assert (len(cut["sessions"]), cut["n_found"], cut["is_cut"]) == (3, 7, True)
        assert cut["hint"] == "the newest 3 of 7 sessions; --limit 0 lists all"
        whole = json.loads(rath(verb, "--json", ends=Exit.ANSWERED).stdout)
        assert (len(whole["sessions"]), whole["n_found"], whole["is_cut"]) == (7, 7, False)
        assert "hint" not in whole


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (("--state", "failed"), "4"),
        (("--since", "2026-11-01T16:00"), "765"),
        (("--until", "2026-11-01T13:00"), "1"),
        (("55555555", "--state", "failed"), "4"),
        (("55555555", "--since", "2026-11-01T15:00"), "54"),
    ],
    ids=" ".join,
)
def test_the_history_is_filtered(
    rath: Rath, family: Family, args: tuple[str, ...], expected: str
) -> None:
    assert family.directory.is_dir()
    assert ids(rath("log", *args).stdout) == list(expected)


def save_chat(sessions: Path, n_turns: int) -> None:
    """A conversation: words of a user and an answer in turn, each a session."""
    before = LogMaker(ident(1)).said("hi, who are you?").ended()
    save(sessions, before)
    for number in range(2, 2 * n_turns + 1):
        at = DAY + timedelta(minutes=number)
        given: dict[str, Any] = {
            "parents": (before.session,),
            "begins_with": (before.part(),),
            "at": at,
        }
        if number % 2:
            given |= {"operator": "input", "kind": LineageKind.OP_INPUT}
            after = LogMaker(ident(number), **given).said("and now?")
        else:
            after = LogMaker(ident(number), **given).begun().answered(f"answer {number}")
        save(sessions, after.ended())
        before = after


def test_a_conversation_is_one_line(rath: Rath, sessions: Path) -> None:
    save_chat(sessions, 3)
    assert rath("ls", ends=Exit.ANSWERED).stdout == (
        "66666666  completed  2026-11-01 12:06  hi, who are you?  "
        "(3 turns, 6 rows, 1 call, $0.01)\n"
    )
    assert "3 turns  hi, who are you?" in rath("log", ends=Exit.ANSWERED).stdout
    (chat,) = listed(rath)
    assert (chat["id"], chat["n_turns"], chat["title"]) == (str(ident(6)), 3, "hi, who are you?")
    assert len(listed(rath, "--all")) == 6
    assert ids(rath("ls --all").stdout) == list("123456")
    assert ids(rath("log --all").stdout) == list("654321")


def test_words_of_a_user_stand_once_in_a_tree(rath: Rath, family: Family) -> None:
    assert family.directory.is_dir()
    for verb in ("ls", "log", "log --graph"):
        assert rath(verb).stdout.count("Fix the parser") == 1


def test_many_branches_are_one_line(rath: Rath, sessions: Path) -> None:
    start = LogMaker(ident(1)).said("Find a title").ended()
    save(sessions, start)
    for number in range(2, 8):
        fork = LogMaker(
            ident(number),
            at=DAY + timedelta(minutes=number),
            parents=(start.session,),
            begins_with=(start.part(),),
        ).begun(path="Wide.solver", ordinal=number)
        fork = fork.failed("no answer") if number == 3 else fork.answered("x").ended()
        save(sessions, fork, is_finished=number != 3)
    line = "6 branches  5 completed, 1 failed  Wide.solver, the newest 77777777"
    assert rath("ls").stdout.splitlines()[1] == f"└─ {line}"
    assert rath("log --graph").stdout.splitlines()[0] == f"●  {line}"
    assert len(rath("log").stdout.splitlines()) == 7
    assert len(rath("ls --all").stdout.splitlines()) == 7
    assert len(listed(rath)) == 7


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
        "error: no session of the store begins with '99999999'. `rath ls` lists them\n"
    )


@pytest.mark.parametrize("verb", VERBS)
def test_a_complete_unknown_id_is_a_problem_too(rath: Rath, family: Family, verb: str) -> None:
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


@pytest.mark.skipif(os.name == "nt", reason="there are no such pipes")
def test_a_reader_that_goes_away_is_no_error(family: Family, project: Path) -> None:
    command = [sys.executable, "-m", "rath", "ls"]
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, cwd=project, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, b"")
