"""Runs inside a tool call that wait: the run around them waits with them."""

from __future__ import annotations

from uuid import UUID

from rath.session.approvals.asking import InnerRun, current_call
from rath.session.outcome import NeedsApproval, NeedsDecision, NeedsInput
from rath.session.resume.open_calls import open_calls
from rath.session.resume.stored import Stored, store_of
from rath.session.session import Session

__all__ = ["pass_on", "waiting_sessions"]


def pass_on(child: Session) -> Session:
    """Return a session that a tool has made, unless it waits for somebody: then the caller waits.

    The run that called the tool ends then, with the outcome of `child`, which names that session.
    When it goes on the tool is called again from its start, and makes `child` again: that one is
    found by its place and goes on too. What the tool does before must be idempotent.

    Args:
        child: A session that was made inside this call; waits for its run.

    Raises:
        RuntimeError: It is called outside of a tool call.
    """
    call = current_call("rath.session.approvals.waiting.pass_on")
    outcome = child.outcome
    if isinstance(outcome, NeedsApproval | NeedsInput | NeedsDecision):
        call.wait_for(InnerRun(outcome.session, outcome, child))
    return child


def waiting_sessions(session: Session) -> tuple[Session, ...]:
    """Return the sessions for whose sake one waits: itself, and those inside its calls.

    They are what is approved, answered and decided about. Those inside come from this process or
    from the store of `session`; one that is in neither is left out. Blocks while logs are read.

    Args:
        session: One that waits, or any other, for which there are none.
    """
    outcome = session.outcome
    if not isinstance(outcome, NeedsApproval | NeedsInput | NeedsDecision):
        return ()
    body = session.body.result()
    calls = open_calls(body, session.id, late=session.record)
    found = [session] if any(each.waits for each in calls) else []
    held = {each.id: each for each in (body.unfinished.inner if body.unfinished else ())}
    wanted = [each.said.child for each in calls if each.said.child is not None and each.is_made]
    if outcome.session != session.id and outcome.session not in wanted:
        wanted.append(outcome.session)  # it only passes on that another one waits
    store = store_of(session) if wanted else None
    stored = None if store is None else Stored(store)
    inner: list[Session] = []
    for child in wanted:
        made = None if stored is None else stored.session(child)
        inner += [made] if made is not None else _held_one(child, tuple(held.values()))
    for each in inner:
        found += waiting_sessions(each)
    return tuple({each.id: each for each in found}.values())


def _held_one(wanted: UUID, held: tuple[Session, ...]) -> list[Session]:
    """Return the session of an id among those that wait inside calls, at any depth."""
    todo = list(held)
    while todo:
        each = todo.pop()
        if each.id == wanted:
            return [each]
        left = each.body.result().unfinished
        todo.extend(left.inner if left is not None else ())
    return []
