"""A run that was cut off goes on under its own id, and repeats nothing that is known."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath.llm.chat_request import RathLLMChatRequest
from rath.session import Session
from rath.session.operation import Place
from rath.session.outcome import Completed, NeedsDecision, RoundLimit
from rath.session.record import ModelCall, Operation, RecalledNote, ToolRun
from rath.testing import ScriptedClient, tool_call
from tests.support.api import entries_since
from tests.support.cut_off import cut_off
from tests.support.sessions import FunctionTool, run

AGENT = Session.from_agent_prompt("You are a test.")
Effects = Literal["read_only", "idempotent", "non_idempotent"]


class Counting(FunctionTool):
    """A tool that answers with its argument and notes each call."""

    def __init__(self, name: str = "f", effects: Effects = "non_idempotent") -> None:
        super().__init__(name, self._note, parallel_safe=True)
        self.effects = effects
        self.calls: list[Any] = []

    def _note(self, _: Session, arguments: Mapping[str, Any]) -> dict[str, Any]:
        self.calls.append(arguments.get("n"))
        return {"said": arguments.get("n")}


def f_calls(*numbers: int) -> Any:
    """A turn that calls f once for each number."""
    first, *more = (tool_call("f", {"n": n}, id=f"call_{n}") for n in numbers)
    return tool_call("f", {"n": numbers[0]}, *more, id=first.tool_calls[0].id)  # type: ignore[index]  # made above


def rows_of(session: Session) -> list[tuple[object, object]]:
    return [(row.kind, dict(row.payload)) for row in session.chunk_table.rows]


SCRIPT = [f_calls(1, 2, 3), f_calls(4), "done"]


def test_a_suspended_run_goes_on_under_its_own_id() -> None:
    whole = run(SCRIPT, Counting(effects="idempotent"), agent=AGENT)
    tool = Counting(effects="idempotent")
    cut = cut_off(whole, 0, begun=[0], known=[1])
    out = run(SCRIPT[1:], tool, user=cut, agent=AGENT)
    assert out.id == whole.id
    assert rows_of(out) == rows_of(whole)
    assert sorted(tool.calls) == [1, 3, 4]
    assert out.outcome == Completed()


def test_a_run_that_goes_on_keeps_its_operation_and_its_parents() -> None:
    whole = run(SCRIPT, Counting(), agent=AGENT)
    out = run(SCRIPT[1:], Counting(), user=cut_off(whole, 0), agent=AGENT)
    operations = {entry.operation for entry in out.record}
    assert operations == {entry.operation for entry in whole.record}
    assert out.provenance is whole.provenance
    assert out.lineage == whole.lineage


@given(
    turn=st.sampled_from([None, 0, 1, 2]),
    states=st.lists(st.sampled_from(["asked", "begun", "known"]), min_size=3, max_size=3),
)
def test_from_wherever_it_was_cut_off_a_run_ends_with_the_same_rows(
    turn: int | None, states: list[str]
) -> None:
    whole = run(SCRIPT, Counting(effects="read_only"), agent=AGENT)
    n_calls = {None: 0, 0: 3, 1: 1, 2: 0}[turn]
    begun = [at for at in range(n_calls) if states[at] == "begun"]
    known = [at for at in range(n_calls) if states[at] == "known"]
    tool = Counting(effects="read_only")
    left = SCRIPT if turn is None else SCRIPT[turn + 1 :]
    out = run(left, tool, user=cut_off(whole, turn, begun=begun, known=known), agent=AGENT)
    assert rows_of(out) == rows_of(whole)
    first = {0: 1, 1: 4}.get(turn or 0, 0)
    assert not {first + at for at in known} & set(tool.calls)


def test_a_result_that_was_recorded_keeps_its_entry() -> None:
    whole = run(SCRIPT, Counting(), agent=AGENT)
    out = run(SCRIPT[1:], Counting(), user=cut_off(whole, 0, known=[1]), agent=AGENT)
    before = [entry for entry in whole.record if isinstance(entry, ToolRun)][1]
    after = [entry for entry in out.record if isinstance(entry, ToolRun)][1]
    assert after == before


def test_a_call_whose_outcome_is_unknown_needs_a_decision_and_nothing_is_done() -> None:
    whole = run(SCRIPT, Counting(), agent=AGENT)
    cut, tool, client = cut_off(whole, 0, begun=[1]), Counting(), ScriptedClient([])
    out = run([], tool, user=cut, agent=AGENT, agent_provider=client.provider)
    assert out.outcome == NeedsDecision(whole.id, ("call_2",))
    assert (out.id, tool.calls, client.requests) == (whole.id, [], [])


def test_another_agent_passes_a_suspended_session_on() -> None:
    whole = run(SCRIPT, Counting(effects="idempotent"), agent=AGENT)
    cut = cut_off(whole, 0, begun=[0])
    out = run([], user=cut, agent=Session.from_agent_prompt("You are another."))
    assert out.id != whole.id
    assert out.outcome == NeedsDecision(whole.id, ())
    assert rows_of(out) == rows_of(cut)


def test_what_passes_a_suspended_session_on_cannot_go_on_with_it() -> None:
    whole = run(SCRIPT, Counting(effects="idempotent"), agent=AGENT)
    passed_on = cut_off(whole, 0).fork()
    assert run([], user=passed_on, agent=AGENT).id not in (whole.id, passed_on.id)


def test_an_answer_without_its_trailer_is_the_end() -> None:
    whole = run(SCRIPT, Counting(), agent=AGENT)
    out = run([], user=cut_off(whole, 2), agent=AGENT)
    assert rows_of(out) == rows_of(whole)
    assert out.outcome == Completed()


def test_the_rounds_of_before_count() -> None:
    whole = run(SCRIPT, Counting(), agent=AGENT)
    out = run([], user=cut_off(whole, 1, known=[0]), agent=AGENT, max_tool_rounds=2)
    assert out.outcome == RoundLimit(2)
    assert len(out.chunk_table) == len(whole.chunk_table) - 1


def recalled(*notes: RecalledNote | Session) -> list[RecalledNote]:
    return [note for note in notes if isinstance(note, RecalledNote)]


def test_the_notes_of_the_first_request_stand_in_those_that_follow() -> None:
    notes = [RecalledNote("memory://user/a", "swallows nest in the quarry")]
    whole = run(SCRIPT, Counting(), agent=AGENT, recall=partial(recalled, *notes))
    client = ScriptedClient(SCRIPT[1:])
    cut = cut_off(whole, 0)
    out = run([], Counting(), user=cut, agent=AGENT, agent_provider=client.provider)
    assert out.outcome == Completed()
    shown = [message.content or "" for message in client.requests[0].messages]
    assert any("swallows nest in the quarry" in text for text in shown)


def test_notes_are_recalled_where_no_model_was_asked_yet() -> None:
    whole = run(SCRIPT, Counting(), agent=AGENT)
    client = ScriptedClient(SCRIPT)
    run(
        [],
        Counting(),
        user=cut_off(whole, None),
        agent=AGENT,
        agent_provider=client.provider,
        recall=partial(recalled, RecalledNote("", "a heron waits at the pond")),
    ).synchronize()
    shown = [message.content or "" for message in client.requests[0].messages]
    assert any("a heron waits" in text for text in shown)


def test_what_goes_on_asks_what_an_uninterrupted_run_asks() -> None:
    whole = run(SCRIPT, Counting(), agent=AGENT)
    cut = cut_off(whole, 0, known=[0, 1, 2])
    out = run(SCRIPT[1:], Counting(), user=cut, agent=AGENT)

    def digests(session: Session) -> list[str]:
        calls = [entry for entry in session.record if isinstance(entry, ModelCall)]
        return [call.seen.request_digest for call in calls if call.seen is not None]

    assert digests(out) == digests(whole)


def answer(_: RathLLMChatRequest) -> Any:
    raise RuntimeError("the endpoint is gone")


def test_a_run_that_fails_again_says_so_at_every_read() -> None:
    whole = run(SCRIPT, Counting(), agent=AGENT)
    out = run([answer], Counting(), user=cut_off(whole, 0, known=[0, 1, 2]), agent=AGENT)
    with pytest.raises(RuntimeError, match="the endpoint is gone"):
        out.text()


def test_a_check_of_what_waits_does_not_hide_what_its_run_had_made(tmp_path: Path) -> None:
    tool, script = Counting(), [f_calls(1), "done"]
    user = Session.from_user_message("go").to("local", spec=str(tmp_path))
    waits = run(script, tool, user=user, agent=AGENT, approval="always").synchronize()
    waits.check("tests", "true")
    waits.approve("call_1")
    out = run(script[1:], tool, user=waits, agent=AGENT, approval="always")
    assert [row.kind for row in out.chunk_table] == [
        "user",
        "assistant",
        "tool_result",
        "assistant",
    ]
    assert (tool.calls, sum(isinstance(entry, ModelCall) for entry in out.record)) == ([1], 2)


def test_entries_of_a_session_begin_where_it_was_made_whatever_served_it_later() -> None:
    made = run(["done"], agent=AGENT).synchronize()
    own = list(made.record)
    late = Operation(operation=uuid4(), kind="select", place=Place("", 0), session=made.id)
    made.add_entry(late)
    assert list(entries_since(made.record, made.id)) == [*own, late]


def test_entries_of_a_session_that_was_only_served_begin_with_the_first() -> None:
    session = Session.from_user_message("go")
    one, two = (
        Operation(operation=uuid4(), kind="check", place=Place("", 0), session=session.id)
        for _ in range(2)
    )
    session.add_entries(one, two)
    assert list(entries_since(session.record, session.id)) == [one, two]
