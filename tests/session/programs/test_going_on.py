"""A run that was cut off goes on under its own id, and repeats nothing that is known."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

from hypothesis import given
from hypothesis import strategies as st

from rath.session import Session
from rath.session.outcome import Completed, NeedsDecision, RoundLimit
from rath.session.record import ModelCall, RecalledNote
from rath.testing import ScriptedClient, tool_call
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


@given(
    turn=st.sampled_from([None, 0, 1, 2]),
    states=st.lists(st.sampled_from(["asked", "begun", "known"]), min_size=3, max_size=3),
)
def test_a_run_cut_off_anywhere_ends_the_same(turn: int | None, states: list[str]) -> None:
    complete = run(SCRIPT, Counting(effects="read_only"), agent=AGENT)
    n_calls = {None: 0, 0: 3, 1: 1, 2: 0}[turn]
    begun = [at for at in range(n_calls) if states[at] == "begun"]
    known = [at for at in range(n_calls) if states[at] == "known"]
    tool = Counting(effects="read_only")
    left = SCRIPT if turn is None else SCRIPT[turn + 1 :]
    out = run(left, tool, user=cut_off(complete, turn, begun=begun, known=known), agent=AGENT)
    assert (out.id, rows_of(out), out.outcome) == (complete.id, rows_of(complete), Completed())
    assert {entry.operation for entry in out.record} == {e.operation for e in complete.record}
    first = {0: 1, 1: 4}.get(turn or 0, 0)
    assert not {first + at for at in known} & set(tool.calls)


def test_another_agent_passes_a_suspended_session_on() -> None:
    complete = run(SCRIPT, Counting(effects="idempotent"), agent=AGENT)
    cut = cut_off(complete, 0, begun=[0])
    out = run([], user=cut, agent=Session.from_agent_prompt("You are another."))
    assert out.id != complete.id
    assert out.outcome == NeedsDecision(complete.id, ())
    assert rows_of(out) == rows_of(cut)
    assert run([], user=out, agent=AGENT).id not in (complete.id, out.id)


def test_the_rounds_of_before_count() -> None:
    complete = run(SCRIPT, Counting(), agent=AGENT)
    out = run([], user=cut_off(complete, 1, known=[0]), agent=AGENT, max_tool_rounds=2)
    assert out.outcome == RoundLimit(2)
    assert len(out.chunk_table) == len(complete.chunk_table) - 1


def recalled(*notes: RecalledNote | Session) -> list[RecalledNote]:
    return [note for note in notes if isinstance(note, RecalledNote)]


def test_the_notes_of_the_first_request_stand_in_those_that_follow() -> None:
    notes = [RecalledNote("memory://user/a", "swallows nest in the quarry")]
    complete = run(SCRIPT, Counting(), agent=AGENT, recall=partial(recalled, *notes))
    client = ScriptedClient(SCRIPT[1:])
    cut = cut_off(complete, 0)
    out = run([], Counting(), user=cut, agent=AGENT, agent_provider=client.provider)
    assert out.outcome == Completed()
    display = [message.content or "" for message in client.requests[0].messages]
    assert any("swallows nest in the quarry" in text for text in display)


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
