"""The models of a recorded run, made of nothing but its record: for a replay without a program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rath.errors import PersistenceError
from rath.llm.base import ChatClient
from rath.llm.call import CallFacts, OnDelta
from rath.llm.chat_request import RathLLMChatRequest, RathLLMMessage
from rath.llm.clients import Unusable, make_client
from rath.llm.draft import ChatDraft, ProviderOrigin, open_draft
from rath.llm.exchange import CallEvidence, Exchange
from rath.llm.provider import OutputMode, Provider
from rath.llm.recorded import RecordedClient, can_write_again
from rath.llm.sampling import SAMPLING_FIELDS
from rath.session.record import ModelCall
from rath.session.replay.client import Cast, ReplayedClient
from rath.session.replay.history import RecordedRun
from rath.session.running.candidates import Candidate

_SCHEMAS = ("response_format", "output_config")
"""Parameters by which a typed answer is asked for by its schema."""


def recorded_candidates(run: RecordedRun, cast: Cast) -> tuple[Candidate, ...]:
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


def _candidate(call: ModelCall, cast: Cast) -> Candidate:
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

    def __init__(self, cast: Cast, provider: Provider) -> None:
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

    def __init__(self, cast: Cast, request: RathLLMChatRequest, evidence: CallEvidence) -> None:
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
