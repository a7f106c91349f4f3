"""Streams: operations of one sandbox in the order they were submitted, without waiting for each."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future as _Cell
from dataclasses import field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypeVar

from rath._async.runtime import runtime
from rath._core.dataclasses import dataclass
from rath.backend.results import ToolResult
from rath.backend.tool_types import BackendTool, require_payload

if TYPE_CHECKING:
    from rath.backend.abc import BackendSandbox

T = TypeVar("T")

EXIT_SECONDS = 120.0
"""How long leaving a stream waits for what was submitted, in seconds."""

_CLOSED = "the stream is closed; open another one with `with sandbox.stream() as stream:`"

_log = logging.getLogger("rath.backend")


class Future(Generic[T]):
    """The result of something submitted to a stream."""

    def __init__(self) -> None:
        self._cell: _Cell[T] = _uncancellable()

    def result(self) -> T:
        """Wait for the result and return it, or raise what went wrong."""
        return self._cell.result()

    def done(self) -> bool:
        """Tell whether the result or the error is there."""
        return self._cell.done()

    def resolve(self, value: T) -> None:
        """Set the result; called by the stream, once."""
        self._cell.set_result(value)

    def fail(self, error: BaseException) -> None:
        """Set the error that `result` raises; called by the stream, once."""
        self._cell.set_exception(error)


class Event:
    """A mark in a stream: signalled once everything submitted before it has ended."""

    def __init__(self) -> None:
        self._signalled_at: _Cell[float] = _uncancellable()

    def wait(self) -> None:
        """Wait until it is signalled."""
        self._signalled_at.result()

    def synchronize(self) -> None:
        """Wait until it is signalled."""
        self.wait()

    def query(self) -> bool:
        """Tell whether it is signalled; never waits."""
        return self._signalled_at.done()

    def elapsed_time(self, end: Event) -> float:
        """Return the milliseconds from this event to `end`.

        Raises:
            RuntimeError: One of the two is not signalled yet.
        """
        if not (self.query() and end.query()):
            raise RuntimeError(
                "elapsed_time needs two events that are both signalled; call synchronize() first"
            )
        return (end.signalled_at() - self.signalled_at()) * 1000.0

    def signal(self) -> None:
        """Signal it; called by the stream, once."""
        self._signalled_at.set_result(time.perf_counter())

    def fail(self, error: BaseException) -> None:
        """Make every wait raise `error`: its stream broke down before it got there."""
        self._signalled_at.set_exception(error)

    def signalled_at(self) -> float:
        """Wait until it is signalled and return when that was, in seconds of `perf_counter`."""
        return self._signalled_at.result()

    async def signalled_within(self, timeout: float | None) -> bool:
        """Wait on a loop and tell whether it was signalled within `timeout` seconds."""
        signalled_at = asyncio.wrap_future(self._signalled_at)
        await asyncio.wait([signalled_at], timeout=timeout)
        return signalled_at.done() and signalled_at.result() >= 0.0


@dataclass(slots=True, eq=False)
class _StreamJob:
    """One place in the queue: what to run, and who learns how it ended."""

    run: Callable[[], Awaitable[Any]]
    resolve: Callable[[Any], None]
    fail: Callable[[BaseException], None]
    context: contextvars.Context = field(default_factory=contextvars.copy_context)


class Stream:
    """A queue of operations on one sandbox: first in, first out, one at a time.

    Use it with `with`; leaving waits for what was submitted. It has no thread of its own: while
    anything is queued, one coroutine on the runtime works it off.

    Args:
        sandbox: Where the operations run.
        buffer: How many operations may wait before `submit` blocks; 0 means no limit.
    """

    def __init__(self, sandbox: BackendSandbox, *, buffer: int = 0) -> None:
        self.sandbox = sandbox
        self.buffer = buffer
        self._state: Literal["new", "open", "closed"] = "new"
        self._queue: deque[_StreamJob] = deque()
        self._is_busy = False
        self._n_unfinished = 0
        """Jobs whose ends nobody can know of yet; `_is_busy` is a little longer true."""
        self._changed = threading.Condition()

    def __enter__(self) -> Self:
        with self._changed:
            if self._state == "closed":
                raise RuntimeError(_CLOSED)
            self._state = "open"
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._changed:
            if self._state == "closed":
                return
            self._state = "closed"
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: not self._is_busy, timeout=EXIT_SECONDS):
                _log.warning(
                    "a stream on %r was left after %g s while operations were still queued",
                    self.sandbox.handle,
                    EXIT_SECONDS,
                )

    def submit(self, call: BackendTool) -> Future[ToolResult | bool]:
        """Queue an operation and return its future; blocks only while the buffer is full.

        Raises:
            RuntimeError: The stream is closed, or was not entered yet.
            TypeError: `call` is not a payload.
        """
        require_payload(call)
        return self._enqueue(lambda: self.sandbox.adispatch(call))

    def synchronize(self) -> None:
        """Wait until everything submitted so far has ended."""
        self.record_event().wait()

    def query(self) -> bool:
        """Tell whether nothing is queued or running; never waits."""
        with self._changed:
            self._require_open()
            return self._n_unfinished == 0

    def record_event(self) -> Event:
        """Queue a mark and return it."""
        event = Event()

        async def reach() -> None:
            pass

        self._put(_StreamJob(reach, lambda _: event.signal(), event.fail))
        return event

    def wait_event(self, event: Event, *, timeout: float | None = None) -> Future[None]:
        """Let what is submitted from now on wait for `event`, which may be of another stream.

        Args:
            event: The mark to wait for.
            timeout: Seconds after which the returned future raises TimeoutError and the queue goes
                on; None waits without end.
        """

        async def wait() -> None:
            if not await event.signalled_within(timeout):
                raise TimeoutError(
                    f"wait_event timed out: the event was not signalled within {timeout} s; give "
                    "more time, or see that record_event() was called on a stream that runs"
                )

        return self._enqueue(wait)

    def wait_stream(self, other: Stream) -> Future[None]:
        """Let what is submitted from now on wait for all that `other` has been given so far."""
        return self.wait_event(other.record_event())

    def _enqueue(self, make: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
        future: Future[T] = Future()
        self._put(_StreamJob(make, future.resolve, future.fail))
        return future

    def _put(self, job: _StreamJob) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._state != "open" or not self._is_full())
            self._require_open()
            if not self._is_busy:
                label = f"a stream on sandbox {self.sandbox.handle}"
                runtime().submit(self._work_off, label=label)
                self._is_busy = True
            self._queue.append(job)
            self._n_unfinished += 1

    def _is_full(self) -> bool:
        return 0 < self.buffer <= len(self._queue)

    def _require_open(self) -> None:
        if self._state != "open":
            raise RuntimeError(
                _CLOSED
                if self._state == "closed"
                else "stream was not entered; use it as `with sandbox.stream() as stream:`"
            )

    async def _work_off(self) -> None:
        while (job := self._next()) is not None:
            task = asyncio.get_running_loop().create_task(_awaited(job.run), context=job.context)
            try:
                value = await task
            except Exception as exc:  # noqa: BLE001  # it belongs to whoever reads the future
                self._finish_one()
                job.fail(exc)
            except BaseException as exc:
                self._fail_all(job, exc)
                raise
            else:
                self._finish_one()
                job.resolve(value)

    def _finish_one(self) -> None:
        """Count a job as finished, before anybody can read how it ended."""
        with self._changed:
            self._n_unfinished -= 1

    def _next(self) -> _StreamJob | None:
        with self._changed:
            self._changed.notify_all()
            if not self._queue:
                self._is_busy = False
                return None
            return self._queue.popleft()

    def _fail_all(self, running: _StreamJob, error: BaseException) -> None:
        with self._changed:
            unfinished = [running, *self._queue]
            self._queue.clear()
            self._n_unfinished = 0
            self._is_busy = False
            self._changed.notify_all()
        for job in unfinished:
            job.fail(error)


async def _awaited(make: Callable[[], Awaitable[T]]) -> T:
    return await make()


def _uncancellable() -> _Cell[Any]:
    cell: _Cell[Any] = _Cell()
    # A running future refuses cancel(), which a cancelled waiter on a loop would send it.
    cell.set_running_or_notify_cancel()
    return cell
