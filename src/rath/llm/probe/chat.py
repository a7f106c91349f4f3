"""One model, asked step by step what it supports."""

from __future__ import annotations

from dataclasses import replace

from rath.errors import InvalidRequestError, ModelNotFoundError, ProviderProtocolError
from rath.llm.base import ChatClient
from rath.llm.chat_request import RathLLMChatRequest
from rath.llm.chat_response import RathLLMChatChoice, RathLLMStreamDelta
from rath.llm.client import VendorClient, open_draft, output_mode
from rath.llm.evidence import CallEvidence, evidence_of
from rath.llm.probe import judge
from rath.llm.probe.findings import ProbeFinding, ProbeReport
from rath.llm.probe.judge import Judgement, counted
from rath.llm.probe.requests import ProbeRequests
from rath.llm.probe.steps import Steps
from rath.llm.provider import Provider
from rath.llm.refusal import refusal_foreseen
from rath.llm.registry import DEFAULT_KIND, ask_offer, own_target

__all__ = ["ChatProbe"]

_N_SHOWN = 5
_LIMITS = ("max_tokens", "max_completion_tokens")


class ChatProbe:
    """Asks a model for one thing after another; whatever comes of it is a finding.

    Args:
        client: Made for `provider`.
        provider: Parameters of the calls.
        timeout: Seconds for each step.
    """

    def __init__(self, client: ChatClient, provider: Provider, *, timeout: float) -> None:
        self._client = client
        self._provider = provider
        self._route = own_target(client) if isinstance(client, VendorClient) else None
        self._endpoint = self._route.endpoint if self._route else None
        self._steps = Steps(timeout, provider.api_key, self._route)
        self._requests = ProbeRequests(provider, self._endpoint)
        self._offered: tuple[str, ...] = ()
        self._is_refused = False
        """Whether the endpoint said that it has no such model."""

    async def run(self) -> ProbeReport:
        """Go through all steps; runs on the runtime loop."""
        models = await self._steps.take("models", self._models)
        if self._route is None and isinstance(self._client, VendorClient):
            text = "no model is named, so none was asked"
            return self._report(models, ProbeFinding(step="answer", verdict="skipped", text=text))
        answer = await self._steps.take("answer", self._answer)
        models = self._settled(models, answer)
        if answer.verdict == "failed":
            return self._report(models, answer)
        return self._report(models, answer, *await self._further_steps())

    def _report(self, *findings: ProbeFinding) -> ProbeReport:
        route = self._route
        return ProbeReport(
            provider_kind=self._provider.provider_kind or DEFAULT_KIND,
            endpoint=self._endpoint,
            model=self._provider.model if route is None else route.model,
            model_origin=None if route is None else dict(route.origins).get("model"),
            offered=self._offered,
            findings=findings,
        )

    async def _further_steps(self) -> list[ProbeFinding]:
        findings = [
            await self._steps.take("tool_call", self._tool_call),
            await self._steps.take("stream", self._stream),
        ]
        mode = output_mode(self._client, self._provider, with_tools=False, strict=True)
        if mode == "schema":
            findings.append(await self._steps.take("schema", self._schema))
        return findings

    async def _models(self) -> Judgement:
        client, route = self._client, self._route
        if not isinstance(client, VendorClient):
            return "skipped", f"{type(client).__name__} has no way to ask for models"
        offer = await ask_offer(client)
        if offer.error is not None:
            return judge.judge_no_list(offer.error, is_untold=offer.is_unknown)
        self._offered = offer.models
        told = f"offers {counted(len(offer.models), 'model')}"
        if route is None:
            return "works", f"{told}, such as {', '.join(map(repr, offer.models[:_N_SHOWN]))}"
        refusal = refusal_foreseen(route, offer.models)
        if refusal is not None:
            return "failed", refusal
        return "works", f"{told}, {route.model!r} among them" if offer.models else told

    async def _answer(self) -> Judgement:
        try:
            choice, call = await self._ask(self._requests.word())
        except ModelNotFoundError:
            self._is_refused = True
            raise
        except InvalidRequestError as exc:
            # Some models refuse a limit so low, or the name that it has.
            if not any(name in str(exc) for name in _LIMITS):
                raise
            self._requests.is_limited = False
            choice, call = await self._ask(self._requests.word())
        return judge.judge_answer(choice, call)

    async def _tool_call(self) -> Judgement:
        try:
            choice, _ = await self._ask(self._requests.tool_call("required"))
        except InvalidRequestError:
            choice, _ = await self._ask(self._requests.tool_call("auto"))
            return judge.judge_tool_call(choice, is_required=False)
        return judge.judge_tool_call(choice, is_required=True)

    async def _stream(self) -> Judgement:
        if not callable(getattr(self._client, "complete_stream", None)):
            return "lacking", f"{type(self._client).__name__} cannot stream"
        try:
            _, call = await self._ask(self._requests.word(), is_streamed=True)
        except InvalidRequestError as exc:
            if "stream_options" not in str(exc):
                raise
            await self._ask(self._requests.word_without_counts(), is_streamed=True)
            return judge.WITHOUT_COUNTS
        return judge.judge_stream(call)

    async def _schema(self) -> Judgement:
        choice, _ = await self._ask(self._requests.schema())
        return judge.judge_object(choice)

    async def _ask(
        self, request: RathLLMChatRequest, *, is_streamed: bool = False
    ) -> tuple[RathLLMChatChoice, CallEvidence]:
        draft = open_draft(self._client, request, streaming=is_streamed)
        try:
            exchange = await draft.asend(on_delta=_drop if is_streamed else None)
        except BaseException as exc:
            evidence = evidence_of(exc) or draft.last_evidence()
            if evidence is not None:
                self._steps.note(evidence)
            raise
        self._steps.note(exchange.evidence)
        self._endpoint = exchange.evidence.endpoint or self._endpoint
        if not exchange.response.choices:
            raise ProviderProtocolError("the answer holds no choices; expected at least one")
        return exchange.response.primary_choice, exchange.evidence

    def _settled(self, models: ProbeFinding, answer: ProbeFinding) -> ProbeFinding:
        """Weigh what the list of models said by what the model itself did."""
        model = self._route.model if self._route else None
        if models.verdict != "failed":
            return models
        if answer.verdict != "failed":
            text = f"does not list {model!r}, which it serves all the same"
            return replace(models, verdict="lacking", text=text if self._offered else models.text)
        if not self._offered:
            return replace(models, verdict="skipped", text="could not be asked for its models")
        if self._is_refused:
            text = f"offers {counted(len(self._offered), 'model')}, {model!r} is not among them"
            return replace(models, verdict="works", text=text)
        return models


def _drop(_: RathLLMStreamDelta) -> None:
    """Take a delta of a stream, of which only the whole counts here."""
