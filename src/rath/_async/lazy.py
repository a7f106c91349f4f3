"""A cell that is written once, with a value or an error, perhaps by a run that is still going."""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import logging
import weakref
from collections.abc import Callable, Coroutine, Generator, Iterator
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Generic, TypeVar
from uuid import UUID

from rath._async.runtime import Running, runtime
from rath.errors import SelfWaitError

T = TypeVar("T")
V = TypeVar("V")

_log = logging.getLogger("rath.session")

_INTERRUPT_SECONDS = 1.0
"""How long Ctrl-C waits for the cancelled run to end its child processes before it goes on."""

runs_above: contextvars.ContextVar[frozenset[UUID]] = contextvars.ContextVar(
    "rath_runs_above", default=frozenset()
)
"""The runs inside which the current code runs; a blocking read of one of them would never end."""


class Deferred(Generic[T]):
    """A value that is there, will be there, or failed; read it as often as you like.

    `result()` blocks, `await` waits in any event loop, `done()` and `latest` never wait. A failed
    cell raises the same error at every read.
    """

    __slots__ = (
        "__weakref__", "_error", "_latest", "_read", "_running", "_traceback",
        "_value", "dependents", "inputs", "owner",
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
    ) -> Deferred[V]:
        """Submit a run that fills a new cell; returns at once.

        Args:
            make: Makes the run's coroutine; it gets the cell, to `report` progress on.
            owner: Identity of the run, seen as one of the `runs_above` by all it calls.
            label: What runs, for messages.
            inputs: Cells whose values the run awaits.
            on_cancel: Turns the last progress into the value of a cancelled run.
        """
        cell: Deferred[V] = Deferred(owner, inputs)
        for needed in inputs:
            needed.dependents += 1
        context = contextvars.copy_context()
        context.run(runs_above.set, runs_above.get() | {owner})
        cell._running = runtime().submit(
            lambda: cell._fill(make, on_cancel), label=label, context=context
        )
        return cell

    def done(self) -> bool:
        """Tell whether the value or the error is there."""
        return self._running is None or self._running.future.done()

    @property
    def latest(self) -> T | None:
        """The value, or what the run had made so far; never waits, never raises."""
        return self._latest

    def report(self, progress: T) -> None:
        """Publish what the run has made so far."""
        self._latest = progress

    def error(self) -> BaseException | None:
        """Return the error of a run that has failed, or None; never waits."""
        self._read = self._read or self._error is not None
        return self._error

    def result(self) -> T:
        """Wait for the value.

        Raises:
            SelfWaitError: The caller runs inside the run that it would wait for, or on a thread
                that runs must never block.
            BaseException: Whatever ended the run; the same object at every read.
        """
        if not self.done():
            self._refuse_self_wait()
            self._wait()
        return self._get()

    def cancel(self) -> None:
        """End the run, and nothing else; returns at once. Does nothing once it is done."""
        if self._running is not None and not self.done():
            runtime().cancel(self._running)

    def cancel_chain(self) -> None:
        """End the run and those of its inputs that nothing else waits for."""
        for needed in self.inputs:
            if needed.dependents <= 1:
                needed.cancel_chain()
        self.cancel()

    def __await__(self) -> Generator[Any, Any, T]:
        if not self.done():
            self._refuse_own_wait()
            assert self._running is not None
            # Shielded: who cancels the wait does not cancel the run.
            yield from asyncio.shield(asyncio.wrap_future(self._running.future)).__await__()
        return self._get()

    async def _fill(
        self,
        make: Callable[[Deferred[T]], Coroutine[Any, Any, T]],
        on_cancel: Callable[[T | None], T],
    ) -> None:
        try:
            self._latest = self._value = await make(self)
        except asyncio.CancelledError:
            self._latest = self._value = on_cancel(self._latest)
        except BaseException as exc:  # noqa: BLE001  # kept for every reader of this cell
            self._error, self._traceback = exc, exc.__traceback__
            _failed.add(self)
        finally:
            for needed in self.inputs:
                needed.dependents -= 1
            self.inputs = ()

    def _get(self) -> T:
        if self._error is not None:
            self._read = True
            # Without this each read would add its frames to the same error, without end.
            raise self._error.with_traceback(self._traceback)
        return self._value  # type: ignore[return-value]  # written once; T may itself be None

    def _wait(self) -> None:
        assert self._running is not None
        try:
            self._running.future.exception()
        except KeyboardInterrupt:
            self.cancel_chain()
            _wait_briefly(self._running.future)
            raise

    def _refuse_self_wait(self) -> None:
        if runtime().is_own_thread():
            raise SelfWaitError(
                f"a blocking read of {self._name()} on an event loop of rath would stop everything "
                "that runs there; use `await session` in async code, or `partial_table`"
            )
        self._refuse_own_wait()

    def _refuse_own_wait(self) -> None:
        above = runs_above.get()
        if above and any(cell.owner in above for cell in self._pending()):
            raise SelfWaitError(
                f"{self._name()} is waited for by code that runs inside it, so the wait would "
                "never end; read `partial_table` for what is there so far"
            )

    def _pending(self) -> Iterator[Deferred[Any]]:
        """Yield this cell and every pending cell that its run waits for."""
        todo: list[Deferred[Any]] = [self]
        seen: set[int] = set()
        while todo:
            cell = todo.pop()
            if id(cell) not in seen and not cell.done():
                seen.add(id(cell))
                todo.extend(cell.inputs)
                yield cell

    def _name(self) -> str:
        return self._running.label if self._running is not None else "this value"

    def tell_unread(self) -> None:
        """Log the error of a failed run that nobody has read, once."""
        if self._error is not None and not self._read:
            self._read = True
            _log.error("%s failed and nobody read its result: %r", self._name(), self._error)

    def __del__(self) -> None:
        self.tell_unread()


_failed: weakref.WeakSet[Deferred[Any]] = weakref.WeakSet()


def _tell_all_unread() -> None:
    """Log what nobody has read by the end; at exit the collector comes too late or not at all."""
    for cell in list(_failed):
        cell.tell_unread()


# Registered after the runtime's own, so it runs before that cuts off what is left.
atexit.register(_tell_all_unread)


def _wait_briefly(future: Future[Any]) -> None:
    try:
        future.exception(timeout=_INTERRUPT_SECONDS)
    except TimeoutError:
        _log.warning("a cancelled run is still ending its work in the background")
