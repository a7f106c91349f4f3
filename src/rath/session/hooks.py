"""Hooks of runs: their types, and the record entries of what they changed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from typing import Any, Literal
from uuid import UUID

from rath._async.bridge import call_either
from rath._async.deferred import nesting
from rath._async.workers import UserExit
from rath._core.blobs import Blob
from rath._core.dataclasses import dataclass
from rath._core.lazy_imports import lazy_function
from rath._core.options import ValueScope, origin_of
from rath.llm.image import Image
from rath.session.body import Body
from rath.session.content import ToolCall
from rath.session.open_calls import own_operation
from rath.session.operation import hook_scope
from rath.session.outcome import Cancelled, Suspended
from rath.session.record import Change, Record
from rath.session.session import Session
from rath.session.tooling import CallRequest, in_call

# What writes logs is loaded where something is written.
_add_late_in_background = lazy_function("rath.session.loading", "add_late_in_background")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTurn:
    """An answer of a model, before it becomes a row; `dataclasses.replace` gives a changed one."""

    session: Any
    """A snapshot of the session that was answered; its id is that of the run."""

    text: str | None
    calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True)
class Deny:
    """The word of a hook that a tool call must not be made."""

    reason: str
    """The model reads it."""


@dataclass(frozen=True, slots=True)
class ToolResultText:
    """The result of a tool call, as the model is about to read it."""

    text: str
    """JSON, as the loop writes results; a hook may give any text."""

    error_kind: str | None = None
    """The kind of failure, None where the call did its work."""

    images: tuple[Image, ...] = ()
    """Images for the model beside the text."""


ModelAnswer = ModelTurn | Awaitable[ModelTurn | None] | None
"""Result of a hook of answers."""

BeforeAnswer = CallRequest | Deny | Awaitable[CallRequest | Deny | None] | None
"""Result of a hook before a tool call."""

AfterAnswer = ToolResultText | Awaitable[ToolResultText | None] | None
"""Result of a hook after a tool call."""

ModelHook = Callable[[ModelTurn], ModelAnswer]
"""Gets an answer; returns the one to go on with, or None to leave it."""

BeforeToolHook = Callable[[CallRequest], BeforeAnswer]
"""Gets a call; returns one with other arguments, Deny, or None to let it pass as it is."""

AfterToolHook = Callable[[CallRequest, ToolResultText], AfterAnswer]
"""Gets a call that was made, and its result; returns the one to show, or None to leave it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopHooks:
    """The hooks of one run, each kind in the order in which they are asked."""

    model: tuple[ModelHook, ...] = ()
    """Shown each answer that is to become a row of the session."""

    before_tool: tuple[BeforeToolHook, ...] = ()
    """Shown each call whose arguments are good, before the rules of approval."""

    after_tool: tuple[AfterToolHook, ...] = ()
    """Shown the result of each call that was made, also of one that failed."""

    def __post_init__(self) -> None:
        for name in ("model", "before_tool", "after_tool"):
            hooks = tuple(getattr(self, name))
            for hook in hooks:
                check_hook(f"LoopHooks({name}=...)", hook)
            object.__setattr__(self, name, hooks)

    @property
    def has_tool_hooks(self) -> bool:
        """Whether tool calls are shown to anybody."""
        return bool(self.before_tool or self.after_tool)


NO_HOOKS = LoopHooks()


def check_hook(where: str, hook: object) -> None:
    """Refuse what cannot be called.

    Raises:
        TypeError: It is no function.
    """
    if not callable(hook):
        raise TypeError(f"{where} takes functions, not {hook!r:.80}")


def hook_name(hook: Callable[..., Any]) -> str:
    """Return `module:qualname` of a hook; of an object that is called, that of its class."""
    while isinstance(hook, partial):
        hook = hook.func
    named = hook if hasattr(hook, "__qualname__") else type(hook)
    return origin_of(named)


@dataclass(frozen=True, slots=True)
class PassedOn:
    """A session in whose place a hook passed on another one."""

    hook: str
    before: UUID
    after: UUID


_passed_on: ContextVar[tuple[PassedOn, ...]] = ContextVar("rath_passed_on", default=())


def passing_on(changes: Sequence[PassedOn]) -> ValueScope[tuple[PassedOn, ...]]:
    """Let runs that begin inside know what hooks have passed on."""
    return ValueScope(_passed_on, (*_passed_on.get(), *changes))


def passed_on_to(session: UUID) -> tuple[PassedOn, ...]:
    """Return by which hooks a run got `session` in the place of another one, in their order."""
    return chain_to(session, _passed_on.get())


def chain_to(session: UUID, changes: Sequence[PassedOn]) -> tuple[PassedOn, ...]:
    """Return those of `changes` that led to `session`, in their order."""
    chain: list[PassedOn] = []
    for change in reversed(changes):
        if change.after == session:
            chain.append(change)
            session = change.before
    return tuple(reversed(chain))


class HookFailed(Exception):
    """A hook raised, took too long or gave what cannot be; what it raised is the cause."""

    def __init__(self, hook: str, problem: str) -> None:
        super().__init__(f"the hook {hook} {problem}")
        self.problem = problem


async def ask_hook(
    hook: Callable[..., Any], *arguments: object, limit: float, session: UUID, about: str
) -> object:
    """Call a hook, on a worker thread or the user loop.

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
    if session.is_pending or session.core.body.error() is not None:
        return False
    outcome = session.outcome
    return isinstance(outcome, Suspended) and not isinstance(outcome, Cancelled)


def note_output(output: Session, changes: Sequence[PassedOn]) -> None:
    """Note in the record of `output` which hooks put it in the place of another session.

    Never waits for a run: of one that is still going it is noted at its end, before anybody can
    read what came of it. A failed one gets no entry.
    """
    # A run that is still going keeps these, and not the session.
    cell, session, chain = output.core.body, output.id, chain_to(output.id, changes)

    def amended(body: Body) -> Body:
        entries = _outputs_changed(chain, session, body.record)
        record = body.record.extend(entries)
        if entries:
            _add_late_in_background(cell, session, record)
        return replace(body, record=record)

    if not chain or cell.amend(amended):
        return
    if cell.error() is None:
        entries = _outputs_changed(chain, session, output.record)
        if entries:
            output.add_entry(*entries)


def _outputs_changed(chain: Sequence[PassedOn], session: UUID, record: Record) -> list[Change]:
    """Return the entries that are to be added; what hooks had done before is not noted again.

    A program that goes on asks its hooks again, for sessions that are served from the record.
    """
    own = own_operation(record, session)
    operation = session if own is None else own.operation
    noted = {_what_it_says(entry) for entry in record if isinstance(entry, Change)}
    entries = (_change_entry("output", change, operation) for change in chain)
    return [entry for entry in entries if _what_it_says(entry) not in noted]


def _what_it_says(change: Change) -> tuple[object, ...]:
    """Return all but the id and the time of an entry about whole sessions."""
    contents = change.before.digest, change.after.digest
    return change.operation, change.hook, change.what, *contents


def inputs_changed(changes: Sequence[PassedOn], operation: UUID) -> list[Change]:
    """Return the entries that say by which hooks a run got its session."""
    return [_change_entry("input", change, operation) for change in changes]


def _change_entry(what: Literal["input", "output"], change: PassedOn, operation: UUID) -> Change:
    return Change(
        operation=operation,
        hook=change.hook,
        what=what,
        before=Blob.from_bytes(str(change.before).encode()),
        after=Blob.from_bytes(str(change.after).encode()),
    )


__all__ = [
    "AfterAnswer",
    "AfterToolHook",
    "BeforeAnswer",
    "BeforeToolHook",
    "Deny",
    "LoopHooks",
    "ModelAnswer",
    "ModelHook",
    "ModelTurn",
    "ToolResultText",
]
