"""A chat client under its contract: how it is asked, and the calls and errors so far."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import field, replace
from datetime import UTC, datetime
from typing import Any, Literal, TypeVar

from rath._async.runtime import Running, runtime
from rath._core.dataclasses import dataclass
from rath.conformance.contract import Skipped, Unlike
from rath.llm.base import ChatClient, ChatDraft
from rath.llm.chat_request import RathLLMChatRequest, RathLLMFunctionTool, RathLLMMessage
from rath.llm.chat_response import (
    RathLLMAssistantMessage,
    RathLLMChatResponse,
    RathLLMStreamDelta,
)
from rath.llm.client import open_draft
from rath.llm.evidence import CallEvidence, Exchange
from rath.llm.provider import Provider
from rath.session.chat_request_build import provider_into_chat_request

T = TypeVar("T")

How = Literal["whole", "streamed"]

LABEL = "a call of the contract of chat clients"

ANSWER_SECONDS = 180.0
"""How long an answer may take; a guess that leaves a slow machine its time."""

_LONG = 4
"""A long answer has this many times the tokens of a short one; a guess at what is under way for a
while without costing much."""


@dataclass(frozen=True, slots=True)
class ContractCall:
    """A call that was answered."""

    draft: ChatDraft
    body: bytes
    """The draft's body just before it was sent."""

    deltas: tuple[RathLLMStreamDelta, ...] | None
    """None for a call that was answered whole."""

    response: RathLLMChatResponse
    evidence: CallEvidence
    started: datetime
    ended: datetime

    @property
    def message(self) -> RathLLMAssistantMessage:
        """The answer of the model."""
        return self.response.primary_choice.message

    @property
    def text(self) -> str:
        return self.message.content or ""


@dataclass(slots=True)
class ChatSubject:
    """A chat client, the requests that it gets, and what it did with them."""

    client: ChatClient
    max_tokens: int
    secret: str = field(repr=False)
    """The key that must appear nowhere; empty when none is known."""

    unknown_model: str | None
    cancel_seconds: float
    calls: list[ContractCall] = field(default_factory=list[ContractCall])
    """Those that were answered so far."""

    errors: list[Exception] = field(default_factory=list[Exception])
    """The errors of the others."""

    log: list[str] = field(default_factory=list[str])
    """The lines that were logged meanwhile."""

    @property
    def provider(self) -> Provider:
        """The provider of the client, which need not have one."""
        found: object = getattr(self.client, "provider", None)
        return found if isinstance(found, Provider) else Provider()

    @property
    def hows(self) -> tuple[How, ...]:
        """The ways in which it can be asked."""
        streams = callable(getattr(self.client, "complete_stream", None))
        return ("whole", "streamed") if streams else ("whole",)

    def need_stream(self) -> None:
        """Skip a clause where the client cannot stream."""
        if "streamed" not in self.hows:
            raise Skipped("it has no complete_stream")

    def answered(self) -> list[ContractCall]:
        """Return the calls that were answered; skip a clause where there are none."""
        if not self.calls:
            raise Skipped("no call was answered")
        return self.calls

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
        limit = max_tokens or self.max_tokens
        is_old = self.provider.max_tokens is not None
        fields: dict[str, Any] = {
            "model": model or self.provider.model,
            "max_tokens": limit if is_old else None,
            "max_completion_tokens": None if is_old else limit,
            **dict.fromkeys(("n", "stop", "tool_choice", "response_format")),
            **more,
        }
        plain = replace(self.provider, **fields)
        return provider_into_chat_request(messages, tuple(tools), plain, default_tool_choice=None)

    def question(self, text: str, **options: Any) -> RathLLMChatRequest:
        """Return a request with one question."""
        return self.request(RathLLMMessage("user", text), **options)

    def echo(self, word: str) -> RathLLMChatRequest:
        """Return a request that a word shall be repeated."""
        return self.question(f"Repeat this word and say nothing else: {word}")

    def long(self) -> RathLLMChatRequest:
        """Return a request whose answer takes a while."""
        question = "Count from 1 to 500, with digits and commas."
        return self.question(question, max_tokens=_LONG * self.max_tokens)

    def open(self, request: RathLLMChatRequest, *, how: How = "whole") -> ChatDraft:
        """Return a draft of the request; skip a clause where it would have to be streamed."""
        if how == "streamed":
            self.need_stream()
        return open_draft(self.client, request, streaming=how == "streamed")

    def ask(self, request: RathLLMChatRequest, *, how: How = "whole") -> ContractCall:
        """Send a request and wait for its answer."""
        (call,) = self.send_all([(self.open(request, how=how), how)])
        return call

    def send_all(self, drafts: Sequence[tuple[ChatDraft, How]]) -> list[ContractCall]:
        """Send drafts at once and wait for all of the answers."""
        running: list[Running] = []
        calls: list[Callable[[], ContractCall]] = []
        try:
            for draft, how in drafts:
                each, finish = _start(draft, how)
                running.append(each)
                calls.append(finish)
            for finish in calls:
                try:
                    self.calls.append(finish())
                except Exception as exc:  # a client of others raises errors of its own
                    self.errors.append(exc)
                    raise
            return self.calls[-len(drafts) :]
        finally:
            for each in running:
                runtime().cancel(each)


def _start(draft: ChatDraft, how: How) -> tuple[Running, Callable[[], ContractCall]]:
    """Send a draft, and return how to wait for its answer."""
    body, started = draft.body(), datetime.now(UTC)
    deltas: list[RathLLMStreamDelta] = []
    on_delta = deltas.append if how == "streamed" else None
    running = runtime().submit(lambda: draft.asend(on_delta=on_delta), label=LABEL)

    def finish() -> ContractCall:
        await_end(running.future, "an answer", ANSWER_SECONDS, lambda: runtime().cancel(running))
        exchange: Exchange = running.future.result()
        received = tuple(deltas) if how == "streamed" else None
        response, evidence = exchange.response, exchange.evidence
        return ContractCall(draft, body, received, response, evidence, started, datetime.now(UTC))

    return running, finish


def await_end(
    future: Future[Any],
    expectation: str,
    seconds: float,
    cancel: Callable[[], object] = lambda: None,
) -> None:
    """Wait for the end of some work, however it ends.

    Args:
        future: Its result.
        expectation: What it is expected to do in time.
        seconds: How long to wait.
        cancel: Ends it where it is late, or where the wait is interrupted.

    Raises:
        Unlike: It goes on.
    """
    try:
        wait([future], timeout=seconds)
    finally:
        if not future.done():
            cancel()
    if not future.done():
        raise Unlike(f"expected {expectation} within {seconds:g} s")


def result_within(future: Future[T], expectation: str, seconds: float) -> T:
    """Wait for some work as `await_end` does, and return its result or raise its error."""
    await_end(future, expectation, seconds)
    return future.result()
