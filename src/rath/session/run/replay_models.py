"""Models of a replay: answers from the record."""

from __future__ import annotations

import builtins
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import rath.errors
from rath.errors import PersistenceError, ProviderError, ReplayDifference, StreamInterrupted
from rath.llm.base import ChatClient
from rath.llm.call import CallFacts, OnDelta, ProviderOrigin
from rath.llm.chat_request import RathLLMChatRequest, RathLLMMessage
from rath.llm.chat_response import (
    RathLLMAssistantMessage,
    RathLLMChatChoice,
    RathLLMChatResponse,
    RathLLMFinishReason,
    RathLLMStreamDelta,
)
from rath.llm.clients import Unusable, make_client
from rath.llm.draft import ChatDraft, open_draft, output_mode
from rath.llm.exchange import CallEvidence, Exchange
from rath.llm.failure import network_error_class
from rath.llm.fold import split, tool_call_part
from rath.llm.provider import OutputMode, Provider
from rath.llm.recorded import RecordedClient, can_write_again
from rath.llm.sampling import SAMPLING_FIELDS
from rath.session.calls.requests import Candidate
from rath.session.chunk import ChunkRow
from rath.session.content import AssistantTurn, UserText
from rath.session.record import ModelCall
from rath.session.run.recorded import RecordedOperation, RecordedRun

_OWN_ERROR = re.compile(r"\S+:\S+ failed: (\w+): (.*)", re.DOTALL)
"""How the record tells of an error that a client of the program raised itself."""


def response_of(call: ModelCall, row: ChunkRow | None) -> RathLLMChatResponse:
    """Return what a model answered.

    Args:
        call: An answered call.
        row: The row that the answer became, None where it became none: then the call says it.
    """
    evidence = call.evidence
    message = _message(call, row)
    reason = evidence.finish_reason or ("tool_calls" if message and message.tool_calls else "stop")
    # The record holds the reason in the words of the type.
    finish = cast("RathLLMFinishReason", reason)
    choices = () if message is None else (RathLLMChatChoice(0, finish, message),)
    return RathLLMChatResponse(
        id=evidence.response_id or "",
        choices=choices,
        created=0,
        model=evidence.served_model or evidence.requested_model or "",
        service_tier=evidence.service_tier,
        system_fingerprint=evidence.fingerprint,
        usage=evidence.usage,
    )


def error_of(evidence: CallEvidence) -> Exception:
    """Return the error with which a recorded call failed, of the class that it had.

    The own error of a client is made again where it was one of Python's; of another one the record
    has the text, and the class of rath for it.
    """
    name, _, message = (evidence.error or "").partition(": ")
    kind = getattr(rath.errors, name, None)
    own = _OWN_ERROR.fullmatch(message)
    made = None if own is None else _builtin_error(own[1], own[2])
    if made is not None and network_error_class(made) is kind:
        return made
    status = evidence.attempts[-1].status if evidence.attempts else None
    if not (isinstance(kind, type) and issubclass(kind, ProviderError)):
        error = ProviderError(evidence.error or "the call failed", endpoint=evidence.endpoint)
    elif issubclass(kind, StreamInterrupted):
        text = evidence.partial_text
        error = kind(message, endpoint=evidence.endpoint, partial_text=text)
    else:
        error = kind(message, endpoint=evidence.endpoint, status=status)
    error.evidence = evidence
    return error


def _builtin_error(name: str, text: str) -> Exception | None:
    kind = getattr(builtins, name, None)
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        return None
    try:
        return kind(text)
    except TypeError:
        return None  # it is made of more than a text


def _message(call: ModelCall, row: ChunkRow | None) -> RathLLMAssistantMessage | None:
    reasoning = call.evidence.reasoning
    content = None if row is None else row.content
    if isinstance(content, UserText):  # a summary
        return RathLLMAssistantMessage(content=content.text, reasoning_content=reasoning)
    if not isinstance(content, AssistantTurn):
        if call.answer is None:
            return None
        return RathLLMAssistantMessage(content=call.answer, reasoning_content=reasoning)
    parts = tuple(
        tool_call_part(each.id, each.name, each.arguments, kind=each.type) for each in content.calls
    )
    is_refusal = call.evidence.finish_reason == "refusal"
    return RathLLMAssistantMessage(
        content=content.text,
        refusal=content.text if is_refusal else None,
        reasoning_content=reasoning,
        tool_calls=parts or None,
    )


Writer = Callable[[ModelCall | None], ChatClient]
"""Gives the client that writes a request, for the recorded call that comes next."""


class ReplayModels:
    """The models of one run that is replayed; they get their script when the run is known."""

    def __init__(self) -> None:
        self.script: RecordedRun | None = None

    def held(self) -> RecordedRun:
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
        self, provider: Provider, cast: ReplayModels, writer: Writer, *, tells_deltas: bool = True
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
        cast: ReplayModels,
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


_SCHEMAS = ("response_format", "output_config")
"""Parameters by which a typed answer is asked for by its schema."""


def recorded_candidates(run: RecordedOperation, cast: ReplayModels) -> tuple[Candidate, ...]:
    """Return the models that a run asked, in the order of their first calls.

    Raises:
        PersistenceError: Requests of a model cannot be written again on this machine.
    """
    calls = run.calls
    first: dict[tuple[str | None, ...], ModelCall] = {}
    longest = chain = 1
    for call in calls:
        evidence = call.evidence
        model = (evidence.provider_kind, evidence.endpoint, evidence.requested_model,
                 evidence.adapter)  # fmt: skip
        first.setdefault(model, call)
        chain = chain + 1 if call.status == "failed" else 1
        longest = max(longest, chain if call is not calls[-1] else chain - 1)
    asked = list(first.values())
    asked += asked[-1:] * (longest - len(asked))
    if not asked:
        provider = Provider(model="none")
        return (Candidate(ReplayedClient(provider, cast, _nobody), provider),)
    return tuple(_candidate(call, cast) for call in asked)


def provider_of(evidence: CallEvidence) -> Provider:
    """Return a provider with the kind, the model and the parameters of a recorded call.

    It has no endpoint: a record must not say where a key is sent.
    """
    given: Mapping[str, Any] = evidence.parameters
    names = set(SAMPLING_FIELDS) - {"model", "extra_create_args", "tool_choice"}
    fields = {name: given[name] for name in names if name in given}
    mode: OutputMode = "schema" if any(name in given for name in _SCHEMAS) else "tool"
    return Provider(
        model=evidence.requested_model,
        provider_kind=evidence.provider_kind,
        output_mode=mode,
        **{name: value for name, value in fields.items() if name != "response_format"},
    )


def _candidate(call: ModelCall, cast: ReplayModels) -> Candidate:
    provider = provider_of(call.evidence)
    writer = _Rewriting(cast, provider)
    client = ReplayedClient(provider, cast, lambda _: writer, tells_deltas=False)
    return Candidate(client, provider)


class RecordedStandIn:
    """A client for a request that nobody made."""

    def __init__(self, provider: Provider) -> None:
        self.provider = provider

    def complete(self, req: RathLLMChatRequest) -> Any:
        """Refuse."""
        raise RuntimeError("a recorded model is never asked")


class _Rewriting(RecordedStandIn):
    """Writes each request with the parameters that the recorded call had."""

    def __init__(self, cast: ReplayModels, provider: Provider) -> None:
        super().__init__(provider)
        self._cast = cast

    def open_draft(
        self, request: RathLLMChatRequest, *, streaming: bool, provider_origin: ProviderOrigin
    ) -> ChatDraft:
        call = self._cast.held().next_call()
        if call is None:
            # The run will be told so when it asks.
            return open_draft(RecordedStandIn(self.provider), request)
        return _RewrittenDraft(self._cast, request, call.evidence)


class _RewrittenDraft:
    """One conversation; a vendor's rules may change its parameters from call to call."""

    def __init__(
        self, cast: ReplayModels, request: RathLLMChatRequest, evidence: CallEvidence
    ) -> None:
        self._cast = cast
        self._request = request
        self._messages: list[RathLLMMessage] = []
        self._parameters: Mapping[str, Any] = evidence.parameters
        self._renderer = evidence.renderer
        self._draft = self._open(evidence)
        self._n_written = 0

    @property
    def facts(self) -> CallFacts:
        return self._draft.facts

    @property
    def digest(self) -> str:
        call = self._cast.held().next_call()
        evidence = None if call is None else call.evidence
        if evidence is not None and (
            evidence.parameters != self._parameters or evidence.renderer != self._renderer
        ):
            self._parameters, self._renderer = evidence.parameters, evidence.renderer
            self._draft, self._n_written = self._open(evidence), 0
        self._draft.append(self._messages[self._n_written :])
        self._n_written = len(self._messages)
        return self._draft.digest

    def append(self, messages: Sequence[RathLLMMessage]) -> None:
        self._messages += messages

    def body(self) -> bytes:
        return self._draft.body()

    async def asend(self, *, on_delta: OnDelta | None = None) -> Exchange:
        raise RuntimeError("a recorded model is never asked")

    def last_evidence(self) -> CallEvidence | None:
        return None

    def _open(self, evidence: CallEvidence) -> ChatDraft:
        client = writing_client(evidence)
        streaming = evidence.parameters.get("stream") is True
        return open_draft(client, self._request, streaming=streaming)


def writing_client(evidence: CallEvidence) -> ChatClient:
    """Return a client that writes requests as the one of a recorded call did.

    Raises:
        PersistenceError: Its adapter is not known here.
    """
    if can_write_again(evidence.renderer):
        return RecordedClient(evidence)
    provider = provider_of(evidence)
    # Nothing is sent, so it does not matter what is in the place of the key.
    made = make_client(Provider(**_fields(provider), api_key="replay"))
    if isinstance(made, Unusable):
        raise PersistenceError(
            f"requests that {evidence.adapter} wrote as {evidence.renderer!r} cannot be written "
            f"again: {made.problem}; import the module that registers the provider kind "
            f"{evidence.provider_kind!r}"
        )
    return made


def _fields(provider: Provider) -> dict[str, Any]:
    names = [name for name in SAMPLING_FIELDS if name != "extra_create_args"]
    given = {name: getattr(provider, name) for name in names}
    return {**given, "provider_kind": provider.provider_kind, "output_mode": provider.output_mode}


def _nobody(_: ModelCall | None) -> ChatClient:
    return RecordedStandIn(Provider(model="none"))
