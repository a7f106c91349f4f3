"""Clauses on calls: at once, from anywhere, for an unknown model, and cancelled."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterable, Awaitable, Callable, Iterator
from functools import partial
from typing import Any, cast

from rath._async.bridge import is_async
from rath._async.runtime import Running, runtime
from rath.conformance.chat.subject import (
    ANSWER_SECONDS,
    LABEL,
    ChatSubject,
    How,
    await_end,
    result_within,
)
from rath.conformance.contract import Clauses, Skipped, Unlike, expect, expect_kind
from rath.llm.base import ChatDraft, StreamingChatClient
from rath.llm.chat_response import RathLLMChatResponse, RathLLMStreamDelta
from rath.llm.custom_client import CustomDraft
from rath.llm.evidence import evidence_of

__all__ = ["CALLS"]

CALLS = Clauses[ChatSubject]()

_clause = CALLS.add("")
_WORDS = ("heron", "cement", "violin", "harbour")
_IN_TIME = "a cancelled call to end"
_PLAIN = "it answers by plain functions, which nobody can cancel"


@_clause
def calls_at_once_do_not_mix(subject: ChatSubject) -> None:
    hows: list[How] = ["whole", subject.hows[-1]] * 2
    requests = [subject.echo(word) for word in _WORDS]
    drafts = [subject.open(each, how=how) for each, how in zip(requests, hows, strict=True)]
    calls = subject.send_all(list(zip(drafts, hows, strict=True)))
    texts = [call.text.casefold() for call in calls]
    for word, text in zip(_WORDS, texts, strict=True):
        strangers = [other for other in _WORDS if other != word and other in text]
        expect(not strangers, f"an answer about {word!r} only, got {text!r}")
    if not any(word in text for word, text in zip(_WORDS, texts, strict=True)):
        raise Skipped(f"the model repeats no words: {texts!r}")


@_clause
def it_is_used_from_several_threads_and_loops(subject: ChatSubject) -> None:
    if is_async(subject.client.complete):
        raise Skipped("complete is a coroutine function, which rath awaits on one loop only")

    def ask(word: str) -> RathLLMChatResponse:
        # A foreign client may return anything.
        return expect_kind(subject.client.complete(subject.echo(word)), RathLLMChatResponse, word)

    async def ask_on_a_loop(word: str) -> RathLLMChatResponse:
        return ask(word)

    works: list[Callable[[], RathLLMChatResponse]] = [
        partial(ask, _WORDS[0]),
        partial(ask, _WORDS[1]),
        lambda: asyncio.run(ask_on_a_loop(_WORDS[2])),
    ]
    for started in [runtime().start_in_worker(work) for work in works]:
        answer = result_within(started, "an answer on a thread of its own", ANSWER_SECONDS)
        expect(bool(answer.choices), f"an answer, got {answer!r}")


@_clause
def an_unknown_model_is_an_error_that_names_it(subject: ChatSubject) -> None:
    name = subject.unknown_model
    if name is None:
        raise Skipped("the endpoint is said to take any name")
    try:
        call = subject.ask(subject.question("Say hello.", model=name))
    except Exception as exc:  # noqa: BLE001  # a client of others raises errors of its own
        error = exc
    else:
        raise Unlike(
            f"expected an error for the model {name!r}, got {call.text!r}; for an endpoint that "
            "takes any name pass unknown_model=None"
        )
    expect(name in str(error), f"an error that names {name!r}, got {error!r}")
    evidence = evidence_of(error)
    if evidence is None:
        raise Unlike(f"expected an error with evidence, got {error!r}") from error
    expect(evidence.status == "failed", f"the status 'failed', got {evidence.status!r}")
    expect(bool(evidence.error), "the error in its evidence")
    requested = evidence.requested_model
    expect(requested == name, f"{name!r} as the requested model, got {requested!r}")


# ---------------------------------------------------------------- cancelled calls


@_clause
def a_cancelled_call_ends_at_once(subject: ChatSubject) -> None:
    draft = subject.open(subject.long())
    if not isinstance(draft, CustomDraft):
        running = runtime().submit(partial(_cancelled, draft.asend), label=LABEL)
        _expect_cancelled(running, draft, subject)
    elif is_async(subject.client.complete):
        complete: Callable[..., Any] = subject.client.complete
        ask = partial(complete, subject.long())
        _expect_end_on_user_loop(runtime().start_on_user_loop(partial(_cancelled, ask)), subject)
    else:
        raise Skipped(_PLAIN)
    subject.ask(subject.echo("heron"))


@_clause
def a_cancelled_stream_ends_at_once(subject: ChatSubject) -> None:
    draft = subject.open(subject.long(), how="streamed")
    if not isinstance(draft, CustomDraft):
        is_started = threading.Event()

        async def hold(_: RathLLMStreamDelta) -> None:
            is_started.set()
            await asyncio.Event().wait()

        running = runtime().submit(lambda: draft.asend(on_delta=hold), label=LABEL)
        running.future.add_done_callback(lambda _: is_started.set())
        is_in_time = is_started.wait(ANSWER_SECONDS)
        if running.future.done():
            running.future.result()
            raise Unlike("expected a stream of deltas, got an answer without any")
        runtime().cancel(running)
        expect(is_in_time, f"a first delta within {ANSWER_SECONDS:g} s")
        _expect_cancelled(running, draft, subject)
    else:
        stream = cast("StreamingChatClient", subject.client).complete_stream  # it was opened
        if not (is_async(stream) or inspect.isasyncgenfunction(stream)):
            raise Skipped(_PLAIN)
        running = runtime().start_on_user_loop(partial(_consume, partial(stream, subject.long())))
        _expect_end_on_user_loop(running, subject)
    subject.ask(subject.echo("cement"))


@_clause
def an_abandoned_stream_ends_at_once(subject: ChatSubject) -> None:
    subject.need_stream()
    client = cast("StreamingChatClient", subject.client)  # just asked
    stream = client.complete_stream
    deltas: object = None if is_async(stream) else stream(subject.long())
    if not inspect.isgenerator(deltas):
        raise Skipped("complete_stream gives no generator, which could be closed")
    generator = cast("Iterator[RathLLMStreamDelta]", deltas)
    first = runtime().start_in_worker(lambda: next(generator, None))
    result_within(first, "a first delta", ANSWER_SECONDS)
    closing = runtime().start_in_worker(deltas.close)
    result_within(closing, "a stream that was closed to end", subject.cancel_seconds)
    subject.ask(subject.echo("violin"))


def _expect_cancelled(running: Running, draft: ChatDraft, subject: ChatSubject) -> None:
    await_end(running.future, _IN_TIME, subject.cancel_seconds, partial(runtime().cancel, running))
    error = running.future.exception()
    is_cancelled = isinstance(error, asyncio.CancelledError)
    expect(is_cancelled, f"a cancelled call to end with CancelledError, got {error!r}")
    evidence = draft.last_evidence()
    if evidence is not None:
        expect(evidence.status == "cancelled", f"the status 'cancelled', got {evidence.status!r}")


def _expect_end_on_user_loop(running: Running, subject: ChatSubject) -> None:
    """Wait for a coroutine of the client itself: a draft would not wait for its end."""
    cancel = partial(runtime().cancel_on_user_loop, running)
    await_end(running.future, _IN_TIME, subject.cancel_seconds, cancel)


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
