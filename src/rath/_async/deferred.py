"""A cell that is written once, with a value or an error, perhaps by a run that is still going."""

from __future__ import annotations

import atexit
import contextvars
import os
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from operator import itemgetter
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from uuid import UUID

from rath._async.runtime import AtExit, Running, finish_or_cancel, runtime, wait_interruptibly
from rath._core.lazy_imports import lazy_modules
from rath.errors import (
    ProviderConnectionError,
    ProviderStatusError,
    ProviderTimeout,
    RathError,
    SelfWaitError,
)

if TYPE_CHECKING:
    import asyncio
    import logging
    from concurrent import futures
else:
    asyncio, futures, logging = lazy_modules(__name__, "asyncio", "concurrent.futures", "logging")


T = TypeVar("T")
V = TypeVar("V")

_PLAIN_FAILURES = (ProviderConnectionError, ProviderStatusError, ProviderTimeout)
"""Errors whose text says all: frames of rath below would only push it out of sight."""

_INTERRUPT_SECONDS = 1.0
"""How long Ctrl-C waits for the cancelled run to end its child processes before it goes on."""

runs_above: contextvars.ContextVar[frozenset[UUID]] = contextvars.ContextVar(
    "rath_runs_above", default=frozenset()
)
"""The runs inside which the current code runs; a blocking read of one of them would never end."""

_writing: contextvars.ContextVar[Deferred[Any] | None] = contextvars.ContextVar(
    "rath_writing", default=None
)
"""The cell of the innermost run above."""

_waits = threading.Lock()
"""Guards who waits for whom, so that two who begin to wait for each other see it."""


class Nested:
    """The runs that were submitted inside a run, or inside one tool call of it."""

    __slots__ = ("_cells", "_has_ended", "_outer")

    def __init__(self, outer: Nested | None = None) -> None:
        self._outer = outer
        self._cells: tuple[weakref.ref[Deferred[Any]], ...] = ()
        self._has_ended = False

    def add(self, cell: Deferred[Any]) -> None:
        """Remember a run, here and further out, without keeping it."""
        with _waits:
            scope: Nested | None = self
            while scope is not None:
                alive = [ref for ref in scope._cells if not _is_over(ref)]  # noqa: SLF001  # own class
                scope._cells = (*alive, weakref.ref(cell))  # noqa: SLF001  # own class
                scope = scope._outer  # noqa: SLF001  # own class

    def cancel(self) -> None:
        """End those that still go on: nobody is there any more to want their results."""
        with _waits:
            cells = [ref() for ref in self._cells]
        for cell in cells:
            if cell is not None:
                cell.cancel()

    def end(self) -> None:
        """End those that still go on, and from now on each that is submitted, at once."""
        self._has_ended = True
        self.cancel()

    @property
    def has_ended(self) -> bool:
        """Whether what is submitted here is to end at once."""
        return self._has_ended or (self._outer is not None and self._outer.has_ended)


_nested: contextvars.ContextVar[Nested | None] = contextvars.ContextVar("rath_nested", default=None)


@contextmanager
def nesting() -> Generator[Nested]:
    """Collect the runs that are submitted inside, to end them with what asked for them."""
    scope = Nested(_nested.get())
    token = _nested.set(scope)
    try:
        yield scope
    finally:
        _nested.reset(token)


class Deferred(Generic[T]):
    """A value that is there, will be there, or failed; read it as often as you like.

    `result()` blocks, `await` waits in any event loop, `done()` and `latest` never wait. A failed
    cell raises the same error at every read.
    """

    __slots__ = (
        "__weakref__", "_at_end", "_awaited", "_error", "_latest", "_nested", "_read", "_running",
        "_traceback", "_value", "_watchers", "dependents", "inputs", "owner",
    )  # fmt: skip

    owner: UUID | None
    """The run that writes this cell, or None for a value that was there from the start."""

    inputs: tuple[Deferred[Any], ...]
    """The cells that the run waits for; emptied when it is done."""

    dependents: int
    """How many pending runs wait for this cell."""

    def __init__(self, owner: UUID | None, inputs: tuple[Deferred[Any], ...]) -> None:
        self.owner = owner
        self.inputs = inputs
        self._running: Running | None = None
        self._value: T | None = None
        self._error: BaseException | None = None
        self._traceback: TracebackType | None = None
        self._latest: T | None = None
        self._read = False
        self._awaited: tuple[Deferred[Any], ...] = ()
        self._nested: Nested | None = None
        self._at_end: tuple[tuple[int, Callable[[], None]], ...] | None = ()
        self._watchers: tuple[weakref.ref[_Waker], ...] = ()
        self.dependents = 0

    @staticmethod
    def of(value: V) -> Deferred[V]:
        """Return a cell that holds `value` already."""
        cell: Deferred[V] = Deferred(None, ())
        cell._value = cell._latest = value
        return cell

    @staticmethod
    def start(
        make: Callable[[Deferred[V]], Coroutine[Any, Any, V]],
        *,
        owner: UUID,
        label: str,
        inputs: tuple[Deferred[Any], ...] = (),
        on_cancel: Callable[[V | None], V],
        at_exit: AtExit = "end",
    ) -> Deferred[V]:
        """Submit a run that fills a new cell; returns at once.

        Args:
            make: Makes the run's coroutine; it gets the cell, to `report` progress on.
            owner: Identity of the run, seen as one of the `runs_above` by all it calls.
            label: What runs, for messages.
            inputs: Cells whose values the run awaits.
            on_cancel: Turns the last progress into the value of a cancelled run.
            at_exit: What the end of the program does with it.
        """
        cell: Deferred[V] = Deferred(owner, inputs)
        for needed in inputs:
            needed.dependents += 1
        around = _nested.get()
        if around is not None:
            around.add(cell)
        cell._nested = Nested()
        context = contextvars.copy_context()
        context.run(runs_above.set, runs_above.get() | {owner})
        context.run(_writing.set, cell)
        context.run(_nested.set, cell._nested)
        cell._running = runtime().submit(
            partial(cell._fill, make, on_cancel), label=label, context=context, at_exit=at_exit
        )
        if around is not None and around.has_ended:
            cell.cancel()
        return cell

    def done(self) -> bool:
        """Tell whether the value or the error is there."""
        return self._running is None or self._running.is_done

    @property
    def latest(self) -> T | None:
        """The value, or what the run had made so far; never waits, never raises."""
        return self._latest

    def report(self, progress: T) -> None:
        """Publish what the run has made so far."""
        self._latest = progress
        for ref in self._watchers:
            _wake(ref, progress)

    @property
    def is_watched(self) -> bool:
        """Whether somebody reads what the run makes while it goes on."""
        return any(ref() is not None for ref in self._watchers)

    def progress(self) -> Progress[T]:
        """Return an iterator over what the run makes; it counts as a reader from now on.

        Any number may read, each at its own pace, in `for` and in `async for` of any event loop.
        Whoever is slow gets the newest and not each: what is read grows, so nothing is lost.
        """
        return Progress(self)

    def watch(self, waker: _Waker) -> None:
        """Wake a reader whenever there is more, as long as it is there; it is not kept alive."""
        if self._running is None:
            return
        ref = weakref.ref(waker)
        with _waits:
            alive = [each for each in self._watchers if each() is not None]
            self._watchers = (*alive, ref)
        self._running.future.add_done_callback(partial(_wake, ref))

    def unwatch(self, waker: _Waker) -> None:
        """Wake a reader no more."""
        with _waits:
            self._watchers = tuple(ref for ref in self._watchers if ref() not in (None, waker))

    def wait_for(self, waiter: futures.Future[None]) -> None:
        """Wait for news of a run that goes on; Ctrl-C ends the run, as it does in `result`.

        Raises:
            SelfWaitError: As for `result`.
        """
        self._refuse_other_process()
        self._refuse_own_thread()
        with self._awaited_by(_writing.get()):
            self._wait(waiter)

    async def await_for(self, waiter: futures.Future[None]) -> None:
        """Wait for news of a run that goes on, in any event loop.

        Raises:
            SelfWaitError: The caller runs inside the run that it would wait for.
        """
        self._refuse_other_process()
        with self._awaited_by(_writing.get()):
            await asyncio.wrap_future(waiter)

    def at_end(self, call: Callable[[], None]) -> bool:
        """Have `call` made when the run has ended, before anybody can read what came of it.

        It is made on the runtime thread and must not block; what it raises is logged and keeps
        nobody from the value. Returns False, and forgets it, when the run has ended already.
        """
        return self._do_at_end(1, call)

    def amend(self, change: Callable[[T], T]) -> bool:
        """Have the value changed when the run has ended, before all that is done `at_end`.

        The same holds for `change` as for what is done there. Of a failed run nothing is changed.
        """

        def amend() -> None:
            if self._error is None:
                self._latest = self._value = change(self._get())

        return self._do_at_end(0, amend)

    def _do_at_end(self, when: int, call: Callable[[], None]) -> bool:
        with _waits:
            if self._running is None or self._at_end is None:
                return False
            self._at_end = (*self._at_end, (when, call))
            return True

    def error(self, *, is_read: bool = True) -> BaseException | None:
        """Return the error of a run that has failed, or None; never waits.

        Args:
            is_read: Whether it is a read of the error: one that nobody has read is logged.
        """
        self._read = self._read or (is_read and self._error is not None)
        return self._error

    def result(self) -> T:
        """Wait for the value.

        Raises:
            SelfWaitError: The caller runs inside the run that it would wait for, or on a thread
                that runs must never block.
            BaseException: Whatever ended the run; the same object at every read.
        """
        if not self.done():
            assert self._running is not None
            self._refuse_other_process()
            self._refuse_own_thread()
            with self._awaited_by(_writing.get()):
                self._wait(self._running.future)
        return self._get()

    def cancel(self) -> None:
        """End the run and the runs inside it; returns at once. Does nothing once it is done."""
        if self._running is not None and not self.done():
            runtime().cancel(self._running)

    def cancel_nested(self) -> None:
        """End the runs that were submitted inside this one and still go on."""
        if self._nested is not None:
            self._nested.cancel()

    def cancel_chain(self) -> None:
        """End the run and those of its inputs, however far back, that nothing else waits for."""
        needed_by: dict[int, int] = {}
        todo: list[Deferred[Any]] = [self]
        while todo:
            cell = todo.pop()
            for needed in cell.inputs:
                left = needed_by.get(id(needed), needed.dependents) - 1
                needed_by[id(needed)] = left
                if left <= 0:
                    todo.append(needed)
            cell.cancel()

    def __await__(self) -> Generator[Any, Any, T]:
        if not self.done():
            self._refuse_other_process()
            assert self._running is not None
            waiting = asyncio.wrap_future(self._running.future)
            writer = _writing.get()
            if writer is not None and self in writer.inputs:
                # What a run takes in may be a branch of a run above, which does not wait for it.
                yield from asyncio.shield(waiting).__await__()
            else:
                with self._awaited_by(writer):
                    # Shielded: who cancels the wait does not cancel the run.
                    yield from asyncio.shield(waiting).__await__()
        return self._get()

    async def _fill(
        self,
        make: Callable[[Deferred[T]], Coroutine[Any, Any, T]],
        on_cancel: Callable[[T | None], T],
    ) -> None:
        try:
            coroutine = make(self)
            del make  # as in the runtime
            self._latest = self._value = await coroutine
        except asyncio.CancelledError:
            self._latest = self._value = on_cancel(self._latest)
            self.cancel_nested()
        except BaseException as exc:  # noqa: BLE001  # kept for every reader of this cell
            is_plain = isinstance(exc, _PLAIN_FAILURES)
            self._error, self._traceback = exc, None if is_plain else exc.__traceback__
            _failed.add(self)
            self.cancel_nested()
        finally:
            for needed in self.inputs:
                needed.dependents -= 1
            self.inputs = ()
            with _waits:
                calls, self._at_end = self._at_end, None
            for _, call in sorted(calls or (), key=itemgetter(0)):
                self._call_at_end(call)

    def _call_at_end(self, call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException:  # noqa: BLE001  # the run has ended, and others wait for their turn
            _log().exception("what was to be done at the end of %s failed", self._name())

    def _get(self) -> T:
        if self._error is not None:
            self._read = True
            # Without this each read would add its frames to the same error, without end.
            raise self._error.with_traceback(self._traceback)
        return self._value  # type: ignore[return-value]  # written once; T may itself be None

    def _wait(self, future: futures.Future[Any]) -> None:
        assert self._running is not None
        try:
            wait_interruptibly(future)
        except KeyboardInterrupt:
            self.cancel_chain()
            _wait_briefly(self._running.future)
            raise

    @contextmanager
    def _awaited_by(self, writer: Deferred[Any] | None) -> Generator[None]:
        """Note that code inside `writer`'s run waits for this cell, unless that can never end."""
        above = runs_above.get()
        with _waits:
            if above and any(cell.owner in above for cell in self._pending()):
                raise SelfWaitError(
                    f"{self._name()} is waited for by code that runs inside it, or inside what it "
                    "waits for, so the wait would never end; read `partial_table` for what is "
                    "there so far"
                )
            if writer is not None:
                writer.waits_for(self)
        try:
            yield
        finally:
            if writer is not None:
                with _waits:
                    writer.waits_no_more_for(self)

    def waits_for(self, cell: Deferred[Any]) -> None:
        """Note a cell that code inside this run waits for; with the lock held."""
        self._awaited = (*self._awaited, cell)

    def waits_no_more_for(self, cell: Deferred[Any]) -> None:
        """Forget such a cell; with the lock held."""
        index = self._awaited.index(cell)
        self._awaited = (*self._awaited[:index], *self._awaited[index + 1 :])

    def waited_for(self) -> tuple[Deferred[Any], ...]:
        """Return the cells that the run cannot end without, as far as is known."""
        return self.inputs + self._awaited

    def _refuse_own_thread(self) -> None:
        if runtime().is_own_thread():
            raise SelfWaitError(
                f"a blocking read of {self._name()} on an event loop of rath would stop "
                "everything that runs there; use `await session` in async code, or "
                "`partial_table`"
            )

    def _refuse_other_process(self) -> None:
        if self._running is not None and self._running.pid != os.getpid():
            raise RathError(
                f"{self._name()} runs in the process that this one was forked from, so its result "
                "never comes here; read it before the fork, or run it again"
            )

    def _pending(self) -> Iterator[Deferred[Any]]:
        """Yield this cell and every pending cell that its run waits for."""
        todo: list[Deferred[Any]] = [self]
        seen: set[int] = set()
        while todo:
            cell = todo.pop()
            if id(cell) not in seen and not cell.done():
                seen.add(id(cell))
                todo.extend(cell.waited_for())
                yield cell

    def _name(self) -> str:
        return self._running.label if self._running is not None else "this value"

    def tell_unread(self) -> None:
        """Log the error of a failed run that nobody has read, once."""
        if self._error is not None and not self._read:
            self._read = True
            _log().error("%s failed and nobody read its result: %r", self._name(), self._error)

    def __del__(self) -> None:
        self.tell_unread()


class _Waker:
    """One reader of a cell: how often there was more for it, and what it waits with."""

    __slots__ = ("__weakref__", "n_wakes", "waiter")

    def __init__(self) -> None:
        self.n_wakes: int = 1
        self.waiter: futures.Future[None] | None = None

    def wake(self) -> None:
        """Note that there is more; called on the runtime thread."""
        self.n_wakes += 1
        waiter, self.waiter = self.waiter, None
        # A reader that was cancelled waits no more.
        if waiter is not None and waiter.set_running_or_notify_cancel():
            waiter.set_result(None)


class Progress(Generic[T]):
    """What a run has made so far whenever it has grown, and its value last; see `progress`.

    Raises:
        SelfWaitError: The caller runs inside the run that it would wait for.
        BaseException: Whatever ended the run, after what it had made.
    """

    __slots__ = ("_cell", "_is_over", "_n_seen", "_waker")

    def __init__(self, cell: Deferred[T]) -> None:
        self._cell = cell
        self._waker = _Waker()
        self._n_seen = 0
        self._is_over = False
        cell.watch(self._waker)

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        while not self._is_over:
            found = self._look() or self._arm_and_look()
            if isinstance(found, tuple):
                return found[0]
            self._cell.wait_for(found)
        raise StopIteration

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    async def __anext__(self) -> T:
        while not self._is_over:
            found = self._look() or self._arm_and_look()
            if isinstance(found, tuple):
                return found[0]
            await self._cell.await_for(found)
        raise StopAsyncIteration

    def close(self) -> None:
        """Read no more; the run goes on."""
        self._is_over = True
        self._cell.unwatch(self._waker)

    def _look(self) -> tuple[T] | None:
        """Return what is new, None for nothing."""
        cell, is_done = self._cell, self._cell.done()
        n_seen, self._n_seen = self._n_seen, self._waker.n_wakes
        is_new = n_seen != self._n_seen
        latest = cell.latest
        if is_new and latest is not None and not (is_done and cell.error() is None):
            return (latest,)
        if not is_done:
            return None
        self.close()
        return (cell.result(),)

    def _arm_and_look(self) -> tuple[T] | futures.Future[None]:
        """Return what came meanwhile, or what is done when there is more."""
        waiter: futures.Future[None] = futures.Future()
        self._waker.waiter = waiter
        return self._look() or waiter


def _wake(ref: weakref.ref[_Waker], _: object) -> None:
    waker = ref()
    if waker is not None:
        waker.wake()


_failed: weakref.WeakSet[Deferred[Any]] = weakref.WeakSet()


def _tell_all_unread() -> None:
    """Log what nobody has read by the end; at exit the collector comes too late or not at all."""
    finish_or_cancel()
    for cell in list(_failed):
        cell.tell_unread()


# Registered after the runtime's own, so it runs before that cuts off what is left.
atexit.register(_tell_all_unread)


def _forget_after_fork() -> None:
    """Start afresh in a forked child: a thread of the parent may have held the lock."""
    global _waits
    _waits = threading.Lock()


if hasattr(os, "register_at_fork"):  # pragma: no branch  # Windows has no fork
    os.register_at_fork(after_in_child=_forget_after_fork)


def _log() -> logging.Logger:
    return logging.getLogger("rath.session")


def _is_over(ref: weakref.ref[Deferred[Any]]) -> bool:
    cell = ref()
    return cell is None or cell.done()


def _wait_briefly(future: futures.Future[Any]) -> None:
    try:
        future.exception(timeout=_INTERRUPT_SECONDS)
    except TimeoutError:
        _log().warning("a cancelled run is still ending its work in the background")
