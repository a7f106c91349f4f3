"""Which calls somebody must allow: what tools say, what the run says, and what goes wrong there."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any, cast

import pytest

from rath.flow import Agent
from rath.session import Session, run_session_loop
from rath.session.outcome import Completed, NeedsApproval
from rath.session.tooling import ApprovalRule, CallRequest
from rath.testing import ScriptedClient, tool_call
from tests.support.approvals import AGENT, Noting, calls_of, go, kinds, results, waiting
from tests.support.cut_off import cut_off


def needed(session: Session) -> tuple[str, ...]:
    """The calls that wait for an approval; none where the run is done."""
    outcome = session.outcome
    if outcome == Completed():
        return ()
    assert isinstance(outcome, NeedsApproval)
    assert outcome.session == session.id
    return outcome.calls


def only_one(call: CallRequest) -> bool:
    return call.call_id == "c1"


def only_two(call: CallRequest) -> bool:
    return call.call_id == "c2"


async def only_two_soon(call: CallRequest) -> bool:
    await asyncio.sleep(0)
    return only_two(call)


@pytest.mark.parametrize(
    ("of_tool", "of_run", "expected"),
    [
        ("never", "never", ()),
        ("always", "never", ("c1", "c2")),
        ("never", "always", ("c1", "c2")),
        (only_two, "never", ("c2",)),
        ("never", only_two, ("c2",)),
        (only_two_soon, "never", ("c2",)),
        (only_two, "always", ("c1", "c2")),
        (only_one, only_two, ("c1", "c2")),
    ],
)
def test_a_call_needs_an_approval_if_its_tool_or_the_run_says_so(
    of_tool: ApprovalRule, of_run: ApprovalRule, expected: tuple[str, ...]
) -> None:
    tool = Noting(approval=of_tool)
    assert needed(go([calls_of(1, 2), "done"], tool, approval=of_run)) == expected
    assert sorted(tool.calls) == ([] if expected else [1, 2])


def test_where_one_call_waits_none_of_the_turn_is_made_and_nothing_is_noted_as_made() -> None:
    tool, other = Noting(approval=only_two), Noting("g", approval="never")
    turn = tool_call("g", {"n": 5}, calls_of(1, 2), id="c5")
    session = go([turn], tool, other)
    assert needed(session) == ("c2",)
    assert tool.calls == other.calls == []
    assert results(session) == []
    assert [kind.__name__ for kind in kinds(session)] == ["Operation", "ModelCall", "Interrupt"]


def test_a_rule_sees_the_call_and_a_snapshot_of_its_session() -> None:
    seen: list[CallRequest] = []

    def rule(call: CallRequest) -> bool:
        seen.append(call)
        return True

    session = waiting(1, tool=Noting(approval=rule))
    (call,) = seen
    assert (call.call_id, call.tool, call.arguments) == ("c1", "f", {"n": 1})
    assert call.session.id == session.id
    assert len(call.session.chunk_table) == 2


def broken(_: CallRequest) -> bool:
    raise LookupError("no list of names")


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def unspeakable(_: CallRequest) -> bool:
    raise Unspeakable


def leaves(_: CallRequest) -> bool:
    raise SystemExit(1)


def says(value: Any) -> Any:
    """A rule that gives one value."""

    def rule(_: CallRequest) -> Any:
        return value

    return rule


@pytest.mark.parametrize(
    ("rule", "reply"),
    [
        (broken, "it raised LookupError"),
        (unspeakable, "it raised Unspeakable"),
        (leaves, "it raised SystemExit"),
        (says(None), "it gave NoneType, expected a bool"),
        (says("no"), "it gave str, expected a bool"),
        (says(0), "it gave int, expected a bool"),
    ],
    ids=["raises", "raises without words", "exits", "None", "a text", "a number"],
)
def test_a_rule_that_gives_no_bool_means_yes_and_the_log_says_why(
    rule: Any, reply: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "rath.session.loop"):
        assert needed(waiting(1, tool=Noting(approval=rule))) == ("c1",)
    (record,) = [each for each in caplog.records if each.name == "rath.session.loop"]
    assert reply in record.getMessage()
    assert "'c1' (f)" in record.getMessage()


@pytest.mark.parametrize("is_async", [False, True], ids=["def", "async def"])
def test_a_rule_has_the_time_of_its_tool(is_async: bool, caplog: pytest.LogCaptureFixture) -> None:
    ended = threading.Event()

    async def forever(_: CallRequest) -> bool:
        await asyncio.Event().wait()
        return False

    def blocked(_: CallRequest) -> bool:
        return not ended.wait()

    tool = Noting(approval=forever if is_async else blocked)
    # It limits the checks of the arguments as well, which must pass on a busy machine.
    tool.timeout = 0.5
    try:
        with caplog.at_level(logging.WARNING, "rath.session.loop"):
            assert needed(waiting(1, tool=tool)) == ("c1",)
    finally:
        ended.set()
    assert "gave no answer within 0.5 s" in caplog.text


def test_a_decision_of_what_became_of_a_call_is_no_approval_of_one_that_was_not_started() -> None:
    tool = Noting(approval=says(False))
    left = cut_off(go([calls_of(1), "done"], tool), 0).decide("c1", "retry")
    tool.approval = "always"
    assert needed(go([], tool, user=left)) == ("c1",)
    assert tool.calls == [1]


def test_a_refused_call_next_to_one_that_waits_is_not_asked_about() -> None:
    bad = tool_call("f", {"n": "x"}, calls_of(2), id="c1")
    session = go([bad], Noting())
    assert needed(session) == ("c2",)
    out = go(["done"], Noting(), user=session.approve("c2"))
    assert [call for call, _ in results(out)] == ["c1", "c2"]


@pytest.mark.parametrize("rule", ["sometimes", True, None, 3])
def test_what_is_no_rule_is_refused_where_it_is_given(rule: Any) -> None:
    client = ScriptedClient([])
    with pytest.raises(TypeError, match=r"approval of run_session_loop must be 'never', 'always'"):
        run_session_loop(
            Session.from_user_message("go"), AGENT, agent_provider=client.provider, approval=rule
        )
    with pytest.raises(TypeError, match="approval of Agent must be"):
        Agent("go", client.provider, approval=rule)
    with pytest.raises(TypeError, match="approval of tool 'f' must be"):
        go([], Noting(approval=cast("ApprovalRule", rule)))


def test_rules_are_asked_again_only_about_calls_that_nobody_has_decided_about() -> None:
    asked: list[str] = []

    def rule(call: CallRequest) -> bool:
        asked.append(call.call_id)
        return call.call_id == "c2"

    session = waiting(1, 2, tool=Noting(approval=rule))
    assert asked == ["c1", "c2"]
    tool = Noting(approval=rule)
    go(["done"], tool, user=session.approve("c2"))
    assert asked == ["c1", "c2", "c1"]
    assert sorted(tool.calls) == [1, 2]
