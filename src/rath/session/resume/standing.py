"""What a session waits for by now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never
from uuid import UUID

from rath.session.body import Body
from rath.session.outcome import NeedsApproval, NeedsDecision, NeedsInput, Outcome
from rath.session.record import Record
from rath.session.resume.open_calls import OpenCall, open_calls


def standing(outcome: Outcome, body: Body, session: UUID, late: Record | None) -> Outcome:
    """Return an outcome without what somebody has said since.

    Of several things that a session waits for it tells decisions first, then approvals, then
    answers.

    Args:
        outcome: How the run ended.
        body: What it had written.
        session: Which session it makes.
        late: The record with what came since, None where nothing did.
    """
    if not isinstance(outcome, NeedsApproval | NeedsInput | NeedsDecision):
        return outcome
    if outcome.session != session:
        return outcome
    calls = open_calls(body, session, late=late)
    if not calls and not isinstance(outcome, NeedsDecision):
        return outcome  # its log holds no turn that says more
    return waiting_outcome(calls, outcome, session)


def waiting_outcome(
    calls: Sequence[OpenCall], outcome: NeedsApproval | NeedsInput | NeedsDecision, session: UUID
) -> Outcome:
    """Return what a session waits for whose open calls are known; `outcome` where that is nothing.

    Its kind is kept then, with nothing in it: the run goes on when it is given to its agent.
    """
    waiting = {kind: [each for each in calls if each.waits_for == kind] for kind in _ORDER}
    if waiting["decision"]:
        return NeedsDecision(session, tuple(each.call.id for each in waiting["decision"]))
    if waiting["approval"]:
        return NeedsApproval(session, tuple(each.call.id for each in waiting["approval"]))
    if waiting["input"]:
        return NeedsInput(session, waiting["input"][0].question or "")
    match outcome:
        case NeedsApproval():
            return NeedsApproval(session, ())
        case NeedsInput():
            return NeedsInput(session, "")
        case NeedsDecision():
            return NeedsDecision(session, ())
        case _:
            assert_never(outcome)


_ORDER = ("decision", "approval", "input")
