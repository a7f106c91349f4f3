"""`rath ls`, `log` and `cost`: many sessions of one store, and of others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from rath.cli.listing import draw_graph, lineage_of, newest_first
from rath.cli.terminal import Exit
from rath.session import Session
from rath.session.log.index import SessionSummary, StoreIndex
from tests.cli.conftest import Rath
from tests.support.api import INDEX_FILE_NAME
from tests.support.logs import DAY, LogMaker, MemoryStore
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


def test_what_is_left_out_is_reported(rath: Rath, family: Family) -> None:
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


def test_an_index_that_cannot_be_preserved_is_noted(rath: Rath, family: Family) -> None:
    (family.directory / INDEX_FILE_NAME).mkdir()
    result = rath("ls", ends=Exit.ANSWERED)
    assert len(ids(result.stdout)) == 7
    assert "so all logs were read" in result.stderr


def test_what_is_reported_sends_no_commands_to_a_terminal(rath: Rath, sessions: Path) -> None:
    save(sessions, LogMaker().said("\x1b[2J\x07 fine").ended())
    assert "\\x1b[2J" in rath("ls").stdout


GRAPH = """\
●    77777777  needs_decision  2026-11-01 18:00  run_session_loop  Something else
●    66666666  completed  2026-11-01 17:00  implicit  Something else
●    55555555  completed  2026-11-01 16:00  merge
├─╮
│ ●  44444444  failed  2026-11-01 15:00  Team.coder#1  no answer
● │  33333333  completed  2026-11-01 14:00  Team.coder#0 fork
├─╯
●    22222222  completed  2026-11-01 13:00  Team.planner#0  Fix the parser
●    11111111  completed  2026-11-01 12:00  implicit  Fix the parser
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
    assert result.stderr == "note: the newest 2 of 7 sessions; -n 0 shows all\n"
    assert len(rath("log -n 0").stdout.splitlines()) == 7


V1 = Path(__file__).parents[1] / "data" / "v1"


def total(rath: Rath, *args: str) -> dict[str, Any]:
    """The sum that a program gets."""
    result = rath("cost --json", *args, ends=Exit.ANSWERED)
    made: dict[str, Any] = json.loads(result.stdout)["total"]
    return made


def test_the_costs_of_a_store_by_model(rath: Rath, family: Family) -> None:
    result = rath("cost")
    assert result.stdout.splitlines() == [
        "gpt-5-mini  3 calls  220 tokens  $0.02 + ?",
        "claude       1 call  110 tokens  $0.00 + ?",
        "total       4 calls  330 tokens  $0.02 + ?",
    ]
    assert result.stderr.splitlines() == [
        "note: 1 call of 'claude' has no known price",
        "note: of 1 call of 'gpt-5-mini' nobody said how many tokens they took",
    ]


def test_what_a_damaged_log_may_hold_is_not_counted_in_silence(rath: Rath, family: Family) -> None:
    damage(family.directory, family.user)
    result = rath("cost", str(family.plan.session), ends=Exit.DAMAGED)
    assert result.stdout.splitlines()[-1].startswith("total")
    assert f"session {family.user.session} is damaged: line" in result.stderr


@pytest.mark.parametrize(
    ("by", "names"),
    [
        (
            "session",
            [
                "22222222  Fix the parser",
                "77777777  Something else",
                "33333333  fork",
                "44444444  run_session_loop",
            ],
        ),
        ("run", ["0ddba11c  Team", "no workflow call"]),
        ("day", ["2026-11-01"]),
    ],
)
def test_other_groups(rath: Rath, family: Family, by: str, names: list[str]) -> None:
    told = json.loads(rath("cost --by", by, "--json").stdout)
    assert [group["name"] for group in told["groups"]] == names
    assert sum(group["n_calls"] for group in told["groups"]) == told["total"]["n_calls"] == 4


def test_what_a_session_came_from_counts_with_it(rath: Rath, family: Family) -> None:
    counted = total(rath, "55555555")
    assert (counted["n_calls"], counted["usd"], counted["is_complete"]) == (3, "0.01", False)
    assert (counted["unpriced"], counted["uncounted"]) == ({"claude": 1}, {"gpt-5-mini": 1})


def test_it_counts_as_the_session_itself_does(rath: Rath, sessions: Path) -> None:
    user = LogMaker().said("go").ended()
    run = LogMaker(parents=(user.session,), begins_with=(user.part(),))
    run.begun().answered("a", usd="0.5").answered("b", usd="0.25").ended()
    save(sessions, user, run)
    loaded = Session.load(run.session)
    assert total(rath, str(run.session))["usd"] == str(loaded.cumulative_cost.usd)


def test_the_calls_of_one_run(rath: Rath, family: Family) -> None:
    assert total(rath, "--run", "0ddba11c")["n_calls"] == 3


def test_a_call_that_stands_in_two_logs_counts_once(rath: Rath, sessions: Path) -> None:
    call, run = uuid4(), uuid4()
    outer = LogMaker(at=DAY).begun(path="A", run=run).answered(None, entry_id=call).ended()
    inner = LogMaker(at=outer.now())
    inner.begun(path="A.b", run=run).answered("x", entry_id=call).ended()
    save(sessions, outer, inner)
    assert total(rath)["n_calls"] == 1
    (group,) = json.loads(rath("cost --by session --json").stdout)["groups"]
    assert group["name"].startswith(str(inner.session)[:8])


def test_tokens_without_a_call_are_reported(rath: Rath, sessions: Path) -> None:
    sessions.mkdir(parents=True)
    session = "9531c84d-17b6-47a6-b9ad-3e625f957dac"
    (sessions / f"{session}.jsonl").write_bytes((V1 / "tools.jsonl").read_bytes())
    result = rath("cost", session)
    assert result.stdout == "total  0 calls  0 tokens  $0.00 + ?\n"
    assert "75 tokens came without a call" in result.stderr


def test_an_empty_store_costs_nothing(rath: Rath) -> None:
    result = rath("cost", ends=Exit.ANSWERED, err="")
    assert result.stdout == "total  0 calls  0 tokens  $0.00\n"


def test_a_session_and_a_run_are_one_too_many(rath: Rath, family: Family) -> None:
    rath("cost 1111 --run 0ddba11c", ends=Exit.MISUSE, out="")


def family(*parents: tuple[int, ...]) -> list[SessionSummary]:
    """Sessions that were begun after one another, each with the numbers of its parents."""
    store = MemoryStore()
    for number, made_of in enumerate(parents):
        ids = tuple(UUID(int=parent) for parent in made_of)
        at = DAY + timedelta(minutes=number)
        store.put(LogMaker(UUID(int=number), at=at, parents=ids))
    with StoreIndex(store) as index:
        return newest_first(index.summaries())


def picture(*parents: tuple[int, ...]) -> list[str]:
    """The graph, with the number of each session behind its line."""
    return [
        before if session is None else f"{before} {session.id.int}"
        for before, session in draw_graph(family(*parents))
    ]


@pytest.mark.parametrize(
    ("parents", "lines"),
    [
        pytest.param(((), (0,), (1,)), "● 2/● 1/● 0", id="a chain"),
        pytest.param(((), (), ()), "● 2/● 1/● 0", id="strangers"),
        pytest.param(((), (0,), (0,)), "● 2/│ ● 1/├─╯/● 0", id="a branch"),
        pytest.param(((), (), (0, 1)), "● 2/├─╮/│ ● 1/● 0", id="a merge"),
        pytest.param(
            ((), (0,), (0,), (1, 2)), "● 3/├─╮/│ ● 2/● │ 1/├─╯/● 0", id="a branch and a merge"
        ),
        pytest.param(((), (0,), (0,), (0,)), "● 3/│ ● 2/│ │ ● 1/├─┴─╯/● 0", id="many branches"),
        pytest.param(
            ((), (0,), (1, 0), (0,)), "● 3/│ ● 2/├─┤/│ ● 1/├─╯/● 0", id="a lane that is there"
        ),
        pytest.param(
            ((), (), (), (1,), (0, 2)), "● 4/├─╮/│ │ ● 3/│ ● │ 2/│   ● 1/● 0", id="lanes cross"
        ),
        pytest.param(
            ((), (0,), (0,), (0, 1)), "● 3/├─╮/│ │ ● 2/│ ● │ 1/├─┴─╯/● 0", id="lanes join"
        ),
        pytest.param(((), (), (1, 0), (0,)), "● 3/│ ● 2/├─┤/│ ● 1/● 0", id="a lane to the left"),
        pytest.param(((7,), (0, 9)), "● 1/● 0", id="unknown parents"),
    ],
)
def test_a_graph_is_drawn(parents: tuple[tuple[int, ...], ...], lines: str) -> None:
    assert picture(*parents) == lines.split("/")


def test_one_that_came_from_itself_is_there_all_the_same() -> None:
    assert sorted(picture((1,), (0,), (2,))) != []
    assert {line[-1] for line in picture((1,), (0,), (2,)) if "●" in line} == {"0", "1", "2"}


@given(st.lists(st.lists(st.integers(0, 9), max_size=3), max_size=10))
def test_any_family_can_be_draw_graph(parents: list[list[int]]) -> None:
    made_of = [tuple(p for p in each if p < number) for number, each in enumerate(parents)]
    sessions = family(*made_of)
    lines = list(draw_graph(sessions))
    assert [session for _, session in lines if session is not None] == sessions
    assert all(before.count("●") == (session is not None) for before, session in lines)
    at = {session.id: place for place, session in enumerate(sessions)}
    assert all(at[p] > at[s.id] for s in sessions for p in s.parents)


def test_a_tree_has_each_session_once_however_it_is_made() -> None:
    sessions = family((), (0,), (0, 1), (1,), (5,), (4,))
    branches = lineage_of(sessions)
    assert [session.id.int for _, session in branches] == [0, 1, 3, 2, 5, 4]
    assert [before for before, _ in branches] == ["", "├─ ", "│  ", "└─ ", "", ""]


@given(st.lists(st.lists(st.integers(0, 9), max_size=3), max_size=10))
def test_any_family_is_a_tree(parents: list[list[int]]) -> None:
    sessions = family(*map(tuple, parents))
    told = [session.id for _, session in lineage_of(sessions)]
    assert sorted(told) == sorted(session.id for session in sessions)


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
