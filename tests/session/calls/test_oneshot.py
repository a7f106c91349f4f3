"""Deltas reach the callback in order and all of them; a callback never harms what it watches."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath._async.runtime import runtime
from rath.errors import BudgetExceededError
from rath.llm import RathLLMStreamDelta
from rath.session.calls.oneshot import MAX_QUEUED, Emitter, OnEventCb
from tests.support.sessions import run
from tests.support.waiting import PATIENCE

T = TypeVar("T")

texts_given = st.lists(st.text(max_size=3), max_size=30)
shapes = pytest.mark.parametrize("shape", ["def", "async def", "def that gives an awaitable"])


def delta(text: str) -> RathLLMStreamDelta:
    return RathLLMStreamDelta(content_delta=text)


def shaped(shape: str, hear: Callable[[RathLLMStreamDelta], None]) -> OnEventCb:
    """Return `hear` as a callback of one of the shapes that a user may write."""

    async def hear_later(each: RathLLMStreamDelta) -> None:
        await asyncio.sleep(0)
        hear(each)

    def give_awaitable(each: RathLLMStreamDelta) -> Awaitable[None]:
        return hear_later(each)

    return {"def": hear, "async def": hear_later}.get(shape, give_awaitable)


def on_runtime(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    return runtime().run(make, label="a test")


def emit(callback: OnEventCb, deltas: Sequence[RathLLMStreamDelta]) -> None:
    """Put the deltas as a model call does, and leave."""

    async def main() -> None:
        async with Emitter(callback) as emitter:
            assert emitter.sink is not None
            for each in deltas:
                waiting = emitter.sink(each)
                if waiting is not None:
                    await waiting

    on_runtime(main)


class Ear:
    """A callback that waits until the test lets it go."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.go = threading.Event()
        self.heard: list[str | None] = []

    def __call__(self, each: RathLLMStreamDelta) -> None:
        self.begun.set()
        self.go.wait(PATIENCE)
        self.heard.append(each.content_delta)


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


# ---- order


@shapes
@given(said=texts_given)
def test_every_delta_arrives_once_and_in_order(shape: str, said: list[str]) -> None:
    heard: list[str | None] = []
    emit(shaped(shape, lambda each: heard.append(each.content_delta)), [delta(t) for t in said])
    assert heard == said


# ---- back pressure


def test_a_full_queue_holds_up_the_stream_until_there_is_room() -> None:
    ear, log = Ear(), list[str]()

    async def main() -> None:
        async with Emitter(ear) as emitter:
            sink = emitter.sink
            assert sink is not None
            sink(delta("taken"))
            await runtime().call_in_worker(lambda: ear.begun.wait(PATIENCE))
            assert [sink(delta("queued")) for _ in range(MAX_QUEUED - 1)] == [None] * (
                MAX_QUEUED - 1
            )
            waiting = sink(delta("one too many"))
            assert waiting is not None
            held = asyncio.ensure_future(waiting)
            await turns()
            log.append("held" if not held.done() else "not held")
            ear.go.set()
            await held
            log.append("let go")

    on_runtime(main)
    assert log == ["held", "let go"]
    assert len(ear.heard) == MAX_QUEUED + 1


# ---- failures


@shapes
@pytest.mark.parametrize(
    "error",
    [ValueError("boom"), SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()],
    ids=lambda error: type(error).__name__,
)
def test_what_a_callback_raises_is_logged_and_the_next_delta_comes_all_the_same(
    shape: str, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[str | None] = []

    def hear(each: RathLLMStreamDelta) -> None:
        if each.content_delta == "bad":
            raise error
        heard.append(each.content_delta)

    with caplog.at_level(logging.ERROR, logger="rath.session.loop"):
        emit(shaped(shape, hear), [delta(text) for text in ("a", "bad", "b", "bad", "c")])
    assert heard == ["a", "b", "c"]
    assert caplog.text.count("on_event failed; the run goes on") == 2


@shapes
@pytest.mark.parametrize("error", [asyncio.CancelledError, GeneratorExit])
def test_a_callback_that_always_fails_never_holds_up_a_long_stream(
    shape: str, error: type[BaseException]
) -> None:
    def fail(_: RathLLMStreamDelta) -> None:
        raise error

    deltas = [delta("x")] * (2 * MAX_QUEUED) + [RathLLMStreamDelta(finish_reason="stop")]
    assert run([deltas], on_event=shaped(shape, fail)).text() == "x" * (2 * MAX_QUEUED)


# ---- the budget


@shapes
def test_a_budget_error_ends_the_run_and_the_callback_gets_no_further_delta(shape: str) -> None:
    heard: list[str | None] = []

    def hear(each: RathLLMStreamDelta) -> None:
        heard.append(each.content_delta)
        if each.content_delta == "b":
            raise BudgetExceededError("over budget")

    with pytest.raises(BudgetExceededError, match="over budget"):
        emit(shaped(shape, hear), [delta(text) for text in "abcd"])
    assert heard == ["a", "b"]


def test_after_a_budget_error_the_model_call_is_stopped_at_its_next_delta() -> None:
    error = BudgetExceededError("over budget")

    def refuse(_: RathLLMStreamDelta) -> None:
        raise error

    async def main() -> None:
        async with Emitter(refuse) as emitter:
            assert emitter.sink is not None
            for index in range(10_000):
                emitter.sink(delta(str(index)))
                await runtime().call_in_worker(lambda: None)

    with pytest.raises(BudgetExceededError, match="over budget") as caught:
        on_runtime(main)
    assert caught.value is error


def test_an_error_of_the_model_call_is_not_hidden_by_one_of_the_callback() -> None:
    started = threading.Event()

    def refuse(_: RathLLMStreamDelta) -> None:
        started.set()
        raise BudgetExceededError("over budget")

    async def main() -> None:
        async with Emitter(refuse) as emitter:
            assert emitter.sink is not None
            emitter.sink(delta("x"))
            await runtime().call_in_worker(lambda: started.wait(PATIENCE))
            raise ValueError("the call failed")

    with pytest.raises(ValueError, match="the call failed"):
        on_runtime(main)


# ---- cancellation


class Endless:
    """An async callback that ends only when it is cancelled."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.ended = threading.Event()

    async def __call__(self, _: RathLLMStreamDelta) -> None:
        self.begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.set()


async def put_and_wait(callback: OnEventCb) -> None:
    """Be a model call that goes on after its first delta."""
    async with Emitter(callback) as emitter:
        assert emitter.sink is not None
        emitter.sink(delta("x"))
        await asyncio.Event().wait()


async def put_and_leave(callback: OnEventCb) -> None:
    """Be a model call that ends with its first delta."""
    async with Emitter(callback) as emitter:
        assert emitter.sink is not None
        emitter.sink(delta("x"))


@pytest.mark.parametrize("call", [put_and_wait, put_and_leave], ids=["in the call", "at its end"])
def test_cancelling_the_run_ends_an_async_callback_too(
    call: Callable[[OnEventCb], Coroutine[Any, Any, None]],
) -> None:
    endless = Endless()
    running = runtime().submit(lambda: call(endless), label="a test")
    endless.begun.wait(PATIENCE)
    runtime().cancel(running)
    assert isinstance(running.future.exception(timeout=PATIENCE), asyncio.CancelledError)
    assert endless.ended.wait(PATIENCE)


@pytest.mark.parametrize("call", [put_and_wait, put_and_leave], ids=["in the call", "at its end"])
def test_cancelling_the_run_does_not_wait_for_a_plain_callback(
    call: Callable[[OnEventCb], Coroutine[Any, Any, None]],
) -> None:
    ear = Ear()
    running = runtime().submit(lambda: call(ear), label="a test")
    ear.begun.wait(PATIENCE)
    runtime().cancel(running)
    assert isinstance(running.future.exception(timeout=PATIENCE), asyncio.CancelledError)
    ear.go.set()
