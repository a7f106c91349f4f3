"""The place of an operation in a program: its module path, and its count at that path."""

from __future__ import annotations

import contextvars
import itertools
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import field, replace
from typing import Generic, TypeVar
from uuid import UUID, uuid4, uuid5

from rath._core.dataclasses import dataclass
from rath._core.options import ValueScope
from rath._core.trace_context import ambient_span, provide_span, traceparent

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Place:
    """The place of an operation within the outermost workflow call."""

    path: str
    """Dotted path of the workflow that made the operation, "" outside of any."""

    ordinal: int
    """How many operations were made at that path before."""

    run: UUID | None = field(default=None, compare=False)
    """The outermost workflow call, or the tool call, that the place is in; None outside of any."""

    root: UUID | None = field(default=None, compare=False)
    """The session with which that call began."""

    trace: UUID | None = field(default=None, compare=False)
    """The outermost workflow call of all, also around the tool call; for traces."""

    made: UUID | None = field(default=None, compare=False)
    """The session that is made here, where a record says which one that was."""

    state: str | None = field(default=None, compare=False)
    """The sha256 of the state that the outermost workflow had: its prompts, models and sampling;
    None outside of any."""

    caller: str | None = field(default=None, compare=False)
    """W3C `traceparent` of the caller's span around the outermost call, None where there is none.
    """

    def new_id(self) -> UUID:
        """Return the id of the session that is made here.

        Inside a call it is a function of call, path and ordinal, so that a program which runs
        again finds what it had made at the same place.
        """
        if self.made is not None:
            return self.made
        if self.run is None:
            return uuid4()
        return uuid5(self.run, f"{self.path}#{self.ordinal}")


class Watchers(Generic[T]):
    """Functions that the whole process calls with each value of one kind."""

    def __init__(self) -> None:
        self._calls: dict[object, Callable[[T], None]] = {}

    def add(self, call: Callable[[T], None]) -> Callable[[], None]:
        """Add a function, perhaps once more; return one that removes it again."""
        key = object()
        self._calls[key] = call

        def remove() -> None:
            self._calls.pop(key, None)

        return remove

    def __iter__(self) -> Iterator[Callable[[T], None]]:
        return iter(tuple(self._calls.values()))


_call_watchers = Watchers[UUID]()


@dataclass(frozen=True, slots=True)
class _OperationScope:
    path: str
    run: UUID | str
    """The outermost call; that inside a run by its name there, from which its id follows."""

    root: UUID | None
    trace: UUID
    state: Callable[[], str | None] | None = None
    caller: str | None = None
    counters: dict[str, Iterator[int]] = field(default_factory=dict[str, Iterator[int]])


_scope: contextvars.ContextVar[_OperationScope | None] = contextvars.ContextVar(
    "rath_operation_scope", default=None
)


@contextmanager
def operation_scope(
    segment: str,
    *,
    root: UUID | None = None,
    run: UUID | None = None,
    state: Callable[[], str | None] | None = None,
) -> Generator[str]:
    """Enter a module: operations made inside have `segment` at the end of their path.

    Args:
        segment: Its name in the module around it, else that of its class.
        root: The session that the module is called with; counts for the outermost one.
        run: Which call the outermost one is; a new one by default.
        state: Returns the digest of the state that the module has; counts for the outermost one.

    Yields:
        The whole dotted path.
    """
    outer = _scope.get()
    if outer is None:
        call = run or uuid4()
        inner = _OperationScope(segment, call, root, call, state, ambient_span())
    else:
        inner = replace(outer, path=f"{outer.path}.{segment}")
    try:
        with ValueScope(_scope, inner):
            yield inner.path
    finally:
        if outer is None:
            for watcher in _call_watchers:
                watcher(inner.trace)


def on_call_end(call: Callable[[UUID], None]) -> Callable[[], None]:
    """Have `call` made with the id of each outermost workflow call that returns from now on.

    Its runs may go on. It is made by whoever made the call, and must neither wait nor raise.

    Returns:
        A function that removes it.
    """
    return _call_watchers.add(call)


def current_call() -> UUID | None:
    """Return the outermost workflow call around the current code, None outside of any."""
    scope = _scope.get()
    return None if scope is None else scope.trace


def call_id(session: UUID, row: int, index: int) -> UUID:
    """Return the identity of a tool call: `Place.run` of what is made inside."""
    return uuid5(session, f"call {row}.{index}")


def call_scope(session: UUID, row: int, index: int) -> AbstractContextManager[None]:
    """Enter a tool call: what is made inside has its place there, whatever runs beside it.

    Args:
        session: The session whose run made the call.
        row: Index of the row in which the model asked for it.
        index: Which of the calls of that row it is.
    """
    name = f"call {row}.{index}"
    return _inside_run(session, name, name)


def hook_scope(session: UUID, asked: str) -> AbstractContextManager[None]:
    """Enter the hooks of a run: what they make has its place there, apart from the calls' own.

    Args:
        session: The session whose run asks them.
        asked: What they are asked about; once in a run.
    """
    return _inside_run(session, asked, f"hook {asked}")


def _inside_run(session: UUID, segment: str, run: str) -> AbstractContextManager[None]:
    outer = _scope.get()
    path = segment if outer is None else f"{outer.path}.{segment}"
    trace = session if outer is None else outer.trace
    state = None if outer is None else outer.state
    caller = ambient_span() if outer is None else outer.caller
    return ValueScope(_scope, _OperationScope(path, run, session, trace, state, caller))


def is_inside_call() -> bool:
    """Tell whether code runs inside the call of a workflow or of a tool."""
    return _scope.get() is not None


def next_place() -> Place:
    """Return the place of an operation that is made now."""
    scope = _scope.get()
    if scope is None:
        return Place("", 0, caller=ambient_span())
    ordinal = next(scope.counters.setdefault(scope.path, itertools.count()))
    run = scope.run
    if isinstance(run, str):
        assert scope.root is not None, "a call inside a run knows its session"
        run = uuid5(scope.root, run)
    state = None if scope.state is None else scope.state()
    return Place(
        scope.path, ordinal, run, scope.root, scope.trace, state=state, caller=scope.caller
    )


def _current_traceparent() -> str | None:
    """Return the `traceparent` of the span of the innermost call around the current code."""
    scope = _scope.get()
    if scope is None:
        return None
    run = scope.run if isinstance(scope.run, UUID) else uuid5(scope.root or scope.trace, scope.run)
    return traceparent(scope.trace, run, scope.caller)


provide_span(_current_traceparent)
