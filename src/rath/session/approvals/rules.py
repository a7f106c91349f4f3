"""Whether somebody must allow calls of a turn before any of them is made."""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import Mapping

from rath._async.bridge import call_either
from rath._async.lazy import nesting
from rath._async.workers import UserExit
from rath.session.operation import call_scope, operation_scope
from rath.session.running.finished import Prepared
from rath.session.session import Session
from rath.session.tooling import ApprovalRule, CallRequest, Offer

_log = logging.getLogger("rath.session.loop")


def has_rule(offer: Offer | None, rule: ApprovalRule) -> bool:
    """Tell whether anybody may want to allow a call of a tool first."""
    return offer is not None and not (offer.approval == "never" and rule == "never")


async def to_be_allowed(
    prepared: Mapping[int, Prepared], rule: ApprovalRule, session: Session, *, row: int
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
                said: object = await call_either(rule, request)
        except Exception as exc:  # noqa: BLE001  # a tool's lane: what is not known to be allowed is asked
            cause = exc.cause if isinstance(exc, UserExit) else exc
            why = f"it raised {type(cause).__name__}"
            if isinstance(exc, TimeoutError) and deadline.expired():
                nested.cancel()
                why = f"it gave no answer within {limit:g} s"
            _log.warning("%s", _mistaken(request, rule, why), exc_info=cause)
            return True
    if said is True or said is False:
        return said
    why = f"it gave a {type(said).__name__}, expected a bool"
    _log.warning("%s", _mistaken(request, rule, why))
    return True


def _mistaken(request: CallRequest, rule: object, why: str) -> str:
    name = getattr(rule, "__qualname__", type(rule).__qualname__)
    return (
        f"the approval rule {name} could not say whether call {request.call_id!r} "
        f"({request.tool}) needs an approval: {why}; so it needs one"
    )
