"""Calls of a chat client that somebody ends before their answer is there."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterable, Awaitable, Callable, Iterator
from functools import partial
from typing import Any, cast

from rath._async.bridge import is_async
from rath._async.runtime import Running, runtime
from rath.conformance.chat.subject import ANSWER_SECONDS, Subject, await_end, result_of, wait_for
from rath.conformance.report import Skipped, Unlike, expect
from rath.llm.base import ChatDraft, StreamingChatClient
from rath.llm.chat_response import RathLLMStreamDelta
from rath.llm.custom_client import CustomDraft

__all__ = ["ENDINGS"]

_LABEL = "a call of the contract of chat clients"
_IN_TIME = "a cancelled call to end"
_PLAIN = "it answers by plain functions, which nobody can cancel"


def _a_cancelled_call_ends_at_once(subject: Subject) -> None:
    draft = subject.open(subject.long())
    if not isinstance(draft, CustomDraft):
        running = runtime().submit(partial(_cancelled, draft.asend), label=_LABEL)
        _expect_end(running, draft, subject)
    elif is_async(subject.client.complete):
        complete: Callable[..., Any] = subject.client.complete
        ask = partial(complete, subject.long())
        _expect_end_on_user_loop(runtime().start_on_user_loop(partial(_cancelled, ask)), subject)
    else:
        raise Skipped(_PLAIN)
    subject.ask(subject.echo("heron"))


def _a_cancelled_stream_ends_at_once(subject: Subject) -> None:
    draft = subject.open(subject.long(), how="streamed")
    begun = threading.Event()
    if not isinstance(draft, CustomDraft):

        async def hold(_: RathLLMStreamDelta) -> None:
            begun.set()
            await asyncio.Event().wait()

        running = runtime().submit(lambda: draft.asend(on_delta=hold), label=_LABEL)
        _await_begin(begun, running)
        runtime().cancel(running)
        _expect_end(running, draft, subject)
    else:
        stream = cast("StreamingChatClient", subject.client).complete_stream  # it was opened
        if not (is_async(stream) or inspect.isasyncgenfunction(stream)):
            raise Skipped(_PLAIN)
        running = runtime().start_on_user_loop(partial(_consume, partial(stream, subject.long())))
        _expect_end_on_user_loop(running, subject)
    subject.ask(subject.echo("cement"))


def _a_stream_that_is_given_up_ends_at_once(subject: Subject) -> None:
    if not subject.streams:
        raise Skipped("it has no complete_stream")
    client = cast("StreamingChatClient", subject.client)  # just asked
    deltas: object = None if is_async(client.complete_stream) else _stream(client, subject)
    if not inspect.isgenerator(deltas):
        raise Skipped("complete_stream gives no generator, which could be closed")
    generator = cast("Iterator[RathLLMStreamDelta]", deltas)
    first = runtime().start_in_worker(lambda: next(generator, None))
    wait_for(first, "a first delta", seconds=ANSWER_SECONDS)
    closing = runtime().start_in_worker(deltas.close)
    wait_for(closing, "a stream that was closed to end", seconds=subject.cancel_seconds)
    subject.ask(subject.echo("violin"))


def _stream(client: StreamingChatClient, subject: Subject) -> object:
    return client.complete_stream(subject.long())


def _expect_end(running: Running, draft: ChatDraft, subject: Subject) -> None:
    await_end(running, _IN_TIME, seconds=subject.cancel_seconds)
    error = running.future.exception()
    expect(
        isinstance(error, asyncio.CancelledError),
        f"a cancelled call to end with CancelledError, got {error!r}",
    )
    evidence = draft.last_evidence()
    if evidence is not None:
        expect(evidence.status == "cancelled", f"the status 'cancelled', got {evidence.status!r}")


def _expect_end_on_user_loop(running: Running, subject: Subject) -> None:
    """Wait for a coroutine of the client itself: a draft would not wait for its end."""
    cancel = runtime().cancel_on_user_loop
    await_end(running, _IN_TIME, seconds=subject.cancel_seconds, cancel=cancel)


def _await_begin(begun: threading.Event, running: Running) -> None:
    """Wait for the first delta."""
    running.future.add_done_callback(lambda _: begun.set())
    if not begun.wait(ANSWER_SECONDS):
        runtime().cancel(running)
        raise Unlike(f"expected a first delta within {ANSWER_SECONDS:g} s")
    if running.future.done():
        result_of(running)
        raise Unlike("expected a stream of deltas, got an answer without any")


async def _cancelled(call: Callable[[], Awaitable[object]]) -> None:
    """Make a call that is cancelled where it first waits, whoever of all is faster."""
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await call()


async def _consume(make: Callable[[], object]) -> None:
    """Take a stream that is cancelled where it waits after its first delta."""
    task = asyncio.current_task()
    assert task is not None
    items = make()
    if inspect.isawaitable(items):
        items = await items
    is_first = True
    async for _ in cast("AsyncIterable[object]", items):
        if is_first:
            is_first = False
            task.cancel()


ENDINGS = (
    _a_cancelled_call_ends_at_once,
    _a_cancelled_stream_ends_at_once,
    _a_stream_that_is_given_up_ends_at_once,
)
