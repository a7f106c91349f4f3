"""`rath approve`, `deny`, `edit`, `answer`: what waits in a store is answered without code."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

import rath as rath_package
from rath import autosave
from rath.cli.terminal import Exit
from rath.session import Session
from rath.session.outcome import Completed
from rath.testing import tool_call
from tests.cli.conftest import Rath
from tests.session.approvals.test_inside_calls import Helper, agent_of, boss_of
from tests.support.approvals import Noting, calls_of, decisions, go, results, waiting
from tests.support.cut_off import cut_off


@pytest.fixture
def stored(project: Path) -> Session:
    """Three calls that wait for approvals."""
    assert project.exists()
    return waiting(1, 2, 3, persist=True)


def test_calls_are_approved_denied_and_edited_and_the_run_goes_on(
    rath: Rath, stored: Session
) -> None:
    ident = str(stored.id)
    assert rath("approve", ident, "c1", "--by", "ada").exit_code == Exit.ANSWERED
    assert rath("deny", ident[:8], "c2", "too early").exit_code == Exit.ANSWERED
    done = rath("edit", ident, "c3", '{"n": 7}', ends=Exit.ANSWERED)
    assert "nothing waits any more" in done.output
    tool = Noting()
    out = go(["done"], tool, user=Session.load(ident))
    assert sorted(tool.calls) == [1, 7]
    assert results(out)[1][1]["message"].endswith("too early")
    assert [each.by for each in decisions(out)] == ["ada", "Session.deny", "Session.edit"]


def test_what_still_waits_is_told_with_how_to_say_it(rath: Rath, stored: Session) -> None:
    told = rath("approve", str(stored.id), "c1").output
    assert "c2 waits for an approval: f" in told
    assert f"rath approve {stored.id} c2" in told
    assert "c1 waits" not in told


def test_as_json_it_lists_what_still_waits(rath: Rath, stored: Session) -> None:
    told = json.loads(rath("deny", str(stored.id), "c2", "--json").output)
    assert (told["session"], told["call"], told["state"]) == (
        str(stored.id),
        "c2",
        "needs_approval",
    )
    assert [(each["call"], each["waits_for"]) for each in told["waiting"]] == [
        ("c1", "approval"),
        ("c3", "approval"),
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("approve", "c9"), "no call 'c9' waits for an approval; what waits: c1 waits"),
        (("edit", "c1", "[1]"), "must be a JSON object"),
        (("edit", "c1", "{"), "is no JSON"),
        (("edit", "c1", '{"n": "x"}'), "'x' is not of type 'integer'"),
        (("answer", "c1", "1"), "waits for an answer"),
        (("answer", "c1", "red"), "for a text give --text"),
    ],
    ids=["unknown", "a list", "no JSON", "schema", "no question", "a bare word"],
)
def test_what_cannot_be_said_is_refused_with_status_2(
    arguments: tuple[str, ...], said: str, rath: Rath, stored: Session
) -> None:
    verb, *more = arguments
    done = rath(verb, str(stored.id), *more, ends=Exit.MISUSE)
    assert said in " ".join(done.output.split())
    assert decisions(Session.load(stored.id)) == []


def test_a_session_that_waits_for_nothing_takes_no_word(rath: Rath, project: Path) -> None:
    assert project.exists()
    out = go(["done"], persist=True)
    done = rath("approve", str(out.id), "c1", ends=Exit.MISUSE)
    assert "what waits: nothing" in done.output


def test_calls_of_one_id_are_named_by_their_index(rath: Rath, project: Path) -> None:
    assert project.exists()
    turn = tool_call("f", {"n": 1}, tool_call("f", {"n": 2}, id="same"), id="same")
    session = go([turn], Noting(), persist=True)
    done = rath("approve", str(session.id), "same", ends=Exit.MISUSE)
    assert "--index 0, --index 1" in done.output
    assert rath("approve", str(session.id), "same", "--index", "1").exit_code == Exit.ANSWERED
    assert [each.waits for each in Session.load(session.id).open_calls] == [True, False]


@pytest.mark.parametrize("name", ["-x", "--by", "it's $HOME"])
def test_a_call_of_any_id_is_approved_as_it_is_told(rath: Rath, project: Path, name: str) -> None:
    assert project.exists()
    session = go([tool_call("f", {"n": 1}, id=name)], Noting(), persist=True)
    told = rath("show", str(session.id)).output.splitlines()
    (line,) = [each.strip() for each in told if "rath approve" in each]
    assert rath(*shlex.split(line)[1:]).exit_code == Exit.ANSWERED
    assert [each.waits for each in Session.load(session.id).open_calls] == [False]


@pytest.mark.parametrize(
    ("words", "expected"),
    [(("3",), 3), (('"red"',), "red"), (("red", "--text"), "red"), (("[1, 2]",), [1, 2])],
    ids=["number", "text", "bare text", "list"],
)
def test_a_question_is_answered(
    words: tuple[str, ...], expected: Any, rath: Rath, project: Path
) -> None:
    assert project.exists()
    tool = Noting(work=lambda _: {"said": rath_package.ask("what?")}, approval="never")
    session = go([calls_of(1)], tool, persist=True)
    value, *more = words
    assert rath("answer", str(session.id), "c1", value, *more).exit_code == Exit.ANSWERED
    out = go(["done"], tool, user=Session.load(session.id))
    assert results(out) == [("c1", {"said": expected})]


def test_show_tells_what_is_asked_and_how_to_answer(rath: Rath, project: Path) -> None:
    assert project.exists()
    tool = Noting(work=lambda _: rath_package.ask("which one?", {"type": "integer"}))
    session = go([calls_of(1)], tool, persist=True)
    told = rath("show", str(session.id)).output
    assert "? c1 waits for an approval" in told
    assert f"rath deny {session.id} c1 REASON" in told
    assert rath("approve", str(session.id), "c1").exit_code == Exit.ANSWERED
    go([], tool, user=Session.load(session.id))
    told = rath("show", str(session.id)).output
    assert "needs_input: which one?" in told
    assert "? c1 asks: which one?" in told
    assert f"rath answer {session.id} c1 VALUE" in told
    (waits,) = json.loads(rath("show", str(session.id), "--json").output)["waiting"]
    assert (waits["question"], waits["schema"]) == ("which one?", {"type": "integer"})


def test_show_writes_out_escapes_that_stand_in_a_question(rath: Rath, project: Path) -> None:
    assert project.exists()
    tool = Noting(work=lambda _: rath_package.ask("\x1b]0;a\x07 \x9b31mred?"), approval="never")
    session = go([calls_of(1)], tool, persist=True)
    told = rath("show", str(session.id), ends=Exit.ANSWERED).output
    assert {char for char in told if not char.isprintable()} == {"\n"}
    assert told.count(r"\x1b]0;a\x07 \x9b31mred?") == 3


def test_what_waits_inside_a_call_is_said_by_the_id_of_the_outer_session(
    rath: Rath, project: Path
) -> None:
    assert project.exists()
    tool = Noting()
    boss = boss_of(Helper(agent_of("helper", [calls_of(1), "helper is done"], tool)))
    with autosave():
        out = boss(Session.from_user_message("go")).synchronize()
        assert "c1 waits for an approval" in rath("show", str(out.id)).output
        assert rath("approve", str(out.id), "c1").exit_code == Exit.ANSWERED
        assert boss(Session.load(out.id)).outcome == Completed()
    assert tool.calls == [1]


def test_show_tells_of_a_call_whose_end_is_not_known(rath: Rath, project: Path) -> None:
    assert project.exists()
    whole = go([calls_of(1), "done"], Noting(approval="never"))
    session = cut_off(whole, 0, begun=[0])
    session.save()
    told = " ".join(rath("show", str(session.id)).output.split())
    assert "c1 waits for a decision: f" in told
    assert f"rath resume {session.id} MODULE:WORKFLOW --decide c1=CHOICE" in told
