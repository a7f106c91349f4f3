"""What comes next in a run follows from its last turn, its counts and why it must stop."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rath.session.content import ToolCall
from rath.session.outcome import BudgetExceeded, Completed, RoundLimit
from rath.session.run.driver import AskModel, Finish, Reply, RunCalls, Step, Turn, next_step
from tests.support.api import TurnVerdict

CALL = ToolCall("a", "look", "{}")
STOPPED = BudgetExceeded(10, 11)
ANSWER = Turn(3, (), TurnVerdict((), Completed()), ())
CALLS = Turn(3, (CALL,), TurnVerdict((CALL,)), (0,))
DONE = replace(CALLS, open_calls=())
REPAIR = Turn(3, (), TurnVerdict((), reply="once more"), ())
LAST_CALLS = Turn(3, (CALL,), TurnVerdict((CALL,), Completed()), (0,))


@pytest.mark.parametrize(
    ("turn", "n_rows", "n_calls", "stopped", "expected"),
    [
        pytest.param(None, 1, 0, None, AskModel(), id="nothing was said yet"),
        pytest.param(None, 1, 0, STOPPED, Finish(STOPPED), id="stopped before the first call"),
        pytest.param(None, 1, 5, None, Finish(RoundLimit(5)), id="no calls are left"),
        pytest.param(ANSWER, 4, 1, None, Finish(Completed()), id="an answer"),
        pytest.param(ANSWER, 4, 1, STOPPED, Finish(Completed()), id="an answer that was paid for"),
        pytest.param(CALLS, 4, 1, None, RunCalls(CALLS), id="calls"),
        pytest.param(CALLS, 4, 5, None, RunCalls(CALLS), id="calls of the last turn"),
        pytest.param(CALLS, 4, 1, STOPPED, Finish(STOPPED), id="calls that are not made any more"),
        pytest.param(DONE, 5, 1, None, AskModel(), id="results that the model reads"),
        pytest.param(DONE, 5, 1, STOPPED, Finish(STOPPED), id="results, and the budget is used"),
        pytest.param(DONE, 5, 5, None, Finish(RoundLimit(5)), id="results, and no calls are left"),
        pytest.param(REPAIR, 4, 1, None, Reply("once more"), id="an answer that does not fit"),
        pytest.param(REPAIR, 4, 1, STOPPED, Reply("once more"), id="said also where it stops"),
        pytest.param(REPAIR, 5, 1, None, AskModel(), id="the model was told what does not fit"),
        pytest.param(LAST_CALLS, 4, 1, STOPPED, RunCalls(LAST_CALLS), id="calls beside an answer"),
    ],
)
def test_the_next_step_follows_from_what_is_known(
    turn: Turn | None, n_rows: int, n_calls: int, stopped: BudgetExceeded | None, expected: Step
) -> None:
    step = next_step(turn, n_rows=n_rows, n_calls=n_calls, max_calls=5, stopped=stopped)
    assert step == expected
