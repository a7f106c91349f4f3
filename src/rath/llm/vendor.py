"""The base of our own chat clients; a vendor adds how it writes, reads and connects."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, ClassVar, TypeVar

from rath import __version__
from rath._async.retry import DEFAULT_BASE_SECONDS, DEFAULT_MAX_ATTEMPTS, RetryPolicy, Sleep
from rath._async.runtime import runtime
from rath.errors import SelfWaitError
from rath.llm.body import Body, BodyWriter
from rath.llm.call import CallFacts, ProviderOrigin, Served
from rath.llm.chat_request import RathLLMChatRequest
from rath.llm.chat_response import RathLLMChatResponse, RathLLMStreamDelta
from rath.llm.failure import Asked, retry_verdict
from rath.llm.limits import caps_of
from rath.llm.provider import DEFAULT_TIMEOUT, OutputMode, Provider
from rath.llm.vendor_draft import VendorDraft
from rath.llm.wire import ChunkDecoder, Wire, list_models

T = TypeVar("T")

__all__ = ["Route", "VendorClient"]


@dataclass(frozen=True, slots=True)
class Route:
    """Where the calls of a client go."""

    endpoint: str | None
    """Scheme, host and path; None until it is known."""

    model: str
    origins: tuple[tuple[str, str], ...]
    """Where model, base_url and api_key came from."""

    secret: str = field(repr=False)
    password: str = field(default="", repr=False)
    """The one in the base URL."""

    def asked(self, kind: str, *, timeout: float) -> Asked:
        """Return who is asked by a call that goes here, for the words of an error.

        Args:
            kind: The provider kind, which names an endpoint that is not known yet.
            timeout: Seconds.
        """
        origins = dict(self.origins)
        return Asked(
            endpoint=self.endpoint or f"the {kind} model server",
            model=self.model,
            model_origin=_in_words(origins.get("model", "call")),
            key_origin=_in_words(origins.get("api_key", "call")),
            timeout=timeout,
            secret=self.secret,
            password=self.password,
        )


class VendorClient(ABC):
    """Does for every vendor: retries, streaming, folding, evidence, and the documented methods.

    Args:
        provider: What the client is made for.
        sleep: Waits between tries; for tests.
    """

    kind: ClassVar[str]
    renderer: ClassVar[str]
    """Name and version of the code that writes bodies; a change of bytes changes it."""

    sdk: ClassVar[str | None] = None
    takes_schema: ClassVar[bool] = False
    """Whether the endpoint holds an answer to a JSON Schema."""

    takes_loose_schema: ClassVar[bool] = False
    """Whether it takes a schema that is not strict too; elsewhere a tool serves for that one."""

    def __init__(self, provider: Provider, *, sleep: Sleep = asyncio.sleep) -> None:
        self._provider = provider
        self.sleep = sleep
        self.retry_policy = RetryPolicy(
            max_attempts=_set_or(provider.retry_max_attempts, DEFAULT_MAX_ATTEMPTS),
            base=_set_or(provider.retry_base_seconds, DEFAULT_BASE_SECONDS),
        )

    @property
    def provider(self) -> Provider:
        """The provider that the client was made for."""
        return self._provider

    @property
    def timeout(self) -> float:
        """Seconds for a whole answer, or of silence in a stream."""
        return _set_or(self._provider.timeout, DEFAULT_TIMEOUT)

    def output_mode(self, *, with_tools: bool) -> OutputMode:
        """Return how a typed answer is asked for, beside tools or without any."""
        return "schema" if self.takes_schema else "tool"

    def complete(self, req: RathLLMChatRequest) -> RathLLMChatResponse:
        """Return the whole answer; waits for it.

        Raises:
            ProviderError: The call failed.
            ValueError: No model is named.
        """
        draft = self.open_draft(req, streaming=False, provider_origin="call")
        return runtime().run(draft.asend, label="a model call").response

    def complete_stream(self, req: RathLLMChatRequest) -> Iterator[RathLLMStreamDelta]:
        """Return an iterator over the answer as it comes; the call begins with its first item.

        Raises:
            ProviderError: In the iterator: the call failed.
            ValueError: No model is named.
        """
        return _iterate(self.open_draft(req, streaming=True, provider_origin="call"))

    def open_draft(
        self,
        request: RathLLMChatRequest,
        *,
        streaming: bool,
        provider_origin: ProviderOrigin,
    ) -> VendorDraft:
        """Return a draft that holds the messages of `request`."""
        route = self.route(request.model, provider_origin=provider_origin)
        body = Body(self.write_body(request, model=route.model))
        body.append(request.messages)
        return VendorDraft(
            self,
            body,
            facts=self._facts(route, body),
            asked=self.asked(route),
            streaming=streaming,
            caps=caps_of(self._provider),
        )

    async def amodels(self, route: Route | None = None) -> tuple[str, ...]:
        """Ask the endpoint which models it offers; sorted names. Runs on the runtime loop.

        Args:
            route: Where the calls go whose endpoint is meant; those for the client's own model by
                default.

        Raises:
            ProviderError: No answer, or one that lists no models.
            ValueError: No model is named, or the endpoint may not be called.
        """
        return await list_models(self, self.asked(route or self.route(None)))

    @abstractmethod
    def route(self, model: str | None, *, provider_origin: ProviderOrigin = "call") -> Route:
        """Return where a call for `model` goes; the client's own model when it is None.

        Raises:
            ValueError: There is no model.
        """

    @abstractmethod
    def write_body(self, request: RathLLMChatRequest, *, model: str) -> BodyWriter:
        """Return a writer for bodies with the parameters and tools of `request`."""

    @abstractmethod
    def decode(self, reply: Mapping[str, Any], asked: Asked) -> tuple[RathLLMChatResponse, Served]:
        """Return what a whole answer says; see `Vendor`."""

    @abstractmethod
    def chunk_decoder(self, asked: Asked) -> ChunkDecoder:
        """Return a reader for the chunks of one stream."""

    @abstractmethod
    async def connect(self, asked: Asked) -> Wire:
        """Return the way to the endpoint; see `Vendor`."""

    def retryable(self, error: BaseException) -> float | bool:
        """Tell whether another try may mend `error`, or after how many seconds it may."""
        return retry_verdict(error)

    def looked_up(self) -> object:
        """Return what was found for the client: one with an equal value calls the same way."""
        try:
            return self.route(None)
        except ValueError:
            return self.route("any")  # it has no model of its own

    def asked(self, route: Route) -> Asked:
        """Return who is asked by a call on `route`, for the words of an error."""
        return route.asked(self.kind, timeout=self.timeout)

    def _facts(self, route: Route, body: Body) -> CallFacts:
        return CallFacts(
            provider_kind=self._provider.provider_kind or self.kind,
            adapter=f"{type(self).__module__}:{type(self).__qualname__}",
            adapter_version=__version__,
            renderer=self.renderer,
            sdk=self.sdk,
            endpoint=route.endpoint,
            requested_model=route.model,
            origins=route.origins,
            tools_digest=body.tools_digest,
        )


class _End:
    """Follows the last delta of a stream."""


def _iterate(draft: VendorDraft) -> Iterator[RathLLMStreamDelta]:
    """Yield what the call on the runtime loop gives; ending the iteration ends the call."""
    if runtime().is_own_thread():
        raise SelfWaitError(
            "complete_stream would block an event loop of rath; use a draft and await it there"
        )
    deltas: SimpleQueue[RathLLMStreamDelta | _End] = SimpleQueue()

    async def send() -> None:
        try:
            await draft.asend(on_delta=deltas.put)
        finally:
            deltas.put(_End())

    running = runtime().submit(send, label="a streamed model call")
    try:
        while not isinstance(item := deltas.get(), _End):
            yield item
        running.future.result()
    finally:
        runtime().cancel(running)


def _in_words(origin: str) -> str:
    return f"the {origin}" if " " not in origin else origin


def _set_or(value: T | None, default: T) -> T:
    return default if value is None else value
