"""A chat client that writes requests as ever and answers them from a record."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace

from rath.errors import ReplayDifference
from rath.llm.base import ChatClient
from rath.llm.call import CallFacts, OnDelta, ProviderOrigin
from rath.llm.chat_request import RathLLMChatRequest, RathLLMMessage
from rath.llm.chat_response import RathLLMChatResponse, RathLLMStreamDelta
from rath.llm.draft import ChatDraft, open_draft, output_mode
from rath.llm.exchange import CallEvidence, Exchange
from rath.llm.fold import split
from rath.llm.provider import OutputMode, Provider
from rath.session.record import ModelCall
from rath.session.replay.answers import error_of, response_of
from rath.session.replay.script import Script

Writer = Callable[[ModelCall | None], ChatClient]
"""Gives the client that writes a request, for the recorded call that comes next."""


class Cast:
    """The models of one run that is replayed; they get their script when the run is known."""

    def __init__(self) -> None:
        self.script: Script | None = None

    def held(self) -> Script:
        """Return the script.

        Raises:
            ReplayDifference: The recorded run asked nobody.
        """
        if self.script is None:
            raise ReplayDifference(
                "the run asks a model, and the recorded one was made without a question",
                where="the program",
            )
        return self.script


class ReplayedClient:
    """Stands for one model of a run.

    Args:
        provider: What the run was given for it.
        cast: The models of the run.
        writer: Who writes the requests.
        tells_deltas: Whether streamed answers are given in pieces; nobody may be listening.
    """

    def __init__(
        self, provider: Provider, cast: Cast, writer: Writer, *, tells_deltas: bool = True
    ) -> None:
        self._provider = provider
        self.cast = cast
        self._writer = writer
        self._tells_deltas = tells_deltas

    @property
    def provider(self) -> Provider:
        """What the run was given."""
        return self._provider

    @property
    def takes_loose_schema(self) -> bool:
        """Whether the client that writes the requests takes a schema that is not strict."""
        return bool(getattr(self._writer(self._next()), "takes_loose_schema", False))

    def complete(self, req: RathLLMChatRequest) -> RathLLMChatResponse:
        """Refuse: a run goes through drafts, and the record knows no other calls."""
        raise RuntimeError("a replayed model answers only within a run")

    def complete_stream(self, req: RathLLMChatRequest) -> Sequence[RathLLMStreamDelta]:
        """Refuse, as `complete`."""
        raise RuntimeError("a replayed model answers only within a run")

    def output_mode(self, *, with_tools: bool) -> OutputMode:
        """Return how the client that writes the requests asks for a typed answer."""
        client = self._writer(self._next())
        return output_mode(client, client.provider, with_tools=with_tools, strict=True)

    def open_draft(
        self, request: RathLLMChatRequest, *, streaming: bool, provider_origin: ProviderOrigin
    ) -> ReplayedDraft:
        """Return a draft that is written by the real client and answered by the script."""
        call = self._next()
        written = open_draft(
            self._writer(call),
            request,
            streaming=streaming,
            provider_origin=provider_origin,
            provider=self._provider,
        )
        return ReplayedDraft(written, request, self.cast, call, tells_deltas=self._tells_deltas)

    def _next(self) -> ModelCall | None:
        script = self.cast.script
        return None if script is None else script.next_call()


class ReplayedDraft:
    """A conversation that is written again; see `rath.llm.draft.ChatDraft`."""

    def __init__(
        self,
        written: ChatDraft,
        request: RathLLMChatRequest,
        cast: Cast,
        call: ModelCall | None,
        *,
        tells_deltas: bool,
    ) -> None:
        self._written = written
        self._request = request
        self._cast = cast
        self._tells_deltas = tells_deltas
        self._facts = written.facts if call is None else _recorded(written.facts, call.evidence)
        self._last: CallEvidence | None = None

    @property
    def facts(self) -> CallFacts:
        return self._facts

    @property
    def digest(self) -> str:
        return self._written.digest

    def append(self, messages: Sequence[RathLLMMessage]) -> None:
        self._written.append(messages)

    def body(self) -> bytes:
        return self._written.body()

    def last_evidence(self) -> CallEvidence | None:
        return self._last

    async def asend(self, *, on_delta: OnDelta | None = None) -> Exchange:
        """Return the recorded answer, once the request is the recorded one.

        Raises:
            ReplayDifference: It is another one, or the record has no further call.
            ProviderError: The recorded call failed.
            CancelledError: It was cut off.
        """
        self._last = None
        script = self._cast.held()
        call, row = script.serve_call(self._written, self._request)
        self._last = call.evidence
        if call.status == "cancelled":
            raise script.end()
        if call.status == "failed":
            if call.evidence.partial_text:
                await self._tell(RathLLMStreamDelta(call.evidence.partial_text), on_delta)
            raise error_of(call.evidence)
        response = response_of(call, row)
        if self._tells_deltas and response.choices:
            for delta in split(response) if on_delta is not None else ():
                await self._tell(delta, on_delta)
        return Exchange(response, call.evidence)

    async def _tell(self, delta: RathLLMStreamDelta, on_delta: OnDelta | None) -> None:
        waiting = None if on_delta is None else on_delta(delta)
        if inspect.isawaitable(waiting):
            await waiting


def _recorded(facts: CallFacts, evidence: CallEvidence) -> CallFacts:
    """Return facts that know a model as its own answers in the record do.

    A scripted client, and one on another machine, has another name there.
    """
    if facts.requested_model != evidence.requested_model:
        return facts
    return replace(
        facts,
        provider_kind=evidence.provider_kind,
        endpoint=evidence.endpoint,
        adapter=evidence.adapter,
    )
