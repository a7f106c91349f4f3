"""`rath ls`: which sessions it lists, in which order, and how they fit into a line."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from rath.cli.terminal import Exit
from rath.session.log.index import SessionSummary
from tests.cli.conftest import Rath
from tests.support.api import INDEX_FILE_NAME
from tests.support.logs import LogMaker
from tests.support.store_family import RUN, Family, damage, ident, save

TREE = """\
66666666  completed       2026-11-01 17:00  Something else  (1 row)
└─ 77777777  needs_decision  2026-11-01 18:00  Something else  (2 rows, 1 call, $0.01)
11111111  completed       2026-11-01 12:00  Fix the parser  (1 row)
└─ 22222222  completed       2026-11-01 13:00  Team.planner#0  Fix the parser  (2 rows, 1 call, $0.01)
   ├─ 33333333  completed       2026-11-01 14:00  Team.coder#0 fork  (1 row, 1 call, $0.00 + unknown)
   │  55555555  completed       2026-11-01 16:00  merge  (1 row) +44444444
   └─ 44444444  failed          2026-11-01 15:00  Team.coder#1  no answer  (0 rows, 1 call, $0.00 + unknown)
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
    assert lines[5] == "run 0ddba11c  Team  3 sessions, $0.01"
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


def test_what_is_left_out_is_told(rath: Rath, family: Family) -> None:
    result = rath("ls -n 3")
    assert result.stderr == "note: the newest 3 of 7 sessions; --all lists every one\n"


def test_instructions_alone_are_listed_with_all(rath: Rath, sessions: Path) -> None:
    said = LogMaker(ident(1)).said("go").ended()
    save(sessions, said, LogMaker(ident(2)).ended())
    assert ids(rath("ls").stdout) == ["1"]
    assert set(ids(rath("ls --all").stdout)) == {"1", "2"}


def test_an_empty_store_and_one_where_nothing_fits(rath: Rath, sessions: Path) -> None:
    result = rath("ls", ends=Exit.ANSWERED, out="")
    assert result.stderr == f"note: there are no sessions in {sessions}\n"
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
        lines = rath("ls --by", by).stdout.splitlines()
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
    assert set(plan) == set(SessionSummary.__slots__)
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
    }


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (("--state", "fine"), "no state 'fine'; expected one of completed, "),
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


def test_an_index_that_cannot_be_kept_is_noted(rath: Rath, family: Family) -> None:
    (family.directory / INDEX_FILE_NAME).mkdir()
    result = rath("ls", ends=Exit.ANSWERED)
    assert len(ids(result.stdout)) == 7
    assert "so all logs were read" in result.stderr


def test_what_is_said_sends_no_commands_to_a_terminal(rath: Rath, sessions: Path) -> None:
    save(sessions, LogMaker().said("\x1b[2J\x07 fine").ended())
    assert "\\x1b[2J" in rath("ls").stdout
