"""A chat client under its contract: how it is asked, and what came of it so far."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Literal, TypeVar

from rath._async.runtime import Running, runtime
from rath.conformance.report import Skipped, Unlike
from rath.llm.base import ChatClient, ChatDraft
from rath.llm.chat_request import RathLLMChatRequest, RathLLMFunctionTool, RathLLMMessage
from rath.llm.chat_response import (
    RathLLMAssistantMessage,
    RathLLMChatResponse,
    RathLLMStreamDelta,
)
from rath.llm.client import open_draft
from rath.llm.evidence import CallEvidence, Exchange, OnDelta
from rath.llm.provider import Provider
from rath.session.chat_request_build import provider_into_chat_request

__all__ = ["ANSWER_SECONDS", "Call", "How", "Subject", "await_end", "result_of", "wait_for"]

T = TypeVar("T")

How = Literal["whole", "streamed"]

ANSWER_SECONDS = 180.0
"""How long an answer may take; a guess that leaves a slow machine its time."""

_LONG = 4
"""A long answer has this many times the tokens of a short one; a guess at what is under way for a
while without costing much."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call that was answered."""

    draft: ChatDraft
    body: bytes
    """What the draft said that it would send, just before it did."""

    deltas: tuple[RathLLMStreamDelta, ...] | None
    """None for a call that was answered whole."""

    response: RathLLMChatResponse
    evidence: CallEvidence
    begun: datetime
    ended: datetime

    @property
    def message(self) -> RathLLMAssistantMessage:
        """What the model said."""
        return self.response.primary_choice.message

    @property
    def text(self) -> str:
        return self.message.content or ""


@dataclass(slots=True)
class Subject:
    """A chat client, the requests that it gets, and what it did with them."""

    client: ChatClient
    max_tokens: int
    secret: str = field(repr=False)
    """The key that must appear nowhere; empty when none is known."""

    unknown_model: str | None
    cancel_seconds: float
    calls: list[Call] = field(default_factory=list[Call])
    """Those that were answered so far."""

    errors: list[Exception] = field(default_factory=list[Exception])
    """What the others failed with."""

    log: list[str] = field(default_factory=list[str])
    """What was logged meanwhile."""

    @property
    def provider(self) -> Provider:
        """What the client was made for; it need not say."""
        given: object = getattr(self.client, "provider", None)
        return given if isinstance(given, Provider) else Provider()

    @property
    def streams(self) -> bool:
        return callable(getattr(self.client, "complete_stream", None))

    @property
    def hows(self) -> tuple[How, ...]:
        """The ways in which it can be asked."""
        return ("whole", "streamed") if self.streams else ("whole",)

    def request(
        self,
        *messages: RathLLMMessage,
        tools: Sequence[RathLLMFunctionTool] = (),
        max_tokens: int | None = None,
        model: str | None = None,
        **more: Any,
    ) -> RathLLMChatRequest:
        """Return a request with the provider's own parameters.

        The limit of tokens stands in `max_tokens` where the provider uses that field, and else in
        `max_completion_tokens`, which newer models want.
        """
        prefs = self.provider
        limit = max_tokens or self.max_tokens
        old = prefs.max_tokens is not None
        plain = replace(
            prefs,
            model=model or prefs.model,
            max_tokens=limit if old else None,
            max_completion_tokens=None if old else limit,
            n=None,
            stop=None,
            tool_choice=None,
            response_format=None,
        )
        plain = replace(plain, **more)
        return provider_into_chat_request(messages, tuple(tools), plain, default_tool_choice=None)

    def echo(self, word: str) -> RathLLMChatRequest:
        """Return a request that a word shall be repeated."""
        text = f"Repeat this word and say nothing else: {word}"
        return self.request(RathLLMMessage("user", text))

    def long(self) -> RathLLMChatRequest:
        """Return a request whose answer takes a while."""
        question = RathLLMMessage("user", "Count from 1 to 500, with digits and commas.")
        return self.request(question, max_tokens=_LONG * self.max_tokens)

    def open(self, request: RathLLMChatRequest, *, how: How = "whole") -> ChatDraft:
        """Return a draft of the request.

        Raises:
            Skipped: It would have to be streamed, and the client cannot do that.
        """
        if how == "streamed" and not self.streams:
            raise Skipped("it has no complete_stream")
        return open_draft(self.client, request, streaming=how == "streamed")

    def ask(self, request: RathLLMChatRequest, *, how: How = "whole") -> Call:
        """Send a request and wait for its answer."""
        return self.send(self.open(request, how=how), how=how)

    def send(self, draft: ChatDraft, *, how: How = "whole") -> Call:
        """Send a draft and wait for its answer."""
        (call,) = self.send_all([(draft, how)])
        return call

    def send_all(self, drafts: Sequence[tuple[ChatDraft, How]]) -> list[Call]:
        """Send drafts at once and wait for all of the answers."""
        started = [_Started(draft, streamed=how == "streamed") for draft, how in drafts]
        try:
            return [self._finish(each) for each in started]
        finally:
            for each in started:
                runtime().cancel(each.running)

    def _finish(self, started: _Started) -> Call:
        try:
            call = started.finish()
        except Exception as exc:  # a client of others raises errors of its own
            self.errors.append(exc)
            raise
        self.calls.append(call)
        return call


class _Started:
    """A call in flight."""

    def __init__(self, draft: ChatDraft, *, streamed: bool) -> None:
        self._draft = draft
        self._deltas: list[RathLLMStreamDelta] | None = [] if streamed else None
        self._body = draft.body()
        self._begun = datetime.now(UTC)
        on_delta: OnDelta | None = None if self._deltas is None else self._deltas.append
        self.running = runtime().submit(
            lambda: draft.asend(on_delta=on_delta), label="a call of the contract of chat clients"
        )

    def finish(self) -> Call:
        exchange: Exchange = result_of(self.running)
        return Call(
            draft=self._draft,
            body=self._body,
            deltas=None if self._deltas is None else tuple(self._deltas),
            response=exchange.response,
            evidence=exchange.evidence,
            begun=self._begun,
            ended=datetime.now(UTC),
        )


def result_of(running: Running) -> Any:
    """Wait for what was submitted and return its result.

    Raises:
        Unlike: It did not come.
    """
    await_end(running, "an answer", seconds=ANSWER_SECONDS)
    return running.future.result()


def await_end(
    running: Running,
    expectation: str,
    *,
    seconds: float,
    cancel: Callable[[Running], None] | None = None,
) -> None:
    """Wait until something has ended, however it ended.

    Args:
        running: What was submitted.
        expectation: What it is expected to do in time.
        seconds: How long to wait.
        cancel: Ends it in case that it is late; as a run of the runtime by default.

    Raises:
        Unlike: It goes on.
    """
    try:
        wait([running.future], timeout=seconds)
    finally:
        if not running.future.done():
            (cancel or runtime().cancel)(running)
    if not running.future.done():
        raise Unlike(f"expected {expectation} within {seconds:g} s")


def wait_for(started: Future[T], expectation: str, *, seconds: float) -> T:
    """Wait for work on a worker thread and return its result.

    Raises:
        Unlike: It goes on.
    """
    wait([started], timeout=seconds)
    if not started.done():
        raise Unlike(f"expected {expectation} within {seconds:g} s")
    return started.result()
