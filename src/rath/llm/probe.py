"""Probes: which features an endpoint really supports, found out by asking it for very little.

    chat      models -> answer -> tool_call, stream, schema
    embedding embedding
    picture   picture

Each step is one `ProbeFinding`, whatever comes of it.
"""

from __future__ import annotations

import asyncio
import json
import struct
import time
import zlib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from decimal import Decimal
from functools import partial
from typing import Any, Literal, TypeAlias, assert_never
from urllib.parse import urlsplit

from rath import errors
from rath._async.lanes import gather
from rath._async.runtime import runtime
from rath._core.dataclasses import dataclass
from rath.config.redaction import redact
from rath.llm import chat_request, chat_response, registry
from rath.llm.base import ChatClient
from rath.llm.client import VendorClient, open_draft, output_mode
from rath.llm.credentials import RequestTarget, is_azure
from rath.llm.embedding import EmbeddingClient, EmbeddingProvider, embedding_client_for
from rath.llm.errors import may_mean_the_same, refusal_foreseen
from rath.llm.evidence import CallEvidence, Exchange, evidence_of
from rath.llm.provider import Provider
from rath.llm.vlm import RathOpenAIVLMClient, VLMProvider

ProbeStep: TypeAlias = Literal[
    "setup", "models", "answer", "tool_call", "stream", "schema", "embedding", "picture"
]
"""The thing that was tried: to make a client, the list of models, a complete answer, a tool call, a
stream, an answer by a JSON Schema, the vector of a word, a question about a picture."""

ProbeVerdict: TypeAlias = Literal["works", "lacking", "failed", "skipped"]
"""Outcome. "lacking": the endpoint does not support it, or not all of it, and programs that
do not need it run. "skipped": nobody was asked."""

Judgement: TypeAlias = tuple[ProbeVerdict, str]

Probed: TypeAlias = Provider | EmbeddingProvider | VLMProvider
"""Whom a probe may ask."""

DEFAULT_PROBE_TIMEOUT = 30.0
"""Seconds for each step; a guess that leaves a small model on a slow machine its time."""

_MAX_ATTEMPTS = 2
"""A second try mends what one lost connection or one busy moment would make look broken."""

_SHORT = 16
"""Tokens of an answer of one word; models that count their thoughts among them get as many as a
run would give them, once they have refused so few."""

_LONG = 128
"""Tokens of a tool call or a small JSON object, which takes about 30; a guess that leaves room for
models that talk before it."""

_PIXELS = 32
"""Width and height; vendors refuse pictures of very few pixels. A guess that costs few tokens."""

_N_SHOWN = 5
_NOT_IMPLEMENTED = 501
_OPENAI_HOST = "api.openai.com"
_LIMITS = ("max_tokens", "max_completion_tokens")
_UNSET = (
    "stop", "n", "tool_choice", "parallel_tool_calls", "response_format", "logprobs",
    "top_logprobs",
)  # fmt: skip
"""Parameters that a provider may set for its own conversations and that would change these."""

_TOOL = chat_request.RathLLMFunctionTool(
    "report_word",
    {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
    "Report a word.",
)
_SCHEMA: Mapping[str, Any] = {**_TOOL.parameters, "additionalProperties": False}
_QUESTIONS: Mapping[str, tuple[str, int, Mapping[str, Any]]] = {
    "word": ("Reply with one word: OK", _SHORT, {}),
    "tool_call": (
        f"Call the tool {_TOOL.name} with the word OK.",
        _LONG,
        {"tools": (_TOOL,), "tool_choice": "required"},
    ),
    "schema": (
        'Give the word OK as JSON: {"word": "OK"}',
        _LONG,
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "word", "schema": _SCHEMA, "strict": True},
            }
        },
    ),
}
"""Text, tokens of the answer, and further fields of each request."""

_NO_COUNTS = "without token counts: a budget does not see such calls"
_TYPED = 'typed outputs need Provider(output_mode="tool")'
_REFUSES: Mapping[ProbeStep, str] = {
    "tool_call": "refuses tools: ",
    "stream": "refuses to stream: ",
    "schema": f"refuses a JSON Schema, so {_TYPED}: ",
}
_REFUSALS = (errors.InvalidRequestError, errors.ModelNotFoundError, errors.ProviderProtocolError)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeFinding:
    """Result of one step of a probe."""

    step: ProbeStep
    verdict: ProbeVerdict
    text: str
    """Observation in one or two sentences; the endpoint's own words where it refused."""

    elapsed_ms: float = 0.0
    calls: tuple[CallEvidence, ...] = ()
    """The model calls that were made for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeReport:
    """Results of a probe of one provider."""

    provider_kind: str
    endpoint: str | None
    """Scheme, host and path; None where no client could be made, or it does not say."""

    model: str | None
    """The model that was asked for; None where nobody names one."""

    model_origin: str | None = None
    """Origin of its name: "call", "env NAME", "config FILE" or "default"."""

    offered: tuple[str, ...] = ()
    """The models that the endpoint lists; empty where it does not tell."""

    findings: tuple[ProbeFinding, ...]

    @property
    def is_usable(self) -> bool:
        """Whether nothing failed; something may be lacking all the same."""
        return all(finding.verdict != "failed" for finding in self.findings)

    @property
    def calls(self) -> tuple[CallEvidence, ...]:
        """Every model call of the probe."""
        return tuple(call for finding in self.findings for call in finding.calls)

    @property
    def served_models(self) -> tuple[str, ...]:
        """The models that say they answered, each once."""
        served = (call.served_model for call in self.calls if call.status == "done")
        return tuple(dict.fromkeys(model for model in served if model))

    @property
    def usage(self) -> chat_response.RathLLMTokenUsage | None:
        """Tokens of all calls, as far as the endpoint counted them; None where it never did."""
        total: chat_response.RathLLMTokenUsage | None = None
        for call in self.calls:
            total = chat_response.add_usage(total, call.usage)
        return total

    @property
    def cost_usd(self) -> Decimal | None:
        """Cost of the calls as far as prices are known, None where none is.

        The first question of a process for a cost takes 0.5 s; see `CallEvidence.cost`.
        """
        costs = [call.cost.usd for call in self.calls if call.cost is not None]
        return sum(costs, start=Decimal(0)) if costs else None


def probe_providers(
    providers: Iterable[Probed], *, timeout: float = DEFAULT_PROBE_TIMEOUT
) -> tuple[ProbeReport, ...]:
    """Ask providers what they support, all at the same time, and wait for what comes of it.

    A chat model is asked for the models beside it, one word, one tool call, one stream and, where
    its adapter gets typed answers by a JSON Schema, one such answer: four or five calls of some
    tens of tokens. An embedding model is asked for the vector of a word, and one that sees for the
    colour of a picture. Whatever fails is told in the report. The fallbacks of a provider are not
    asked.

    Args:
        providers: Whom to ask.
        timeout: Seconds for each step.

    Returns:
        A report for each provider, in their order.

    Example:
        >>> from rath.testing import ScriptedClient, tool_call
        >>> model = ScriptedClient(["OK", tool_call("report_word", {"word": "OK"}), "OK"])
        >>> probe_providers([model.provider])[0].is_usable
        True
    """
    if not timeout > 0:
        raise ValueError(f"timeout must be more than 0 seconds, not {timeout!r}")
    # Clients are made in the caller's thread, as for a run: a kind may be code of its own.
    probes = [_prepare(provider, timeout) for provider in providers]
    asking = [probe.run for probe in probes if not isinstance(probe, ProbeReport)]
    reports = iter(runtime().run(lambda: gather(asking), label="a probe of model endpoints"))
    return tuple(probe if isinstance(probe, ProbeReport) else next(reports) for probe in probes)


def find_obstacle(provider: Probed) -> str | None:
    """Return what keeps a provider from being asked at all, or None; nobody is asked for it.

    Looked at are its kind, its endpoint, its key, and the package that it needs.
    """
    probe = registry.or_no_client(partial(probe_of, provider), key=provider.api_key)
    return probe.problem if isinstance(probe, registry.NoClient) else None


def _prepare(provider: Probed, timeout: float) -> EndpointProbe | ProbeReport:
    limit = provider.retry_max_attempts
    attempts = _MAX_ATTEMPTS if limit is None else min(_MAX_ATTEMPTS, limit)
    probed = replace(provider, timeout=timeout, retry_max_attempts=attempts)
    probe = registry.or_no_client(partial(probe_of, probed, timeout), key=probed.api_key)
    if not isinstance(probe, registry.NoClient):
        return probe
    return ProbeReport(
        provider_kind=getattr(provider, "provider_kind", None) or registry.DEFAULT_KIND,
        endpoint=None,
        model=provider.model,
        findings=(ProbeFinding(step="setup", verdict="failed", text=probe.problem),),
    )


def probe_of(provider: Probed, timeout: float = DEFAULT_PROBE_TIMEOUT) -> EndpointProbe:
    """Return a probe of a provider; its client is made, and nothing is sent."""
    match provider:
        case Provider():
            alone = replace(provider, fallbacks=())
            return ChatProbe(registry.chat_client_for(alone), alone, timeout=timeout)
        case EmbeddingProvider():
            return OneShotProbe(embedding_client_for(provider), timeout=timeout)
        case VLMProvider():
            n_tokens = min(provider.max_tokens or _LONG, _LONG)
            client = RathOpenAIVLMClient(replace(provider, max_tokens=n_tokens))
            return OneShotProbe(client, timeout=timeout)
        case _:
            assert_never(provider)


class EndpointProbe:
    """Takes the steps of one probe: in time, on record, and without an error getting out.

    Args:
        provider: Who is probed; no text repeats its key.
        route: Where the calls go; no text repeats the secrets of it either.
        kind: The provider kind, where the provider does not say.
        timeout: Seconds for each step.
    """

    def __init__(
        self, provider: Probed, route: RequestTarget | None, *, kind: str, timeout: float
    ) -> None:
        self._route = route
        self._endpoint = route.endpoint if route else None
        self._kind = getattr(provider, "provider_kind", None) or kind
        self._model = route.model if route else provider.model
        self._timeout = timeout
        secrets = (provider.api_key, *((route.secret, route.password) if route else ()))
        self._secrets = [secret for secret in secrets if secret]
        self._offered: tuple[str, ...] = ()
        self._calls: list[CallEvidence] = []

    async def run(self) -> ProbeReport:
        """Take all steps; runs on the runtime loop."""
        raise NotImplementedError

    async def take(self, step: ProbeStep, act: Callable[[], Awaitable[Judgement]]) -> ProbeFinding:
        """Return what `act` finds, or what it failed with."""
        self._calls = []
        start = time.perf_counter()
        deadline = asyncio.timeout(self._timeout)
        try:
            async with deadline:
                verdict, text = await act()
        except (errors.RathError, ValueError) as exc:
            # A refusal would come again; any other failure says nothing of the step.
            refused = isinstance(exc, _REFUSALS) or getattr(exc, "status", 0) == _NOT_IMPLEMENTED
            is_lacking = refused and step in _REFUSES
            text = ". ".join([str(exc), *getattr(exc, "__notes__", ())])
            text = _REFUSES[step] + text if is_lacking else text
            verdict = "lacking" if is_lacking else "failed"
        except Exception as exc:  # noqa: BLE001  # adapters of others raise anything; it is told
            text = f"{type(exc).__name__}: {exc}"
            if isinstance(exc, TimeoutError) and deadline.expired():
                text = f"no answer came within {self._timeout:g} s"
            verdict = "failed"
        for secret in self._secrets:
            text = redact(text, secret)
        return ProbeFinding(
            step=step,
            verdict=verdict,
            text=text,
            elapsed_ms=(time.perf_counter() - start) * 1000,
            calls=tuple(self._calls),
        )

    async def call(self, ask: Awaitable[Exchange], last: _LastEvidence = lambda: None) -> _Answer:
        """Return the first choice of an answer and its evidence, which is noted in any case."""
        try:
            exchange = await ask
        except BaseException as exc:
            evidence = evidence_of(exc) or last()
            if evidence is not None:
                self._note(evidence)
            raise
        self._note(exchange.evidence)
        response: chat_response.RathLLMChatResponse = exchange.response
        if not response.choices:
            raise errors.ProviderProtocolError("the answer holds no choices; expected at least one")
        return response.primary_choice, exchange.evidence

    def _note(self, evidence: CallEvidence) -> None:
        self._calls.append(evidence)
        self._endpoint = evidence.endpoint or self._endpoint

    def report(self, *findings: ProbeFinding) -> ProbeReport:
        """Return a report with what is known now."""
        return ProbeReport(
            provider_kind=self._kind,
            endpoint=self._endpoint,
            model=self._model,
            model_origin=dict(self._route.origins).get("model") if self._route else None,
            offered=self._offered,
            findings=findings,
        )


_Answer: TypeAlias = tuple[chat_response.RathLLMChatChoice, CallEvidence]
_LastEvidence: TypeAlias = Callable[[], CallEvidence | None]


class OneShotProbe(EndpointProbe):
    """Asks an embedding model for a vector, or one that sees for the colour of a small picture."""

    def __init__(self, client: EmbeddingClient | RathOpenAIVLMClient, *, timeout: float) -> None:
        super().__init__(client.provider, client.route(), kind=client.kind, timeout=timeout)
        self._client = client

    async def run(self) -> ProbeReport:
        step: ProbeStep = "embedding" if isinstance(self._client, EmbeddingClient) else "picture"
        return self.report(await self.take(step, self._try))

    async def _try(self) -> Judgement:
        client = self._client
        if isinstance(client, EmbeddingClient):
            (vector,) = await client.aembed(("word",), on_call=self._calls.append)
            return "works", f"{self._model!r} gave a vector of {len(vector)} dimensions"
        question = "Which colour is this? One word."
        ask = client.adescribe(_red_square(), prompt=question, mime="image/png")
        verdict, text = _judge_answer(*await self.call(ask))
        return verdict, f"{text}, shown a picture" if verdict == "works" else text


class ChatProbe(EndpointProbe):
    """Asks a chat model for one thing after another.

    Args:
        client: Made for `provider`.
        provider: Parameters of the calls.
        timeout: Seconds for each step.
    """

    def __init__(self, client: ChatClient, provider: Provider, *, timeout: float) -> None:
        route = registry.own_target(client) if isinstance(client, VendorClient) else None
        super().__init__(provider, route, kind=registry.DEFAULT_KIND, timeout=timeout)
        self._client = client
        self._provider = provider
        self._limit = _limit_name(provider, self._endpoint)
        self._is_limited = True
        """Whether answers are kept short; False leaves that to the provider, as in a run."""

        self._is_refused = False
        """Whether the endpoint said that it has no such model."""

    async def run(self) -> ProbeReport:
        models = await self.take("models", self._list_models)
        if self._route is None and isinstance(self._client, VendorClient):
            text = "no model is named, so none was asked"
            return self.report(models, ProbeFinding(step="answer", verdict="skipped", text=text))
        answer = await self.take("answer", self._answer)
        findings = [self._weigh(models, answer), answer]
        if answer.verdict != "failed":
            findings.append(await self.take("tool_call", self._tool_call))
            findings.append(await self.take("stream", self._stream))
            mode = output_mode(self._client, self._provider, with_tools=False, strict=True)
            if mode == "schema":
                findings.append(await self.take("schema", self._schema))
        return self.report(*findings)

    async def _list_models(self) -> Judgement:
        client, route = self._client, self._route
        if not isinstance(client, VendorClient):
            return "skipped", f"{type(client).__name__} has no way to ask for models"
        offer = await registry.ask_offer(client)
        if (error := offer.error) is not None:
            if not offer.is_unknown:
                return "failed", str(error)
            # An error without a status is the adapter's: there, names cannot be listed at all.
            is_by_design = isinstance(error, errors.ProviderError) and error.status is None
            return ("skipped" if is_by_design else "lacking"), (
                str(error) if is_by_design else f"lists no models: {error}"
            )
        self._offered = offer.models
        text = self._offer_text()
        if route is None:
            return "works", f"{text}, such as {', '.join(map(repr, offer.models[:_N_SHOWN]))}"
        refusal = refusal_foreseen(route, offer.models)
        if refusal is not None:
            return "failed", refusal
        return "works", f"{text}, {route.model!r} among them" if offer.models else text

    async def _answer(self) -> Judgement:
        try:
            return _judge_answer(*await self._ask("word"))
        except errors.ModelNotFoundError:
            self._is_refused = True
            raise
        except errors.InvalidRequestError as exc:
            # Some models refuse a limit so low, or the name that it has.
            if not any(name in str(exc) for name in _LIMITS):
                raise
            self._is_limited = False
            return _judge_answer(*await self._ask("word"))

    async def _tool_call(self) -> Judgement:
        is_required = True
        try:
            choice, _ = await self._ask("tool_call")
        except errors.InvalidRequestError:
            is_required = False
            choice, _ = await self._ask("tool_call", tool_choice="auto")
        calls = choice.message.tool_calls
        if not calls and choice.finish_reason == "length":
            return "lacking", "was cut off before it called the tool"
        if not calls:
            return "lacking", "takes no notice of tools: it answered with text where a call was due"
        function = calls[0].function
        if function.name != _TOOL.name:
            return "lacking", f"called {function.name!r}, a tool that was not offered"
        if function.arguments_parse_error:
            return "lacking", "calls tools with arguments that are no JSON object"
        if not is_required:
            return "lacking", 'calls tools, but refuses tool_choice="required"'
        return "works", "called the tool"

    async def _stream(self) -> Judgement:
        if not callable(getattr(self._client, "complete_stream", None)):
            return "lacking", f"{type(self._client).__name__} cannot stream"
        try:
            _, call = await self._ask("word", is_streamed=True)
        except errors.InvalidRequestError as exc:
            if "stream_options" not in str(exc):
                raise
            # Once more, without asking for the token counts at its end.
            extra = {**self._provider.extra_create_args, "stream_options": None}
            await self._ask("word", is_streamed=True, extra_create_args=extra)
            return (
                "lacking",
                'streams only with extra_create_args={"stream_options": None}, and so '
                f"{_NO_COUNTS}",
            )
        if call.first_token_ms is None:
            return "lacking", "answers whole where a stream was asked for"
        if call.usage is None:
            return "lacking", f"streams {_NO_COUNTS}"
        return "works", f"streamed, the first piece after {call.first_token_ms:.0f} ms"

    async def _schema(self) -> Judgement:
        choice, _ = await self._ask("schema")
        if choice.finish_reason == "length":
            return "lacking", "was cut off before its JSON was complete"
        try:
            value: object = json.loads(choice.message.content or "")
        except ValueError:
            value = None
        if list(chat_response.fields_of(value)) == _SCHEMA["required"]:
            return "works", "kept to a JSON Schema"
        return "lacking", f"takes no notice of a JSON Schema, so {_TYPED}"

    async def _ask(self, question: str, *, is_streamed: bool = False, **changes: Any) -> _Answer:
        """Ask with the parameters of the provider, and with few tokens for the answer."""
        text, n_tokens, own = _QUESTIONS[question]
        fields = {name: getattr(self._provider, name) for name in chat_request.SAMPLING_FIELDS}
        fields |= dict.fromkeys(_UNSET)
        if self._is_limited:
            fields |= {**dict.fromkeys(_LIMITS), self._limit: n_tokens}
        messages = (chat_request.RathLLMMessage("user", text),)
        request = chat_request.RathLLMChatRequest(messages=messages, **{**fields, **own, **changes})
        draft = open_draft(self._client, request, streaming=is_streamed)
        sending = draft.asend(on_delta=(lambda _: None) if is_streamed else None)
        return await self.call(sending, draft.last_evidence)

    def _weigh(self, models: ProbeFinding, answer: ProbeFinding) -> ProbeFinding:
        """Return what the list of models said, in the light of what the model itself did."""
        model = self._route.model if self._route else None
        if models.verdict != "failed":
            return models
        if answer.verdict != "failed":
            text = f"does not list {model!r}, which it serves all the same"
            return replace(models, verdict="lacking", text=text if self._offered else models.text)
        if not self._offered:
            return replace(models, verdict="skipped", text="could not be asked for its models")
        if self._is_refused:
            text = f"{self._offer_text()}, {model!r} is not among them"
            return replace(models, verdict="works", text=text)
        return models

    def _offer_text(self) -> str:
        number = len(self._offered)
        return f"offers {number} model{'' if number == 1 else 's'}"


def _judge_answer(choice: chat_response.RathLLMChatChoice, call: CallEvidence) -> Judgement:
    """Judge an answer of one word: who gave it, and whether its tokens are counted."""
    served, requested = call.served_model, call.requested_model
    if served and requested and not is_azure(call.endpoint):
        # A local model is asked by the path of its file, and answers by the name of that.
        name = requested.replace("\\", "/").removesuffix(".gguf")
        if not may_mean_the_same(name, served):
            return "lacking", f"{served!r} answered, although {requested!r} was asked"
    who = repr(served) if served else "a model that does not say its name"
    if call.usage is None:
        return "lacking", f"{who} answered {_NO_COUNTS}"
    cut = ", cut off as asked" if choice.finish_reason == "length" else ""
    return "works", f"{who} answered{cut}"


def _limit_name(provider: Provider, endpoint: str | None) -> str:
    """Return which of its two names the limit of an answer has there.

    OpenAI's newer models refuse the older name, and many other servers the newer one.
    """
    if provider.max_completion_tokens is not None:
        return "max_completion_tokens"
    is_openai = is_azure(endpoint) or urlsplit(endpoint or "").hostname == _OPENAI_HOST
    return "max_completion_tokens" if is_openai and provider.max_tokens is None else "max_tokens"


def _red_square() -> bytes:
    """Return a small picture in one colour, as PNG (W3C, PNG specification, 3rd edition)."""
    size = struct.pack(">IIBBBBB", _PIXELS, _PIXELS, 8, 2, 0, 0, 0)
    rows = (b"\0" + b"\xff\0\0" * _PIXELS) * _PIXELS
    parts = ((b"IHDR", size), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in parts
    )
