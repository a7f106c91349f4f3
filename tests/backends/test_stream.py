"""Streams: one queue for one sandbox, first in, first out."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future as Gate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath.backend import (
    Backend,
    BackendSandbox,
    BackendSandboxClosed,
    BackendSandboxSpec,
    BackendTool,
    BackendToolFilesExists,
    Capabilities,
    Event,
    Future,
    IsolationLevel,
    ToolResult,
)


class GateBackend(Backend):
    """Answers when the gate of a path is opened; paths without a gate answer at once."""

    name = "gate"

    def __init__(self) -> None:
        self.gates: dict[str, Gate[bool]] = {}
        self.begun: dict[str, threading.Event] = {}
        self.order: list[str] = []

    def add_gate(self, path: str) -> Gate[bool]:
        self.begun[path] = threading.Event()
        self.gates[path] = Gate()
        return self.gates[path]

    @classmethod
    def capabilities(cls) -> Capabilities:
        return Capabilities(IsolationLevel.PROCESS, False, False, False)

    @classmethod
    def supported_calls(cls) -> frozenset[type[BackendTool]]:
        return frozenset({BackendToolFilesExists})

    def sandbox_count(self) -> int:
        return 0

    async def aopen(self, spec: BackendSandboxSpec | None) -> str:
        return "gate"

    async def aclose(self, native: str) -> None:
        self.order.append("closed")

    async def adispatch(self, native: str, op: BackendTool) -> ToolResult | bool:
        assert isinstance(op, BackendToolFilesExists)
        self.order.append(op.path)
        if op.path in self.gates:
            self.begun[op.path].set()
            return await asyncio.wrap_future(self.gates[op.path])
        if op.path == "broken":
            raise OSError("the sandbox is gone")
        return True


@pytest.fixture
def backend() -> GateBackend:
    return GateBackend()


@pytest.fixture
def sandbox(backend: GateBackend) -> Iterator[BackendSandbox]:
    opened = backend.open()
    yield opened
    backend.close(opened)


def call(path: str) -> BackendToolFilesExists:
    return BackendToolFilesExists(path)


@given(paths=st.lists(st.text("abc", max_size=2), max_size=20), buffer=st.integers(0, 3))
def test_operations_run_in_the_order_of_submission(paths: list[str], buffer: int) -> None:
    backend = GateBackend()
    sandbox = backend.open()
    with sandbox.stream(buffer=buffer) as stream:
        futures = [stream.submit(call(path)) for path in paths]
    assert backend.order == paths
    assert [future.result() for future in futures] == [True] * len(paths)
    backend.close(sandbox)


def test_submitting_does_not_wait(backend: GateBackend, sandbox: BackendSandbox) -> None:
    gate = backend.add_gate("slow")
    with sandbox.stream() as stream:
        future = stream.submit(call("slow"))
        assert (future.done(), stream.query()) == (False, False)
        gate.set_result(True)
        stream.synchronize()
        assert future.done()


def test_an_answer_that_was_read_leaves_the_stream_idle(sandbox: BackendSandbox) -> None:
    with sandbox.stream() as stream:
        for _ in range(300):
            assert stream.submit(call("fine")).result() is True
            assert stream.query()
            with pytest.raises(OSError, match="gone"):
                stream.submit(call("broken")).result()
            assert stream.query()
            stream.submit(call("fine"))
            stream.synchronize()
            assert stream.query()


def test_a_broken_queue_is_idle_once_its_errors_are_read(
    backend: GateBackend, sandbox: BackendSandbox
) -> None:
    for number in range(30):
        with sandbox.stream() as stream:
            gate = backend.add_gate(f"slow {number}")
            first, queued = stream.submit(call(f"slow {number}")), stream.submit(call("a"))
            gate.cancel()
            for future in (first, queued):
                with pytest.raises(asyncio.CancelledError):
                    future.result()
            assert stream.query()


def test_leaving_waits_for_what_was_submitted(
    backend: GateBackend, sandbox: BackendSandbox
) -> None:
    gate = backend.add_gate("slow")
    with sandbox.stream() as stream:
        futures = [stream.submit(call("slow")), stream.submit(call("after"))]
        gate.set_result(False)
    assert [future.done() for future in futures] == [True, True]


def test_an_error_belongs_to_its_future_and_the_queue_goes_on(sandbox: BackendSandbox) -> None:
    with sandbox.stream() as stream:
        broken, fine = stream.submit(call("broken")), stream.submit(call("fine"))
        with pytest.raises(OSError, match="gone"):
            broken.result()
        assert fine.result() is True


def test_what_is_no_exception_fails_everything_queued(
    backend: GateBackend, sandbox: BackendSandbox
) -> None:
    gate = backend.add_gate("slow")
    with sandbox.stream() as stream:
        first, second, mark = stream.submit(call("slow")), stream.submit(call("a")), None
        mark = stream.record_event()
        assert backend.begun["slow"].wait(50)
        gate.cancel()
        with pytest.raises(asyncio.CancelledError):
            first.result()
        with pytest.raises(asyncio.CancelledError):
            second.result()
        with pytest.raises(asyncio.CancelledError):
            mark.wait()


def test_a_full_buffer_makes_submit_wait(backend: GateBackend, sandbox: BackendSandbox) -> None:
    gate = backend.add_gate("slow")
    with sandbox.stream(buffer=1) as stream:
        stream.submit(call("slow"))
        assert backend.begun["slow"].wait(50)
        stream.submit(call("waits in the buffer"))
        blocked = threading.Thread(target=stream.submit, args=[call("waits outside")])
        blocked.start()
        blocked.join(0.05)
        assert blocked.is_alive()
        gate.set_result(True)
        blocked.join()
    assert backend.order == ["slow", "waits in the buffer", "waits outside"]


def test_an_event_is_signalled_when_what_is_before_it_has_ended(
    backend: GateBackend, sandbox: BackendSandbox
) -> None:
    gate = backend.add_gate("slow")
    with sandbox.stream() as stream:
        start = stream.record_event()
        stream.submit(call("slow"))
        end = stream.record_event()
        start.synchronize()
        assert not end.query()
        with pytest.raises(RuntimeError, match="both signalled"):
            start.elapsed_time(end)
        gate.set_result(True)
        end.wait()
        assert start.elapsed_time(end) > 0


def test_a_stream_waits_for_an_event_of_another(
    backend: GateBackend, sandbox: BackendSandbox
) -> None:
    gate = backend.add_gate("slow")
    with sandbox.stream() as one, sandbox.stream() as two:
        one.submit(call("slow"))
        waited = two.wait_stream(one)
        two.submit(call("after"))
        assert backend.begun["slow"].wait(50)
        assert not waited.done()
        gate.set_result(True)
        two.synchronize()
    assert backend.order == ["slow", "after"]


def test_waiting_too_long_for_an_event_fails_its_future_only(
    backend: GateBackend, sandbox: BackendSandbox
) -> None:
    with sandbox.stream() as stream:
        waited = stream.wait_event(Event(), timeout=0.01)
        after = stream.submit(call("after"))
        with pytest.raises(TimeoutError, match="wait_event timed out"):
            waited.result()
        assert after.result() is True


def test_a_closed_stream_refuses_every_use(sandbox: BackendSandbox) -> None:
    with sandbox.stream() as stream:
        pass
    stream.__exit__(None, None, None)
    uses = [
        lambda: stream.submit(call("a")),
        stream.synchronize,
        stream.query,
        stream.record_event,
        lambda: stream.wait_event(Event()),
        lambda: stream.wait_stream(stream),
        stream.__enter__,
    ]
    for use in uses:
        with pytest.raises(RuntimeError, match="stream is closed; open another one"):
            use()


def test_a_stream_must_be_entered(sandbox: BackendSandbox) -> None:
    with pytest.raises(RuntimeError, match="not entered"):
        sandbox.stream().submit(call("a"))


def test_what_is_no_payload_is_refused_at_once(sandbox: BackendSandbox) -> None:
    with sandbox.stream() as stream, pytest.raises(TypeError):
        stream.submit("ls")  # type: ignore[arg-type]  # the mistake under test


def test_a_closed_sandbox_fails_the_future(backend: GateBackend) -> None:
    sandbox = backend.open()
    backend.close(sandbox)
    with sandbox.stream() as stream, pytest.raises(BackendSandboxClosed):
        stream.submit(call("a")).result()


def test_streams_start_no_thread_of_their_own(sandbox: BackendSandbox) -> None:
    before = set(threading.enumerate())
    streams = [sandbox.stream() for _ in range(20)]
    for stream in streams:
        stream.__enter__()
        stream.submit(call("a"))
    # Others may start one meanwhile, but hardly as many.
    assert len(set(threading.enumerate()) - before) < len(streams)
    for stream in streams:
        stream.__exit__(None, None, None)


def test_a_future_starts_empty() -> None:
    future: Future[int] = Future()
    assert not future.done()
    future.resolve(3)
    assert future.result() == 3


def test_closing_a_sandbox_waits_for_what_runs_in_it(backend: GateBackend) -> None:
    sandbox = backend.open()
    gate = backend.add_gate("slow")
    working = threading.Thread(target=sandbox.dispatch, args=[call("slow")])
    working.start()
    assert backend.begun["slow"].wait(50)
    closing = threading.Thread(target=backend.close, args=[sandbox])
    closing.start()
    closing.join(0.05)
    assert backend.order == ["slow"]
    gate.set_result(True)
    working.join()
    closing.join()
    assert backend.order == ["slow", "closed"]
