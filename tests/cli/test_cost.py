"""`rath cost`: calls, tokens and money of stored sessions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from rath.cli.terminal import Exit
from rath.session import Session
from tests.cli.conftest import Rath
from tests.support.logs import DAY, LogMaker
from tests.support.store_family import Family, damage, save

V1 = Path(__file__).parents[1] / "data" / "v1"


def total(rath: Rath, *args: str) -> dict[str, Any]:
    """The sum that a program gets."""
    result = rath("cost --json", *args, ends=Exit.ANSWERED)
    made: dict[str, Any] = json.loads(result.stdout)["total"]
    return made


def test_the_costs_of_a_store_by_model(rath: Rath, family: Family) -> None:
    result = rath("cost")
    assert result.stdout.splitlines() == [
        "gpt-5-mini  3 calls  220 tokens  $0.02 + unpriced",
        "claude       1 call  110 tokens          unpriced",
        "total       4 calls  330 tokens  $0.02 + unpriced",
    ]
    assert result.stderr.splitlines() == [
        "note: 1 call of 'claude' is unpriced: no price of that model there is known",
        "note: 1 call of 'gpt-5-mini' is unpriced: the answer did not say how many tokens it took",
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
    assert result.stdout == "total  0 calls  0 tokens  unpriced\n"
    assert "75 tokens came without a call" in result.stderr


def test_an_empty_store_costs_nothing(rath: Rath) -> None:
    result = rath("cost", ends=Exit.ANSWERED, err="")
    assert result.stdout == "total  0 calls  0 tokens  $0.00\n"


def test_a_session_and_a_run_are_one_too_many(rath: Rath, family: Family) -> None:
    rath("cost 1111 --run 0ddba11c", ends=Exit.MISUSE, out="")
