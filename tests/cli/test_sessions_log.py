"""`rath log`: sessions by time and what they came from."""

from __future__ import annotations

from rath.cli.terminal import Exit
from tests.cli.conftest import Rath
from tests.support.store_family import Family

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


def test_a_limit_is_told(rath: Rath, family: Family) -> None:
    result = rath("log -n 2")
    assert len(result.stdout.splitlines()) == 2
    assert result.stderr == "note: the newest 2 of 7 sessions; -n 0 shows all\n"
    assert len(rath("log -n 0").stdout.splitlines()) == 7
