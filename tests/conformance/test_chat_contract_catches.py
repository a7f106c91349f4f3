"""The contract of chat clients, run against broken ones: each fails the check that it must fail."""

from __future__ import annotations

import asyncio
import gc
import logging
import re
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec import structs

from rath._async.retry import Attempt
from rath.conformance import check_chat_client
from rath.errors import InvalidRequestError, ModelNotFoundError
from rath.llm import (
    ChatDraft,
    Exchange,
    Provider,
    RathLLMChatRequest,
    RathLLMChatResponse,
    RathLLMMessage,
    RathLLMStreamDelta,
    RathOpenAIChatClient,
)
from rath.llm.credentials import RequestTarget
from rath.llm.custom_client import CustomDraft
from rath.llm.evidence import CallEvidence, DraftFacts, OnDelta
from rath.llm.provider import ProviderOrigin
from rath.llm.stream import split
from rath.llm.transport import Transport, WireReply
from tests.support.asking import KEY
from tests.support.contracts import failed_checks
from tests.support.rule_clients import AsyncRuleClient, RuleClient
from tests.support.served_model import MODEL, serve_model
from tests.support.served_model.model import Prompt, Said, answer
from tests.support.waiting import PATIENCE

SOON = 1.0
"""Seconds in which a client that does not end a cancelled call is expected to: also on a busy
machine more than the others take."""


@pytest.fixture(autouse=True)
def _collect() -> Iterator[None]:
    """Let what a broken client left be logged here, and not among the logs of the next test."""
    yield
    gc.collect()


def failures(client: Any, *, cancel_seconds: float = PATIENCE, **options: Any) -> dict[str, str]:
    """The checks that fail, with what they say."""
    return failed_checks(check_chat_client, client, cancel_seconds=cancel_seconds, **options)


# ---------------------------------------------------------------- answers


class NeverEnds(RuleClient):
    """Streams no finish reason."""

    def complete_stream(self, req: RathLLMChatRequest) -> Iterator[RathLLMStreamDelta]:
        deltas = super().complete_stream(req)
        return (delta for delta in deltas if delta.finish_reason is None)


class EndsOddly(RuleClient):
    """Gives a finish reason that nobody knows."""

    def respond(self, req: RathLLMChatRequest) -> RathLLMChatResponse:
        response = super().respond(req)
        unknown: Any = "evaporated"
        choice = replace(response.primary_choice, finish_reason=unknown)
        return replace(response, choices=(choice,))


class SaysNothing(RuleClient):
    def think(self, prompt: Prompt) -> Said:
        return Said("")


class Doubles(RuleClient):
    """Gives two choices where one was asked for."""

    def respond(self, req: RathLLMChatRequest) -> RathLLMChatResponse:
        response = super().respond(req)
        return replace(response, choices=response.choices * 2)


class Miscounts(RuleClient):
    def respond(self, req: RathLLMChatRequest) -> RathLLMChatResponse:
        response = super().respond(req)
        assert response.usage is not None
        return replace(response, usage=replace(response.usage, total_tokens=0))


class LeavesArgumentsUnparsed(RuleClient):
    def respond(self, req: RathLLMChatRequest) -> RathLLMChatResponse:
        response = super().respond(req)
        choice = response.primary_choice
        calls = tuple(
            replace(call, function=replace(call.function, arguments_parsed=None))
            for call in choice.message.tool_calls or ()
        )
        message = replace(choice.message, tool_calls=calls or None)
        return replace(response, choices=(replace(choice, message=message),))


class GivesNoIds(RuleClient):
    def respond(self, req: RathLLMChatRequest) -> RathLLMChatResponse:
        response = super().respond(req)
        choice = response.primary_choice
        calls = tuple(replace(call, id="") for call in choice.message.tool_calls or ())
        message = replace(choice.message, tool_calls=calls or None)
        return replace(response, choices=(replace(choice, message=message),))


class IgnoresLimits(RuleClient):
    def think(self, prompt: Prompt) -> Said:
        return answer(replace(prompt, max_tokens=None))


class RunsOverStops(RuleClient):
    def think(self, prompt: Prompt) -> Said:
        return answer(replace(prompt, stop=()))


class RefusesOddIds(RuleClient):
    def complete(self, req: RathLLMChatRequest) -> RathLLMChatResponse:
        if any(":" in (message.tool_call_id or "") for message in req.messages):
            raise InvalidRequestError("an id has a colon", status=400)
        return super().complete(req)


class ServesAnyName(RuleClient):
    def respond(self, req: RathLLMChatRequest) -> RathLLMChatResponse:
        return super().respond(replace(req, model=MODEL))


class HidesTheName(RuleClient):
    def respond(self, req: RathLLMChatRequest) -> RathLLMChatResponse:
        try:
            return super().respond(req)
        except ModelNotFoundError:
            raise ModelNotFoundError("no such thing", status=404) from None


@pytest.mark.parametrize(
    ("broken", "check", "detail"),
    [
        (NeverEnds, "deltas_fold_to_the_answer", "a finish reason among the deltas"),
        (EndsOddly, "a_question_is_answered", "got 'evaporated'"),
        (SaysNothing, "a_question_is_answered", "text or tool calls"),
        (Doubles, "a_question_is_answered", "one choice"),
        (Miscounts, "a_question_is_answered", "token counts that add up"),
        (LeavesArgumentsUnparsed, "a_required_tool_is_called", "parsed, got"),
        (GivesNoIds, "a_required_tool_is_called", "an id of its own"),
        (IgnoresLimits, "a_limit_of_tokens_ends_an_answer", "expected 'length'"),
        (RunsOverStops, "a_stop_sequence_ends_an_answer", "ends before '4'"),
        (RefusesOddIds, "histories_with_tool_calls_are_accepted", "ids of other vendors"),
        (ServesAnyName, "an_unknown_model_is_an_error_that_names_it", "unknown_model=None"),
        (HidesTheName, "an_unknown_model_is_an_error_that_names_it", "that names"),
    ],
)
def test_a_broken_answer_is_caught(broken: Callable[[], Any], check: str, detail: str) -> None:
    assert detail in failures(broken())[check]


def test_only_the_part_of_a_history_that_is_refused_is_named() -> None:
    assert set(failures(RefusesOddIds())) == {"histories_with_tool_calls_are_accepted"}
    (detail,) = failures(RefusesOddIds()).values()
    assert "an id has a colon" in detail
    assert "a call that was interrupted" not in detail


# ---------------------------------------------------------------- calls


class Mixes(RuleClient):
    """Answers what it was asked last, once two calls are in flight."""

    def __init__(self) -> None:
        super().__init__()
        self._last: RathLLMChatRequest | None = None
        self._both = threading.Barrier(2)

    def respond(self, req: RathLLMChatRequest) -> RathLLMChatResponse:
        if "heron" not in str(req.messages) and "cement" not in str(req.messages):
            return super().respond(req)
        self._last = req
        with_company = threading.active_count() and self._meets()
        return super().respond(self._last if with_company else req)

    def _meets(self) -> bool:
        try:
            self._both.wait(10)
        except threading.BrokenBarrierError:
            self._both.reset()
            return False
        return True


class NeedsItsOwnThread(RuleClient):
    """Cannot be called where an event loop runs."""

    def complete(self, req: RathLLMChatRequest) -> RathLLMChatResponse:
        async def respond() -> RathLLMChatResponse:
            return self.respond(req)

        coroutine = respond()
        try:
            return asyncio.run(coroutine)
        finally:
            coroutine.close()


class NotAClient:
    """Has no provider."""

    def complete(self, req: RathLLMChatRequest) -> RathLLMChatResponse:
        return RuleClient().complete(req)


def test_mixed_answers_are_caught() -> None:
    problem = failures(Mixes())["calls_at_once_do_not_mix"]
    assert re.search("expected an answer about '[a-z]+' only, got '[a-z]+'", problem)


def test_a_client_that_is_bound_to_a_thread_is_caught() -> None:
    assert set(failures(NeedsItsOwnThread())) == {"it_is_used_from_several_threads_and_loops"}


def test_a_client_without_a_provider_is_caught() -> None:
    assert "`provider` and `complete`" in failures(NotAClient())["it_is_a_chat_client"]


# ---------------------------------------------------------------- endings


class SwallowsCancel(AsyncRuleClient):
    """Goes on with a long answer, whoever cancels it."""

    def __init__(self) -> None:
        super().__init__()
        self.let_go = threading.Event()

    async def complete(self, req: RathLLMChatRequest) -> RathLLMChatResponse:  # type: ignore[override]  # a client may bring either
        if "500" in str(req.messages):
            await self._go_on()
        return self.respond(req)

    async def complete_stream(self, req: RathLLMChatRequest) -> AsyncIterator[RathLLMStreamDelta]:
        for delta in split(self.respond(req)):
            yield delta
            if "500" in str(req.messages):
                await self._go_on()

    async def _go_on(self) -> None:
        while not self.let_go.is_set():
            try:
                await asyncio.to_thread(self.let_go.wait)
            except asyncio.CancelledError:
                continue


class HoldsOn(RuleClient):
    """Closes a stream when it likes."""

    def __init__(self) -> None:
        super().__init__()
        self.let_go = threading.Event()

    def complete_stream(self, req: RathLLMChatRequest) -> Iterator[RathLLMStreamDelta]:
        try:
            yield from super().complete_stream(req)
        except GeneratorExit:
            self.let_go.wait()
            raise


class StubbornWire:
    """A wire whose call cannot be cancelled."""

    def __init__(self, wire: Transport) -> None:
        self._wire = wire
        self.endpoint = wire.endpoint
        self.sdk_version = wire.sdk_version
        self.credential = wire.credential
        self.stream = wire.stream
        self.models = wire.models

    async def post(self, body: bytes) -> WireReply:
        asked = asyncio.ensure_future(self._wire.post(body))
        while not asked.done():
            try:
                await asyncio.shield(asked)
            except asyncio.CancelledError:
                continue
        return asked.result()


class Stubborn(RathOpenAIChatClient):
    async def connect(self, target: RequestTarget) -> Transport:
        return StubbornWire(await super().connect(target))


def test_a_swallowed_cancel_is_caught() -> None:
    client = SwallowsCancel()
    try:
        found = failures(client, cancel_seconds=SOON)
    finally:
        client.let_go.set()
    assert set(found) == {"a_cancelled_call_ends_at_once", "a_cancelled_stream_ends_at_once"}
    assert f"to end within {SOON:g} s" in found["a_cancelled_call_ends_at_once"]


def test_a_stream_that_does_not_close_is_caught() -> None:
    client = HoldsOn()
    try:
        found = failures(client, cancel_seconds=SOON)
    finally:
        client.let_go.set()
    assert set(found) == {"an_abandoned_stream_ends_at_once"}


def test_a_call_of_ours_that_is_answered_although_it_was_cancelled_is_caught() -> None:
    with serve_model() as server:
        provider = Provider(base_url=server.base_url, api_key=KEY, model=MODEL)
        with pytest.raises(AssertionError) as caught:
            check_chat_client(Stubborn(provider))
    assert "failed  a_cancelled_call_ends_at_once: expected a cancelled call" in str(caught.value)


# ---------------------------------------------------------------- evidence


Tamper = Callable[[CallEvidence], CallEvidence]


class Drafting(RuleClient):
    """Has drafts of its own."""

    def __init__(
        self,
        tamper: Tamper = lambda evidence: evidence,
        make: Callable[[CustomDraft, Tamper], ChatDraft] | None = None,
    ) -> None:
        super().__init__()
        self._tamper = tamper
        self._make = make or Draft

    def open_draft(
        self,
        request: RathLLMChatRequest,
        *,
        streaming: bool,
        provider_origin: ProviderOrigin,
    ) -> ChatDraft:
        inner = CustomDraft(self, request, streaming=streaming, provider_origin=provider_origin)
        return self._make(inner, self._tamper)


class Draft:
    """A draft of a client's own: it counts its attempts."""

    def __init__(self, inner: CustomDraft, tamper: Tamper) -> None:
        self._inner = inner
        self._tamper = tamper

    @property
    def facts(self) -> DraftFacts:
        return self._inner.facts

    @property
    def digest(self) -> str:
        return self._inner.digest

    def append(self, messages: Sequence[RathLLMMessage]) -> None:
        self._inner.append(messages)

    def body(self) -> bytes:
        return self._inner.body()

    def last_evidence(self) -> CallEvidence | None:
        return self._inner.last_evidence()

    async def asend(self, *, on_delta: OnDelta | None = None) -> Exchange:
        exchange = await self._inner.asend(on_delta=on_delta)
        evidence = exchange.evidence
        tried = Attempt(number=1, error=None, status=None, elapsed_ms=0.0, wait=0.0)
        return Exchange(
            exchange.response, self._tamper(structs.replace(evidence, attempts=(tried,)))
        )


def set_to(**fields: Any) -> Tamper:
    return lambda evidence: structs.replace(evidence, **fields)


def later_token(evidence: CallEvidence) -> CallEvidence:
    first = None if evidence.first_token_ms is None else evidence.duration_ms + 1
    return structs.replace(evidence, first_token_ms=first)


def failed_attempt(evidence: CallEvidence) -> CallEvidence:
    return structs.replace(
        evidence, attempts=(structs.replace(evidence.attempts[0], error="lost"),)
    )


def test_a_client_with_drafts_of_its_own_keeps_the_contract() -> None:
    assert check_chat_client(Drafting()).failed == ()


@pytest.mark.parametrize(
    ("tamper", "check"),
    [
        (set_to(request_digest="0" * 64), "the_digest_is_that_of_the_body"),
        (set_to(adapter=""), "the_evidence_names_client_and_model"),
        (set_to(requested_model="m"), "the_evidence_names_client_and_model"),
        (set_to(served_model="m"), "the_evidence_names_client_and_model"),
        (set_to(endpoint="https://me:pw@host/"), "the_evidence_names_client_and_model"),
        (set_to(origins=()), "the_evidence_says_where_values_came_from"),
        (set_to(status="failed"), "the_evidence_says_what_came_back"),
        (set_to(usage=None), "the_evidence_says_what_came_back"),
        (set_to(finish_reason="length"), "the_evidence_says_what_came_back"),
        (set_to(attempts=()), "the_evidence_counts_attempts"),
        (failed_attempt, "the_evidence_counts_attempts"),
        (set_to(started=datetime(2020, 1, 1, tzinfo=UTC)), "the_evidence_measures_time"),
        (set_to(queued_ms=1e9), "the_evidence_measures_time"),
        (later_token, "the_evidence_measures_time"),
        (set_to(parameters={"messages": []}), "the_parameters_are_those_of_the_body"),
        (set_to(parameters={"temperature": 9}), "the_parameters_are_those_of_the_body"),
    ],
)
def test_evidence_that_is_not_true_is_caught(tamper: Tamper, check: str) -> None:
    assert set(failures(Drafting(tamper))) == {check}


class LosesTheLastDelta(Draft):
    async def asend(self, *, on_delta: OnDelta | None = None) -> Exchange:
        if on_delta is None:
            return await super().asend()
        deltas: list[RathLLMStreamDelta] = []
        exchange = await super().asend(on_delta=deltas.append)
        texts = [delta for delta in deltas if delta.content_delta]
        for delta in deltas:
            waiting = None if texts and delta is texts[-1] else on_delta(delta)
            if waiting is not None:
                await waiting
        return exchange


class GrowsWrongly(Draft):
    def append(self, messages: Sequence[RathLLMMessage]) -> None:
        super().append([replace(message, name=None) for message in messages][:-1])


def test_a_lost_delta_is_caught() -> None:
    found = failures(Drafting(make=LosesTheLastDelta))
    assert "the deltas to make" in found["deltas_fold_to_the_answer"]


def test_a_draft_that_grows_wrongly_is_caught() -> None:
    found = failures(Drafting(make=GrowsWrongly))
    assert "the same body" in found["a_draft_that_grows_equals_one_with_all_messages"]


# ---------------------------------------------------------------- the key


class Shows(RuleClient):
    def __repr__(self) -> str:
        return f"Shows({KEY})"


class TellsInErrors(Draft):
    async def asend(self, *, on_delta: OnDelta | None = None) -> Exchange:
        try:
            return await super().asend(on_delta=on_delta)
        except ModelNotFoundError as exc:
            told = ModelNotFoundError(f"{exc}; the key was {KEY}", status=404)
            told.evidence = exc.evidence
            raise told from None


class Logs(RuleClient):
    def respond(self, req: RathLLMChatRequest) -> RathLLMChatResponse:
        logging.getLogger("careless").warning("calling with %s", KEY)
        return super().respond(req)


@pytest.mark.parametrize(
    ("client", "place"),
    [
        (Shows(), "the client's repr"),
        (Drafting(make=TellsInErrors), "an error"),
        (Logs(), "the log"),
        (Drafting(set_to(credential=f"call {KEY}")), "the evidence"),
    ],
    ids=["repr", "error", "log", "evidence"],
)
def test_a_key_that_is_displayed_is_caught(client: Any, place: str) -> None:
    assert failures(client)["the_key_appears_nowhere"] == f"expected no key in {place}"


def test_a_report_never_repeats_the_key() -> None:
    class Fails(RuleClient):
        def respond(self, req: RathLLMChatRequest) -> RathLLMChatResponse:
            raise RuntimeError(f"bad key {KEY}")

    with pytest.raises(AssertionError) as caught:
        check_chat_client(Fails())
    assert KEY not in str(caught.value)
    assert "bad key ***" in str(caught.value)
