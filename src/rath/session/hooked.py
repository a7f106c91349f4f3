"""What hooks are asked, under a deadline and fail closed, and what is noted of sessions they gave.

Answers are shown in `hooked_answer`, tool calls in `hooked_calls`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Literal
from uuid import UUID

from rath._async.bridge import call_either
from rath._async.lazy import nesting
from rath._async.workers import UserExit
from rath._core.blobs import Blob
from rath.session.asking import in_call
from rath.session.hooks import PassedOn, hook_name
from rath.session.operation import hook_scope
from rath.session.outcome import Cancelled, Suspended
from rath.session.record import Change
from rath.session.resume.open_calls import own_operation
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

    One that is still being made is left alone: it names what it was made of as its parents.
    """
    chain = [change for change in changes if change.after == output.id]
    if not chain or output.is_pending or output.body.error() is not None:
        return
    made = own_operation(output.record, output.id)
    operation = output.id if made is None else made.operation
    output.add_entries(*(_passed_on("output", change, operation) for change in chain))


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
