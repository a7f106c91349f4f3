"""The private runtime: one loop for rath's own coroutines, one for the user's, worker threads.

    caller threads --submit, run--> runtime loop --call_in_worker----> workers (user `def`)
                                         |-------call_on_user_loop---> user loop (`async def`)

User code never runs on the runtime loop, so nothing a user writes can stall another session.
"""

from __future__ import annotations

import atexit
import contextvars
import inspect
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import partial, wraps
from opcode import opname
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, ParamSpec, Protocol, TypeVar, get_args

from rath._async.workers import UserExit, WorkerThreads, tame
from rath._core.lazy_imports import lazy_modules
from rath.errors import SelfWaitError

if TYPE_CHECKING:
    import asyncio
    import logging
    import signal
    from concurrent import futures
else:
    asyncio, futures, logging, signal = lazy_modules(
        __name__, "asyncio", "concurrent.futures", "logging", "signal"
    )


P = ParamSpec("P")
T = TypeVar("T")

EXIT_SECONDS = 2.0
"""How long cancelled work may take to end at exit, and how soon a wait for other work is reported,
in seconds."""

PROGRESS_SECONDS = 30.0
"""How often a terminal is shown how many sessions exit still waits for."""

AT_EXIT_ENV = "OPENRATH_AT_EXIT"

ExitPolicy = Literal["finish", "cancel"]
"""Policy for work in flight at a normal end of the program."""

_NAP_SECONDS = 0.5
"""How late Ctrl-C may be noticed in the worst case; a guess between lag and wake-ups."""

AtExit = Literal["end", "finish", "call", "leave"]
"""Policy for one piece of work at the end of the program.

    "end"     a normal end finishes it, any other cancels it at once
    "finish"  the same, and any other end gives it half of the time first
    "call"    cancelled: the thread that waits for it is joined before, or is a daemon
    "leave"   cancelled and not reported: it only waits to be used
"""

HOW_TO_FINISH = (
    "A normal end of the program finishes what it submitted, unless rath.at_exit('cancel') or "
    f"{AT_EXIT_ENV}=cancel is set; .synchronize() waits for one session"
)


class Closeable(Protocol):
    """Interface of an object that the runtime closes at exit if it is still open then."""

    def aclose(self) -> Coroutine[Any, Any, None]: ...


class _LoopThread:
    """An event loop that runs on a daemon thread of its own."""

    def __init__(self, name: str, workers: WorkerThreads) -> None:
        # A loop keeps the context that it was made in, and with it whatever run that belonged to.
        self.loop = contextvars.Context().run(asyncio.new_event_loop)
        if isinstance(self.loop, asyncio.BaseEventLoop):
            self.loop.call_at = _Timers(self.loop).call_at  # type: ignore[method-assign,assignment]
        # getaddrinfo and friends go to the default executor, whose threads block interpreter exit.
        self.loop.set_default_executor(_daemon_executor(workers))
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def is_current(self) -> bool:
        return threading.current_thread() is self.thread


class _Timers:
    """Timers of an event loop that release their context when they are cancelled.

    A cancelled timer stays in its loop as long as an earlier one waits. asyncio clears its callback
    then, but not its context, which holds the whole run that it belonged to.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._call_at = loop.call_at
        self._no_context = contextvars.Context()

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """Call back at a time of the loop's clock, in a context or in a copy of the caller's."""
        if context is None:
            context = contextvars.copy_context()
        run: Callable[..., object] = context.run
        return self._call_at(when, run, callback, *args, context=self._no_context)


def _daemon_executor(workers: WorkerThreads) -> futures.ThreadPoolExecutor:
    """Return a default executor for a loop whose jobs run on our daemon workers."""

    # Here, because the name of the class it is made from imports the module of these.
    class DaemonExecutor(futures.ThreadPoolExecutor):
        def submit(
            self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
        ) -> futures.Future[T]:
            return workers.submit(partial(fn, *args, **kwargs))

    return DaemonExecutor(max_workers=1)


class Running:
    """A coroutine that was submitted to the runtime: its result, and the means to end it."""

    __slots__ = ("_begun", "_cancelled", "_end", "_future", "_task", "at_exit", "is_given_up",
                 "label", "pid")  # fmt: skip

    def __init__(self, label: str, at_exit: AtExit = "end") -> None:
        self.label: str = label
        self.at_exit = at_exit
        self.is_given_up: bool = False
        """Whether somebody asked it to end, so that its end at exit is no news."""
        self.pid: int = os.getpid()
        self._end: tuple[Any, BaseException | None] | None = None
        self._future: futures.Future[Any] | None = None
        self._task: asyncio.Task[Any] | None = None
        self._begun = False
        self._cancelled = False

    @property
    def is_done(self) -> bool:
        """Whether the result or the error is there."""
        return self._end is not None

    @property
    def future(self) -> futures.Future[Any]:
        """The result, for those who wait for it.

        It is made for the first of them: a future with its locks is 14 objects, and of thousands of
        runs in flight few are waited for at a time.
        """
        future = self._future
        if future is not None:
            return future
        made: futures.Future[Any] = futures.Future()
        # A running future refuses cancel(): only `cancel` below ends it, through its task.
        made.set_running_or_notify_cancel()
        with _futures_lock:
            future = self._future
            if future is None:
                future = self._future = made
            end = self._end
        if future is made and end is not None:
            _set_end(future, end)
        return future

    def start(
        self,
        make: Callable[[], Coroutine[Any, Any, Any]],
        among: set[Running] | None = None,
        context: contextvars.Context | None = None,
    ) -> None:
        """Create the task; called on the thread of the loop that runs it.

        Args:
            make: Makes the coroutine.
            among: Those that run; it is taken out when all that its end starts has been started.
            context: Context variables; a copy of the caller's by default.
        """
        self._task = asyncio.get_running_loop().create_task(
            self._drive(make, among), name=self.label, context=context
        )

    def cancel(self) -> None:
        """Ask the coroutine to end; returns at once. Called where `start` was called."""
        self._cancelled = True
        if self._task is not None and self._begun:
            self._task.cancel()

    async def _drive(
        self,
        make: Callable[[], Coroutine[Any, Any, Any]],
        among: set[Running] | None,
    ) -> None:
        # A task that is cancelled before its first step never enters its coroutine, so the
        # cancellation waits here until the coroutine can see it.
        self._begun = True
        if self._cancelled and self._task is not None:
            self._task.cancel()
        try:
            coroutine = make()
            del make  # as long as the run goes on it would hold all that it was made from
            result = await coroutine
        except BaseException as exc:  # noqa: BLE001  # it belongs to whoever reads the future
            self._finish((None, exc))
        else:
            self._finish((result, None))
        finally:
            # The task holds the context of the run; who keeps the result shall not keep that.
            self._task = None
            if among is not None:
                among.discard(self)

    def _finish(self, end: tuple[Any, BaseException | None]) -> None:
        with _futures_lock:
            self._end, future = end, self._future
        if future is not None:
            _set_end(future, end)


_futures_lock = threading.RLock()
"""Guards the few instructions in which a run ends, or its future is made."""


def _set_end(future: futures.Future[Any], end: tuple[Any, BaseException | None]) -> None:
    result, error = end
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


class Runtime:
    """Owns the loops, the workers and every task that runs on them."""

    def __init__(self) -> None:
        self.workers: WorkerThreads = WorkerThreads("rath-worker")
        self._own = _LoopThread("rath-runtime", self.workers)
        self._user: _LoopThread | None = None
        self._lock = threading.Lock()
        self._running: set[Running] = set()
        self._promised: set[futures.Future[Any]] = set()
        self._open: set[Closeable] = set()
        self._is_finishing = False
        self.is_closing: bool = False

    def is_own_thread(self) -> bool:
        """Tell whether the caller runs on one of the runtime's loops, which must never block."""
        return self._own.is_current() or (self._user is not None and self._user.is_current())

    def submit(
        self,
        make: Callable[[], Coroutine[Any, Any, Any]],
        *,
        label: str,
        context: contextvars.Context | None = None,
        at_exit: AtExit = "end",
    ) -> Running:
        """Start `make()` on the runtime loop and return at once.

        Args:
            make: Makes the coroutine; called on the runtime thread, so nothing leaks if it never
                starts.
            label: What runs, for messages; names a session where there is one.
            context: Context variables of the run; a copy of the caller's by default.
            at_exit: "finish" for short work that nobody waits for and that must not be lost,
                "leave" for what only waits to be used.
        """
        if self.is_closing:
            raise RuntimeError(f"cannot start {label}: the interpreter is exiting")
        if self._is_finishing and _is_foreign_daemon(threading.current_thread()):
            at_exit = "call"  # else a thread that nobody joins could keep the program for ever
        running = Running(label, at_exit)
        # Here and not on the loop, so that work submitted a moment before exit is known there.
        self._running.add(running)
        self._own.loop.call_soon_threadsafe(
            running.start,
            make,
            self._running,
            # An empty context is false.
            contextvars.copy_context() if context is None else context,
        )
        return running

    def cancel(self, running: Running) -> None:
        """Ask `running` to end, from any thread; returns at once."""
        running.is_given_up = True
        self._own.loop.call_soon_threadsafe(running.cancel)

    def run(self, make: Callable[[], Coroutine[Any, Any, T]], *, label: str) -> T:
        """Run `make()` on the runtime loop and wait for its result.

        Raises:
            SelfWaitError: Called on the runtime's own thread.
        """
        if self._own.is_current():
            raise SelfWaitError(
                f"{label} was called on rath's own event loop and would wait for itself; "
                "await it there, or call it from a tool, a callback or another thread"
            )
        running = self.submit(make, label=label, at_exit="call")
        try:
            wait_interruptibly(running.future)
        except KeyboardInterrupt:
            self.cancel(running)
            raise
        result: T = running.future.result()
        return result

    async def await_run(self, make: Callable[[], Coroutine[Any, Any, T]], *, label: str) -> T:
        """Run `make()` on the runtime loop and await its result in any loop.

        Cancelling the wait cancels it there, and waits until it has ended.
        """
        if self._own.is_current():
            return await make()
        running = self.submit(make, label=label, at_exit="call")
        waiting = asyncio.wrap_future(running.future)
        try:
            result: T = await asyncio.shield(waiting)
        except asyncio.CancelledError:
            self.cancel(running)
            await asyncio.wait([waiting])
            waiting.exception()  # that it was cancelled is no news
            raise
        return result

    async def call_in_worker(self, fn: Callable[[], T]) -> T:
        """Run a blocking `fn` on a worker thread; cancelling the wait abandons it."""
        return await await_future(self.start_in_worker(fn))

    def start_in_worker(self, fn: Callable[[], T]) -> futures.Future[T]:
        """Start a blocking `fn` on a worker thread, with the caller's context variables."""
        return self.workers.submit(fn)

    async def call_on_user_loop(self, fn: Callable[[], Awaitable[T]]) -> T:
        """Await `fn()` on the loop for user coroutines; cancelling the wait cancels it there."""
        running = self.start_on_user_loop(fn)
        try:
            result: T = await await_future(running.future)
        except asyncio.CancelledError:
            self.cancel_on_user_loop(running)
            raise
        return result

    def cancel_on_user_loop(self, running: Running) -> None:
        """Ask a coroutine of the user to end; its future is done when it really has."""
        self._user_loop().call_soon_threadsafe(running.cancel)

    def start_on_user_loop(self, fn: Callable[[], Awaitable[Any]]) -> Running:
        """Start `fn()` on the loop for user coroutines, with the caller's context variables."""

        async def await_it() -> Any:
            try:
                return await fn()
            except asyncio.CancelledError as exc:
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise
                raise UserExit(exc) from exc
            except BaseException as exc:  # noqa: BLE001  # it belongs to the caller
                raise tame(exc) from None

        running = Running("a coroutine of the user")
        self._user_loop().call_soon_threadsafe(partial(running.start, await_it))
        return running

    def close_soon(self, item: Closeable) -> None:
        """Submit the closing of `item` and return at once; exit waits for it a little."""

        async def close() -> None:
            try:
                await item.aclose()
            except Exception:  # noqa: BLE001  # best effort: nobody waits for it, so it is told
                logging.getLogger("rath.runtime").exception("%r could not be closed", item)

        if not self.is_closing:
            asyncio.run_coroutine_threadsafe(close(), self._own.loop)

    def promise(self, future: futures.Future[Any]) -> None:
        """Have the end of the program wait for `future`, as for work that is to be finished."""
        self._promised.add(future)
        future.add_done_callback(self._promised.discard)

    def keep_open(self, item: Closeable) -> None:
        """Remember `item`, to close it at exit unless `forget` is called before."""
        self._open.add(item)

    def forget(self, item: Closeable) -> None:
        """Stop remembering `item`: it was closed."""
        self._open.discard(item)

    def finish(self) -> None:
        """Wait until all work has ended, also what it starts in turn; says so after a while.

        Raises:
            KeyboardInterrupt: Somebody pressed Ctrl-C meanwhile.
            SystemExit: A handler of another signal ended the program.
        """
        self._is_finishing = True
        report_at = time.monotonic() + EXIT_SECONDS
        while True:
            waited_for = [each for each in self._in_flight() if each.at_exit != "call"]
            waiting = [*(each.future for each in waited_for), *self._promised]
            if not waiting:
                return
            if time.monotonic() >= report_at:
                sys.stderr.write(_waiting_message([each.label for each in waited_for]))
                sys.stderr.flush()
                again = PROGRESS_SECONDS if sys.stderr.isatty() else float("inf")
                report_at = time.monotonic() + again
            if not futures.wait(waiting, timeout=_NAP_SECONDS).not_done:
                # A task leaves the set a moment after its result can be read, when all that its
                # end starts has been started.
                futures.wait([asyncio.run_coroutine_threadsafe(_nothing(), self._own.loop)])

    def shutdown(self) -> None:
        """End all work within `EXIT_SECONDS`, close what is open, and say what was cut off."""
        deadline = time.monotonic() + EXIT_SECONDS
        promised = [each.future for each in list(self._running) if each.at_exit == "finish"]
        futures.wait(promised, timeout=EXIT_SECONDS * 0.5)
        self.is_closing = True
        cut_off = sorted(each.label for each in self._in_flight())
        if cut_off:
            sys.stderr.write(_cut_off_message(cut_off))
        seconds = max(0.0, deadline - time.monotonic())
        ended = asyncio.run_coroutine_threadsafe(self._end_all(seconds), self._own.loop)
        try:
            ended.result(timeout=seconds)
        except TimeoutError:
            sys.stderr.write(f"rath: some work did not end within {EXIT_SECONDS:g} s of exit\n")
        futures.wait(list(self._promised), timeout=max(0.0, deadline - time.monotonic()))

    def _in_flight(self) -> list[Running]:
        """Return what runs and whose end would be a loss."""
        return [
            each
            for each in list(self._running)
            if not (each.is_done or each.is_given_up or each.at_exit == "leave")
        ]

    def _user_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._user is None:
                self._user = _LoopThread("rath-user", self.workers)
            return self._user.loop

    async def _end_all(self, seconds: float) -> None:
        for running in list(self._running):
            running.cancel()
        own = asyncio.current_task()
        tasks = [task for task in asyncio.all_tasks() if task is not own]
        # A little less than the whole time, so that the closing below still has some.
        await asyncio.wait(tasks, timeout=seconds * 0.6) if tasks else None
        closing = [asyncio.ensure_future(item.aclose()) for item in list(self._open)]
        if closing:
            await asyncio.wait(closing, timeout=seconds * 0.3)


async def await_future(future: futures.Future[T]) -> T:
    """Await a future of another thread; a cancelled wait cancels what has not begun.

    As `asyncio.wrap_future`, in half as many steps: each hop to another thread ends here.
    """
    loop = asyncio.get_running_loop()
    waiter = loop.create_future()

    def wake() -> None:
        if not waiter.done():
            waiter.set_result(None)

    def wake_soon(_: futures.Future[T]) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(wake)

    future.add_done_callback(wake_soon)
    try:
        await waiter
    except asyncio.CancelledError:
        future.cancel()
        raise
    try:
        return future.result()
    finally:
        del future  # else an error would hold itself, through this frame


def wait_interruptibly(future: futures.Future[Any]) -> None:
    """Block until `future` is done, or raise KeyboardInterrupt.

    A signal that arrives just before the thread goes to sleep on the lock does not wake it, and
    its handler would run only when the future is done; so the sleep is cut in pieces.
    """
    while not future.done():
        # Cheaper than `concurrent.futures.wait`; a failure of the future itself is only returned.
        with suppress(TimeoutError, futures.CancelledError):
            future.exception(timeout=_NAP_SECONDS)


async def _nothing() -> None:
    return


def _cut_off_message(labels: list[str]) -> str:
    return (
        "rath: the program ended while work was in flight; cut off: "
        f"{_first_of(labels, 8)}. {HOW_TO_FINISH}\n"
    )


def _waiting_message(labels: list[str]) -> str:
    n_sessions = sum(label.startswith("session ") for label in labels)
    plural = "s" if n_sessions > 1 else ""
    waited_for = f"{n_sessions} session{plural}" if n_sessions else "work"
    names = f" ({_first_of(sorted(labels), 3)})" if labels else ""
    return (
        f"rath: the program is done and waits for {waited_for} in flight{names}; Ctrl-C ends that\n"
    )


def _first_of(labels: list[str], n: int) -> str:
    return ", ".join(labels[:n]) + (f" and {len(labels) - n} more" if len(labels) > n else "")


_runtime: Runtime | None = None
_runtime_lock = threading.Lock()


def runtime() -> Runtime:
    """Return the runtime of this process; starts it on first use.

    Raises:
        ValueError: `OPENRATH_AT_EXIT` is set to something else than a policy.
    """
    global _runtime, _variable_policy
    if _runtime is None:
        with _runtime_lock:
            if _runtime is None:
                # Declared in `rath.config.env` like all others, which is above this package.
                policy = os.environ.get(AT_EXIT_ENV, "").strip().lower()
                _variable_policy = _checked_policy(policy or "finish", AT_EXIT_ENV)
                started = Runtime()
                _watch_exit()
                _runtime = started
    return _runtime


# ---------------------------------------------------------------- the end of the program

_policy: ExitPolicy | None = None

_last_exit: tuple[object, FrameType] | None = None
"""What `sys.exit` was last given in the main thread, and the outermost frame there."""

_variable_policy: ExitPolicy = "finish"
"""The policy in the variable when the runtime was started."""

_is_watching = False

_last_act: _LastAct | None = None


def at_exit(policy: ExitPolicy) -> None:
    """Choose what a normal end of the program does with sessions that are still in flight.

    A program ends normally when its last line is done, or by `sys.exit()` with no status or 0.
    After an unhandled error, another status or Ctrl-C, work in flight is always cancelled, within
    two seconds and with a warning that names it. A child process that was forked finishes its own
    sessions, never those of its parent.

    Args:
        policy: "finish" waits for them and for the commits and derivations that hang on them, and
            says after two seconds how many there are; Ctrl-C ends the wait. "cancel" cancels them.
            Without a call the variable `OPENRATH_AT_EXIT` says which; "finish" by default.

    Raises:
        ValueError: The policy is none of these.
    """
    global _policy
    _policy = _checked_policy(policy, "rath.at_exit()")


def _checked_policy(policy: str, origin: str) -> ExitPolicy:
    for known in get_args(ExitPolicy):
        if policy == known:
            return known  # type: ignore[no-any-return]  # one of the words of ExitPolicy
    raise ValueError(f"{origin} says {policy!r}; expected 'finish' or 'cancel'")


def finish_or_cancel() -> None:
    """Do with work in flight what the end of the program asks for; safe to call again."""
    global _last_act
    ours = _runtime
    if ours is None or ours.is_closing:
        return
    if (_policy or _variable_policy) == "finish" and not _is_failing():
        try:
            ours.finish()
        except (KeyboardInterrupt, SystemExit) as exc:  # by a signal; SIGTERM may call `sys.exit`
            ours.shutdown()
            if _multiprocessing_status() is not None:
                raise
            _last_act = _LastAct(exc)
        return
    unhandled = _unhandled_error()
    ours.shutdown()
    if isinstance(unhandled, KeyboardInterrupt):
        # The interpreter notes in each run of a text whether Ctrl-C ended it, and its exit status
        # is that of the last one: work that was cut off may have run some, as dataclasses do.
        with suppress(KeyboardInterrupt):
            exec("raise KeyboardInterrupt")


def _is_failing() -> bool:
    """Tell whether the program ends by an unhandled error, a status that is not 0, or Ctrl-C."""
    child = _multiprocessing_status()
    if child is not None:
        return child != 0
    if _unhandled_error() is not None:
        return True
    # Whoever catches the SystemExit goes on, and the outermost frame returns in the end.
    status, frame = _last_exit or (0, None)
    if frame is None or status in (None, 0):
        return False
    return not opname[frame.f_code.co_code[frame.f_lasti]].startswith("RETURN_")


def _unhandled_error() -> BaseException | None:
    """Return the error that ends the program, None where none does.

    It stands in `sys.last_value` and has unwound the outermost frame. One that a prompt, a notebook
    or a test runner has shown has not, or goes on.
    """
    unhandled: BaseException | None = getattr(sys, "last_value", None)
    trace = None if unhandled is None else unhandled.__traceback__
    if trace is not None and trace.tb_frame.f_back is None and not hasattr(sys, "ps1"):
        return unhandled
    return None


def _watch_exit() -> None:
    """Have the end of the program wait for work, and note the status that `sys.exit` is given.

    The interpreter tells its exit handlers no status, so a `raise SystemExit(1)` is not noticed.
    """
    global _is_watching
    if _is_watching:  # also by the process that this one was forked from
        return
    _is_watching = True
    # Before the interpreter shuts down its thread pools, which tools in flight may use, and joins
    # threads, which may wait for work in flight. It refuses where it has done both.
    with suppress(RuntimeError):
        threading._register_atexit(finish_or_cancel)  # type: ignore[attr-defined]  # noqa: SLF001  # as concurrent.futures does
    original = sys.exit

    @wraps(original)
    def exit_with_status(status: Any = None, /) -> NoReturn:
        global _last_exit
        if threading.current_thread() is threading.main_thread():
            frame = inspect.currentframe()
            while frame is not None and frame.f_back is not None:
                frame = frame.f_back
            _last_exit = None if frame is None else (status, frame)
        original(status)

    sys.exit = exit_with_status


def _multiprocessing_status() -> int | None:
    """Return the status of a child of `multiprocessing` that ends here; None anywhere else.

    Such a child joins its threads before it returns the status, and may end by `os._exit` then.
    """
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_qualname == "BaseProcess._bootstrap":
            status: int = frame.f_locals.get("exitcode", 0)
            return status
        frame = frame.f_back
    return None


class _LastAct:
    """Ends the process as it was asked to when the interpreter clears it away, after all handlers.

    These cannot change the status, and who interrupts a wait shall not read that all went well.
    """

    def __init__(self, reason: KeyboardInterrupt | SystemExit) -> None:
        if isinstance(reason, KeyboardInterrupt):
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            self._act, self._value = signal.raise_signal, int(signal.SIGINT)
        else:
            code = reason.code or 0
            self._act, self._value = os._exit, code if isinstance(code, int) else 1

    def __del__(self) -> None:
        self._act(self._value)


def _is_foreign_daemon(thread: threading.Thread) -> bool:
    return thread.daemon and not thread.name.startswith("rath-")


def _shutdown() -> None:
    finish_or_cancel()
    if _runtime is not None and not _runtime.is_closing:
        _runtime.shutdown()


def _forget_after_fork() -> None:
    """Start afresh in a forked child: the parent's threads do not exist there."""
    global _runtime, _runtime_lock, _futures_lock
    _runtime = None
    _runtime_lock = threading.Lock()
    _futures_lock = threading.RLock()


atexit.register(_shutdown)
if hasattr(os, "register_at_fork"):  # pragma: no branch  # Windows has no fork
    os.register_at_fork(after_in_child=_forget_after_fork)
