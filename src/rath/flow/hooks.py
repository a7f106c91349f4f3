"""The hooks of a module, and the handles that take them out again."""

from __future__ import annotations

import inspect
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self
from uuid import UUID, uuid4

from rath._async.bridge import is_async
from rath._core.dataclasses import dataclass
from rath._core.references import Reduction, Referenced, not_portable
from rath.session import Session
from rath.session.hooks import (
    Deny,
    LoopHooks,
    ModelTurn,
    PassedOn,
    ToolResultText,
    check_hook,
    hook_name,
)
from rath.session.tooling import CallRequest

if TYPE_CHECKING:
    # A workflow calls its hooks.
    from rath.flow.workflow import Workflow

__all__ = [
    "CallRequest",
    "Deny",
    "HookHandle",
    "ModelTurn",
    "ToolResultText",
]

HookKind = Literal["forward_pre", "forward", "model", "before_tool", "after_tool"]

_ATTRIBUTE = "__rath_hooks__"
"""Where a module keeps its hooks, among its attributes: so copies and pickles of it have them."""

_lock = threading.Lock()
"""Guards the few instructions in which the hooks of a module are replaced."""

SYNC_ONLY = (
    "a call returns at once, before anything is awaited, so nobody could wait for it. Write it as "
    "`def`; reading a session in it waits for its run. Model and tool hooks may be `async def`"
)


@dataclass(frozen=True, slots=True)
class Hook:
    """A function under the key by which it is taken out."""

    key: UUID
    call: Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleHooks:
    """The hooks of one module; frozen, so that a copy of the module goes its own way."""

    forward_pre: tuple[Hook, ...] = ()
    forward: tuple[Hook, ...] = ()
    model: tuple[Hook, ...] = ()
    before_tool: tuple[Hook, ...] = ()
    after_tool: tuple[Hook, ...] = ()

    def without(self, key: UUID) -> ModuleHooks:
        """Return them without the hook of that key."""
        kept = {
            kind.name: tuple(hook for hook in getattr(self, kind.name) if hook.key != key)
            for kind in fields(self)
        }
        return ModuleHooks(**kept)


_NONE = ModuleHooks()


class HookHandle(Referenced):
    """A hook that was registered; `remove` takes it out, and so does leaving a `with` block.

    It does not keep the module alive. A copy of the module has the hook too, and keeps it.
    """

    __slots__ = ("_key", "_module")

    def __init__(self, module: Workflow, key: UUID) -> None:
        self._module = weakref.ref(module)
        self._key = key

    def _pickle_reference(self) -> Reduction:
        """Return the module, which has the hook, and the key of that."""
        module = self._module()
        if module is None:
            raise not_portable("the module of the hook is gone", "drop its handle")
        return HookHandle, (module, self._key)

    def remove(self) -> None:
        """Take the hook out; safe to call again. Runs that were submitted before still ask it."""
        module = self._module()
        if module is None:
            return
        with _lock:
            _set(module, hooks_of(module).without(self._key))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.remove()


def hooks_of(module: Workflow) -> ModuleHooks:
    """Return the hooks of a module."""
    found: ModuleHooks = vars(module).get(_ATTRIBUTE, _NONE)
    return found


def register(module: Workflow, kind: HookKind, hook: Callable[..., Any]) -> HookHandle:
    """Add a hook to a module, after those of its kind.

    Raises:
        TypeError: It is no function, or an `async def` where nobody could wait for it.
    """
    where = f"register_{kind}_hook" if kind in ("forward_pre", "forward", "model") else (
        "register_tool_hook"
    )  # fmt: skip
    check_hook(where, hook)
    if kind in ("forward_pre", "forward") and is_async(hook):
        raise TypeError(f"the hook {hook_name(hook)} is `async def`: {SYNC_ONLY}")
    added = Hook(uuid4(), hook)
    with _lock:
        known = hooks_of(module)
        _set(module, replace(known, **{kind: (*getattr(known, kind), added)}))
    return HookHandle(module, added.key)


def loop_hooks(module: Workflow) -> LoopHooks | None:
    """Return the hooks of the runs of a module, as they are now; None where it has none."""
    hooks = hooks_of(module)
    if not (hooks.model or hooks.before_tool or hooks.after_tool):
        return None

    def bound(kind: Sequence[Hook]) -> tuple[Any, ...]:
        return tuple(partial(hook.call, module) for hook in kind)

    return LoopHooks(
        model=bound(hooks.model),
        before_tool=bound(hooks.before_tool),
        after_tool=bound(hooks.after_tool),
    )


def ask_hooks(
    hooks: Sequence[Hook], module: Workflow, *sessions: Session
) -> tuple[Session, list[PassedOn]]:
    """Return the session to go on with, and which hooks gave another one.

    Args:
        hooks: Those before `forward` or those after it, in order.
        module: Whose they are.
        sessions: The input, and after `forward` the output; the last one may be replaced.
    """
    *before, session = sessions
    changes: list[PassedOn] = []
    for hook in hooks:
        replacement = _call_hook(hook, module, *before, session)
        if replacement is not None and replacement is not session:
            changes.append(PassedOn(hook_name(hook.call), session.id, replacement.id))
            session = replacement
    return session, changes


def _call_hook(hook: Hook, *arguments: object) -> Session | None:
    try:
        given: object = hook.call(*arguments)
    except Exception as exc:
        exc.add_note(f"in the hook {hook_name(hook.call)}")
        raise
    if given is None or isinstance(given, Session):
        return given  # pyright: ignore[reportUnknownVariableType]  # of any output
    if inspect.iscoroutine(given):
        given.close()
        raise TypeError(f"the hook {hook_name(hook.call)} gave a coroutine: {SYNC_ONLY}")
    raise TypeError(
        f"the hook {hook_name(hook.call)} returned {type(given).__name__}, expected a Session, or "
        "None to leave it as it is"
    )


def _set(module: Workflow, hooks: ModuleHooks) -> None:
    # Not by `setattr`: a module may be frozen, and decide itself what assigning means.
    vars(module)[_ATTRIBUTE] = hooks
