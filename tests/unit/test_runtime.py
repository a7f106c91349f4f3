"""The runtime runs coroutines for any thread, refuses to wait for itself, and ends in time."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import logging
import os
import subprocess
import sys
import textwrap
import threading
import weakref
from collections.abc import Coroutine
from functools import partial
from typing import Any

import pytest

from rath._async import runtime as runtime_module
from rath._async.runtime import HOW_TO_FINISH, Runtime, runtime
from rath.errors import SelfWaitError
from tests.support.interrupts import ctrl_c_while_waiting
from tests.support.waiting import wait_until

variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


class Ward:
    """Something that is open until it is closed."""

    def __init__(self) -> None:
        self.closes = 0
        self.was_closed = threading.Event()

    def aclose(self) -> Coroutine[Any, Any, None]:
        self.closes += 1
        self.was_closed.set()
        return self._close()

    async def _close(self) -> None: ...


class Stuck:
    """Work that begins and ends only when it is cancelled, or never."""

    def __init__(self, *, ends: bool = True) -> None:
        self.begun = threading.Event()
        self.was_cancelled = threading.Event()
        self._ends = ends

    async def run(self) -> None:
        self.begun.set()
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.was_cancelled.set()
                if self._ends:
                    raise


async def nothing() -> None: ...


# ---- running


def test_run_gives_the_result_or_the_very_error() -> None:
    error = ValueError("boom")

    async def work() -> int:
        return 4

    async def fail() -> int:
        raise error

    assert runtime().run(work, label="work") == 4
    with pytest.raises(ValueError, match="boom") as caught:
        runtime().run(fail, label="work")
    assert caught.value is error


def test_a_result_that_nobody_waited_for_is_there_for_who_comes_later() -> None:
    first = runtime().submit(nothing, label="work")
    runtime().run(nothing, label="later work")
    assert first.is_done
    assert first.future.done()
    assert first.future is first.future
    assert first.future.result() is None


def test_all_who_wait_at_once_wait_for_the_same_end() -> None:
    gate, found = threading.Event(), list[object]()

    async def work() -> int:
        await runtime().call_in_worker(gate.wait)
        return 4

    running = runtime().submit(work, label="work")
    waiting = [threading.Thread(target=lambda: found.append(running.future)) for _ in range(8)]
    for thread in waiting:
        thread.start()
    gate.set()
    for thread in waiting:
        thread.join()
    assert running.future.result() == 4
    assert found == [running.future] * 8


def test_a_run_on_its_own_thread_is_refused_by_name() -> None:
    async def wait_for_itself() -> None:
        runtime().run(nothing, label="opening a sandbox")

    with pytest.raises(SelfWaitError, match="opening a sandbox was called on rath's own"):
        runtime().run(wait_for_itself, label="outer")


def test_a_submitted_run_has_the_callers_context_or_the_one_that_is_given() -> None:
    async def look() -> str:
        return variable.get()

    given = contextvars.copy_context()
    given.run(variable.set, "given")
    token = variable.set("callers")
    try:
        mine = runtime().submit(look, label="look")
        other = runtime().submit(look, label="look", context=given)
    finally:
        variable.reset(token)
    assert (mine.future.result(timeout=50), other.future.result(timeout=50)) == ("callers", "given")


def test_a_coroutine_that_is_cancelled_before_its_first_step_still_sees_it() -> None:
    seen: list[str] = []

    async def work() -> None:
        seen.append("begun")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    async def submit_and_cancel() -> Any:
        running = runtime().submit(work, label="work")
        running.cancel()
        return running.future

    future = runtime().run(submit_and_cancel, label="outer")
    assert isinstance(future.exception(timeout=50), asyncio.CancelledError)
    assert seen == ["begun", "cancelled"]


def test_ctrl_c_in_a_wait_ends_what_it_waits_for() -> None:
    stuck = Stuck()
    with pytest.raises(KeyboardInterrupt), ctrl_c_while_waiting():
        runtime().run(stuck.run, label="stuck")
    assert stuck.was_cancelled.wait(50)


def test_what_blocks_in_the_loops_own_executor_blocks_no_exit() -> None:
    async def where() -> tuple[str, bool]:
        loop = asyncio.get_running_loop()
        thread = await loop.run_in_executor(None, threading.current_thread)
        return thread.name, thread.daemon

    name, is_daemon = runtime().run(where, label="where")
    assert name.startswith("rath-worker")
    assert is_daemon


def test_close_soon_returns_at_once_and_closes() -> None:
    ward = Ward()
    runtime().close_soon(ward)
    assert ward.was_closed.wait(50)
    assert ward.closes == 1


def test_a_closing_that_fails_is_reported_because_nobody_waits_for_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Jammed(Ward):
        async def _close(self) -> None:
            raise OSError("the door is stuck")

    jammed = Jammed()
    with caplog.at_level(logging.ERROR, logger="rath.runtime"):
        runtime().close_soon(jammed)
        assert jammed.was_closed.wait(50)
        runtime().run(nothing, label="a turn of the loop")
    assert "could not be closed" in caplog.text
    assert "the door is stuck" in caplog.text


# ---- the end


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_module, "EXIT_SECONDS", 50.0)


def test_the_end_cancels_what_runs_and_says_what_was_cut_off(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ours, stuck = Runtime(), [Stuck(), Stuck()]
    futures = [
        ours.submit(one.run, label=f"work {index}").future for index, one in enumerate(stuck)
    ]
    for one in stuck:
        one.begun.wait(50)
    ours.shutdown()
    for future in futures:
        assert isinstance(future.exception(timeout=0), asyncio.CancelledError)
    assert capsys.readouterr().err == (
        "rath: the program ended while work was in flight; cut off: work 0, work 1. "
        f"{HOW_TO_FINISH}\n"
    )


def test_the_end_names_eight_and_counts_the_rest(capsys: pytest.CaptureFixture[str]) -> None:
    ours, stuck = Runtime(), Stuck()
    for index in range(11):
        ours.submit(stuck.run, label=f"work {index:02}")
    ours.shutdown()
    said = capsys.readouterr().err
    assert "work 07 and 3 more. " in said
    assert "work 08" not in said


def test_the_end_does_not_name_what_was_asked_to_end_before(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ours, stuck = Runtime(), Stuck()
    running = ours.submit(stuck.run, label="work")
    stuck.begun.wait(50)
    ours.cancel(running)
    ours.shutdown()
    assert isinstance(running.future.exception(timeout=0), asyncio.CancelledError)
    assert capsys.readouterr().err == ""


def test_nothing_is_reported_when_nothing_was_cut_off(capsys: pytest.CaptureFixture[str]) -> None:
    ours = Runtime()
    ours.run(nothing, label="work")
    ours.shutdown()
    assert capsys.readouterr().err == ""


def test_work_that_was_promised_is_finished_first(capsys: pytest.CaptureFixture[str]) -> None:
    ours, done = Runtime(), list[str]()

    async def work() -> None:
        for _ in range(100):
            await ours.call_in_worker(lambda: None)
        done.append("done")

    ours.submit(work, label="work", at_exit="finish")
    ours.shutdown()
    assert done == ["done"]
    assert capsys.readouterr().err == ""


def test_the_end_closes_what_is_open_and_was_not_forgotten() -> None:
    ours, kept, forgotten = Runtime(), Ward(), Ward()
    ours.keep_open(kept)
    ours.keep_open(forgotten)
    ours.forget(forgotten)
    ours.shutdown()
    assert (kept.closes, forgotten.closes) == (1, 0)


def test_after_the_end_nothing_starts_and_nothing_is_closed_any_more() -> None:
    ours, ward = Runtime(), Ward()

    async def own_loop() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    loop = ours.run(own_loop, label="a look")
    ours.shutdown()
    ours.close_soon(ward)
    asyncio.run_coroutine_threadsafe(nothing(), loop).result(timeout=50)
    assert ward.closes == 0
    with pytest.raises(RuntimeError, match="cannot start work: the interpreter is exiting"):
        ours.submit(nothing, label="work")


def test_work_that_does_not_end_neither_holds_up_the_exit_nor_keeps_it_from_closing_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runtime_module, "EXIT_SECONDS", 0.1)
    ours, ward, stuck = Runtime(), Ward(), Stuck(ends=False)
    ours.keep_open(ward)
    ours.submit(stuck.run, label="work")
    stuck.begun.wait(50)
    ours.shutdown()
    assert stuck.was_cancelled.wait(50)
    assert ward.was_closed.wait(50)


def test_a_loop_that_is_blocked_is_left_behind_with_a_word(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime_module, "EXIT_SECONDS", 0.1)
    ours, begun, go = Runtime(), threading.Event(), threading.Event()

    async def block() -> None:
        begun.set()
        go.wait(50)

    ours.submit(block, label="work")
    begun.wait(50)
    ours.shutdown()
    go.set()
    assert "some work did not end within 0.1 s of exit" in capsys.readouterr().err


# ---- processes of their own


def output_of(code: str) -> str:
    """Run a program and return what it says; it must end well and without a word of complaint."""
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout


def test_importing_it_starts_no_thread_and_exit_is_silent() -> None:
    said = output_of("""
        import threading
        import rath._async.runtime
        print(threading.active_count())
    """)
    assert said == "1\n"


def test_threads_that_use_it_first_at_once_share_one_runtime() -> None:
    said = output_of("""
        import sys, threading
        import rath._async.runtime as module

        made = []

        class Slow(module.Runtime):
            def __init__(self):
                super().__init__()
                made.append(self)
                # Until all the others stand at the door.
                while sum(frame.f_code.co_name == "runtime"
                          for frame in sys._current_frames().values()) < 9:
                    threading.Event().wait(0.001)

        module.Runtime = Slow
        seen = []
        threads = [threading.Thread(target=lambda: seen.append(module.runtime()))
                   for _ in range(10)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        print(len(made), len(seen), set(map(id, seen)) == {id(made[0])})
    """)
    assert said == "1 10 True\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_forked_child_starts_a_runtime_of_its_own() -> None:
    said = output_of("""
        import os, sys, warnings
        from rath._async.runtime import runtime

        async def work():
            return 4

        parents = runtime()
        parents.run(work, label="work")
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
        child = os.fork()
        if child == 0:
            print(runtime().run(work, label="work"), runtime() is parents, flush=True)
            sys.exit(0)
        _, status = os.waitpid(child, 0)
        print(status, runtime() is parents)
    """)
    assert said == "4 False\n0 True\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_what_a_forked_child_drops_stays_open_for_its_parent() -> None:
    said = output_of("""
        import os, sys, warnings
        from rath._async.plane import Handle, HandleLease, Plane

        class Rooms(Plane):
            async def aopen(self, spec):
                return "room"
            async def aclose(self, native):
                print("closed in", "the parent" if os.getpid() == parent else "the child",
                      flush=True)

        parent = os.getpid()
        handle = Handle(Rooms())
        lease = HandleLease(handle.ensure_open())
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
        child = os.fork()
        if child == 0:
            lease.drop()
            sys.exit(0)
        os.waitpid(child, 0)
        print(handle.is_open, handle.refcount, flush=True)
        lease.drop()
    """)
    assert said == "True 1\nclosed in the parent\n"


class Marked:
    """What a context may hold."""


mark: contextvars.ContextVar[Marked] = contextvars.ContextVar("mark")


def test_a_cancelled_timer_holds_no_context() -> None:
    async def earlier() -> asyncio.TimerHandle:
        # A timer that is cancelled stays in the loop behind this one.
        return asyncio.get_running_loop().call_later(600, int, context=contextvars.Context())

    async def work() -> weakref.ref[Marked]:
        mark.set(marked := Marked())
        async with asyncio.timeout(900):
            await asyncio.sleep(0)
        return weakref.ref(marked)

    timer = runtime().run(earlier, label="an earlier timer")
    try:
        alive = runtime().run(work, label="work")
        wait_until(lambda: gc.collect() >= 0 and alive() is None, "the context is released")
    finally:
        timer.cancel()


def test_a_timer_calls_back_in_its_context() -> None:
    async def work(context: contextvars.Context | None) -> tuple[str, tuple[int, ...]]:
        variable.set("mine")
        called: asyncio.Future[tuple[str, tuple[int, ...]]] = asyncio.Future()

        def call(*args: int) -> None:
            called.set_result((variable.get(), args))

        asyncio.get_running_loop().call_later(0, call, 1, 2, context=context)
        return await called

    given = contextvars.Context()
    given.run(variable.set, "given")
    assert runtime().run(partial(work, None), label="work") == ("mine", (1, 2))
    assert runtime().run(partial(work, given), label="work") == ("given", (1, 2))
