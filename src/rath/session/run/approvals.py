"""Approval rules, and the suspension of a run that waits for somebody."""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, assert_never
from uuid import UUID

from rath._async.bridge import call_either
from rath._async.deferred import nesting
from rath._async.workers import UserExit
from rath.session.calls.asking import InnerRun, Question, current_call
from rath.session.calls.results import CallResult, CheckedCall, recorded_call
from rath.session.chunk import RowId
from rath.session.content import ToolCall
from rath.session.operation import call_scope, operation_scope
from rath.session.outcome import NeedsApproval, NeedsDecision, NeedsInput, Outcome
from rath.session.record import Entry, Interrupt
from rath.session.session import Session
from rath.session.tooling import ApprovalRule, CallRequest, ToolOffer, tool_digest

_log = logging.getLogger("rath.session.loop")


def has_rule(offer: ToolOffer | None, rule: ApprovalRule) -> bool:
    """Tell whether anybody may want to allow a call of a tool first."""
    return offer is not None and not (offer.approval == "never" and rule == "never")


async def to_be_allowed(
    prepared: Mapping[int, CheckedCall], rule: ApprovalRule, session: Session, *, row: int
) -> list[int]:
    """Return which calls of a turn somebody must allow first, by their places in it.

    The rules are asked one after another: that of the tool, then that of the run. One that gives no
    answer, or none that is a bool, counts as yes, and the log says so.

    Args:
        prepared: The calls; one that is refused anyway is not asked about.
        rule: That of the run.
        session: A snapshot, which the rules see.
        row: Index of the row in which the model asked.
    """
    wanted: list[int] = []
    for at, one in prepared.items():
        offer = one.offer
        if one.refusal is not None or offer is None:
            continue
        request = CallRequest(
            session=session,
            call_id=one.call.id,
            tool=one.call.name,
            # A copy: what a rule changes in place is no word of it.
            arguments=copy.deepcopy(one.arguments or {}),
        )
        # What a rule asks of agents has a place of its own, beside that of the tool.
        with call_scope(session.id, row, at), operation_scope("approval"):
            is_wanted = await _says_yes(offer.approval, request, offer.limit)
            if is_wanted or await _says_yes(rule, request, offer.limit):
                wanted.append(at)
    return wanted


async def _says_yes(rule: ApprovalRule, request: CallRequest, limit: float) -> bool:
    """Ask one rule, under the deadline of the tool."""
    if isinstance(rule, str):
        return rule == "always"
    deadline = asyncio.timeout(limit)
    with nesting() as nested:
        try:
            async with deadline:
                verdict: object = await call_either(rule, request)
        except Exception as exc:  # noqa: BLE001  # a tool's lane: what is not known to be allowed is asked
            cause = exc.cause if isinstance(exc, UserExit) else exc
            why = f"it raised {type(cause).__name__}"
            if isinstance(exc, TimeoutError) and deadline.expired():
                nested.cancel()
                why = f"it gave no answer within {limit:g} s"
            _log.warning("%s", _mistaken(request, rule, why), exc_info=cause)
            return True
    if verdict is True or verdict is False:
        return verdict
    why = f"it gave a {type(verdict).__name__}, expected a bool"
    _log.warning("%s", _mistaken(request, rule, why))
    return True


def _mistaken(request: CallRequest, rule: object, why: str) -> str:
    name = getattr(rule, "__qualname__", type(rule).__qualname__)
    return (
        f"the approval rule {name} could not say whether call {request.call_id!r} "
        f"({request.tool}) needs an approval: {why}; so it needs one"
    )


@dataclass(frozen=True, slots=True)
class Round:
    """The calls of a turn as one run makes them."""

    operation: UUID
    turn_row: RowId
    """The row in which the model asked."""

    calls: Mapping[int, ToolCall]
    """By their place in it."""

    tools: Mapping[str, ToolOffer]


@dataclass(frozen=True, slots=True)
class Suspending:
    """How a run ends that waits."""

    outcome: Outcome
    entries: tuple[Entry, ...]
    """What is noted of it."""

    inner: tuple[Session, ...] = ()
    """Sessions inside its calls that wait."""


def for_approval(here: Round, places: list[int]) -> Suspending:
    """Return how a run ends that waits for approvals: none of its calls was made now.

    Args:
        here: The round.
        places: The calls that somebody must allow.
    """
    entry = _interrupt(here, places, "approval")
    return Suspending(NeedsApproval(here.turn_row.session, entry.calls), (entry,))


def for_answers(here: Round, done: Mapping[int, CallResult]) -> Suspending | None:
    """Return how a run ends some of whose calls wait, None where none does.

    Args:
        here: The round.
        done: What became of its calls.
    """
    waiting = [
        (at, one, waits) for at, one in sorted(done.items()) if (waits := one.waits) is not None
    ]
    if not waiting:
        return None
    entries: list[Entry] = []
    outcomes: list[Outcome] = []
    inner: list[InnerRun] = []
    for at, one, waits in waiting:
        entries.append(recorded_call(one, here.operation)[0])
        match waits:
            case Question(text, schema):
                plain_schema = None if schema is None else dict(schema)
                entries.append(_interrupt(here, [at], "input", question=text, schema=plain_schema))
                outcomes.insert(len(outcomes) - len(inner), NeedsInput(here.turn_row.session, text))
            case InnerRun() as run:
                entries.append(_inner_interrupt(here, at, run))
                outcomes.append(run.outcome)
                inner.append(run)
            case _:
                assert_never(waits)
    return Suspending(outcomes[0], tuple(entries), tuple(run.session for run in inner))


def _inner_interrupt(here: Round, at: int, run: InnerRun) -> Interrupt:
    outcome = run.outcome
    reason: Literal["approval", "input", "decision"] = "decision"
    if isinstance(outcome, NeedsApproval | NeedsInput):
        reason = "approval" if isinstance(outcome, NeedsApproval) else "input"
    question = outcome.question if isinstance(outcome, NeedsInput) else None
    return _interrupt(here, [at], reason, question=question, child=run.child)


def _interrupt(
    here: Round,
    places: list[int],
    reason: Literal["approval", "input", "decision"],
    *,
    question: str | None = None,
    schema: Mapping[str, Any] | None = None,
    child: UUID | None = None,
) -> Interrupt:
    calls = [here.calls[at] for at in places]
    return Interrupt(
        operation=here.operation,
        rows=(here.turn_row,),
        reason=reason,
        calls=tuple(call.id for call in calls),
        question=question,
        places=tuple(places),
        bound=tuple(tool_digest(here.tools[call.name]) for call in calls),
        schema=schema,
        child=child,
    )


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
    call = current_call("pass_on")
    outcome = child.outcome
    if isinstance(outcome, NeedsApproval | NeedsInput | NeedsDecision):
        call.wait_for(InnerRun(outcome.session, outcome, child))
    return child
