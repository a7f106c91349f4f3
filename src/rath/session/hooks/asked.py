"""What hooks are asked, under a deadline and fail closed, and what is noted of sessions they gave.

Answers are shown in `answers`, tool calls in `calls`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal
from uuid import UUID

from rath._async.bridge import call_either
from rath._async.lazy import Deferred, nesting
from rath._async.workers import UserExit
from rath._core.blobs import Blob
from rath.session.approvals.asking import in_call
from rath.session.body import Body
from rath.session.hooks.values import PassedOn, chain_to, hook_name
from rath.session.operation import hook_scope
from rath.session.outcome import Cancelled, Suspended
from rath.session.record import Change, Record
from rath.session.resume.open_calls import own_operation
from rath.session.saving import add_late_aside
from rath.session.session import Session


class HookFailed(Exception):
    """A hook raised, took too long or gave what cannot be; what it raised is the cause."""

    def __init__(self, hook: str, problem: str) -> None:
        super().__init__(f"the hook {hook} {problem}")
        self.problem = problem


async def ask_hook(
    hook: Callable[..., Any], *arguments: object, limit: float, session: UUID, about: str
) -> object:
    """Return what a hook gives, on a worker thread or the user loop.

    Args:
        hook: `def` or `async def`.
        arguments: What it gets.
        limit: Seconds that it may take.
        session: The session whose run asks.
        about: What it is asked about, for the place of what it makes.

    Raises:
        HookFailed: It raised, or gave nothing in time.
    """
    name = hook_name(hook)
    deadline = asyncio.timeout(limit)
    cause: BaseException
    # What it asks and makes belongs to no tool call.
    with hook_scope(session, about), in_call(None), nesting() as nested:
        try:
            async with deadline:
                return await call_either(hook, *arguments)
        except UserExit as exc:
            cause = exc.cause
        except Exception as exc:  # noqa: BLE001  # user code, as in a tool's lane; whoever asks fails closed
            if deadline.expired():
                nested.cancel()
                raise HookFailed(name, f"gave nothing within {limit:g} s") from None
            cause = exc
    raise HookFailed(name, f"raised {type(cause).__name__}") from cause


def waits(session: Session) -> bool:
    """Tell whether a session waits for somebody; never waits itself."""
    if session.is_pending or session.body.error() is not None:
        return False
    outcome = session.outcome
    return isinstance(outcome, Suspended) and not isinstance(outcome, Cancelled)


def note_output(output: Session, changes: Sequence[PassedOn]) -> None:
    """Note in the record of `output` which hooks put it in the place of another session.

    Never waits for a run: of one that is still going it is noted at its end, before anybody can
    read what came of it. A failed one gets no entry.
    """
    chain = chain_to(output.id, changes)
    if not chain or output.body.amend(partial(_amended, output.body, chain, output.id)):
        return
    if output.body.error() is None:
        entries = _outputs_changed(chain, output.id, output.record)
        if entries:
            output.add_entries(*entries)


def _amended(cell: Deferred[Body], chain: Sequence[PassedOn], session: UUID, body: Body) -> Body:
    entries = _outputs_changed(chain, session, body.record)
    record = body.record.extend(entries)
    if entries:
        add_late_aside(cell, session, record)
    return replace(body, record=record)


def _outputs_changed(chain: Sequence[PassedOn], session: UUID, record: Record) -> list[Change]:
    """Return the entries that are to be added; what hooks had done before is not noted again.

    A program that goes on asks its hooks again, for sessions that are served from the record.
    """
    made = own_operation(record, session)
    operation = session if made is None else made.operation
    noted = {_what_it_says(entry) for entry in record if isinstance(entry, Change)}
    entries = (_passed_on("output", change, operation) for change in chain)
    return [entry for entry in entries if _what_it_says(entry) not in noted]


def _what_it_says(change: Change) -> tuple[object, ...]:
    """Return all but the id and the time of an entry about whole sessions."""
    contents = change.before.digest, change.after.digest
    return change.operation, change.hook, change.what, *contents


def inputs_changed(changes: Sequence[PassedOn], operation: UUID) -> list[Change]:
    """Return the entries that say by which hooks a run got its session."""
    return [_passed_on("input", change, operation) for change in changes]


def _passed_on(what: Literal["input", "output"], change: PassedOn, operation: UUID) -> Change:
    return Change(
        operation=operation,
        hook=change.hook,
        what=what,
        before=Blob.from_bytes(str(change.before).encode()),
        after=Blob.from_bytes(str(change.after).encode()),
    )
