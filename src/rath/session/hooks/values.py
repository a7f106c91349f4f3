"""What hooks of a run get and give, and the hooks that one run has."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import UUID

from rath._core.origins import origin_of
from rath.llm.image import Image
from rath.session.content import ToolCall
from rath.session.tooling import CallRequest

__all__ = [
    "NO_HOOKS",
    "AfterAnswer",
    "AfterToolHook",
    "BeforeAnswer",
    "BeforeToolHook",
    "Deny",
    "LoopHooks",
    "ModelAnswer",
    "ModelHook",
    "ModelTurn",
    "PassedOn",
    "ToolResultText",
    "chain_to",
    "check_hook",
    "hook_name",
    "passed_on_to",
    "passing_on",
]


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
    """What a tool call came to, as the model is about to read it."""

    text: str
    """JSON, as the loop writes results; a hook may give any text."""

    error_kind: str | None = None
    """The kind of failure, None where the call did its work."""

    images: tuple[Image, ...] = ()
    """What the model is shown beside the text."""


ModelAnswer = ModelTurn | Awaitable[ModelTurn | None] | None
"""What a hook of answers returns."""

BeforeAnswer = CallRequest | Deny | Awaitable[CallRequest | Deny | None] | None
"""What a hook before a tool call returns."""

AfterAnswer = ToolResultText | Awaitable[ToolResultText | None] | None
"""What a hook after a tool call returns."""

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


@contextmanager
def passing_on(changes: Sequence[PassedOn]) -> Generator[None]:
    """Let runs that begin inside know what hooks have passed on."""
    token = _passed_on.set((*_passed_on.get(), *changes))
    try:
        yield
    finally:
        _passed_on.reset(token)


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
