"""The base of our own chat clients, their drafts, and a draft for any client."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from functools import partial
from queue import SimpleQueue
from typing import Any, ClassVar, cast

from rath import errors
from rath._async.runtime import runtime
from rath.llm.base import BodyDraft, ChatClient, ChatDraft, DraftingClient, SchemaClient
from rath.llm.body import BodyWriter, RequestBody
from rath.llm.calls import ModelCaller, caps_of, enter_endpoint, giving_way
from rath.llm.chat_request import RathLLMChatRequest
from rath.llm.chat_response import RathLLMChatResponse, RathLLMStreamDelta
from rath.llm.credentials import RequestTarget
from rath.llm.custom_client import CustomDraft
from rath.llm.errors import answer_object, protocol_error
from rath.llm.evidence import CallRecorder, Exchange, OnDelta
from rath.llm.offline import is_offline, refuse_live_call
from rath.llm.provider import DEFAULT_TIMEOUT, OutputMode, Provider, ProviderOrigin
from rath.llm.stream import ChunkDecoder, ServedInfo, StreamReader, split
from rath.llm.transport import ReplyStream, Transport, WireReply


class VendorClient(ModelCaller[Provider]):
    """Does for every vendor: retries, streaming, folding, evidence, and the documented methods.

    Args:
        provider: What the client is made for.
        sleep: Waits between tries; for tests.
    """

    takes_schema: ClassVar[bool] = False
    """Whether the endpoint holds an answer to a JSON Schema."""

    takes_loose_schema: ClassVar[bool] = False
    """Whether it takes a schema that is not strict too; elsewhere a tool serves for that one."""

    @property
    def timeout(self) -> float:
        """Seconds for a whole answer, or of silence in a stream."""
        seconds = self.provider.timeout
        return DEFAULT_TIMEOUT if seconds is None else seconds

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
        target = self.target(request.model).with_provider_origin(provider_origin)
        body = RequestBody(self.write_body(request, model=target.model))
        body.append(request.messages)
        return VendorDraft(self, body, target, streaming=streaming)

    async def amodels(self, target: RequestTarget | None = None) -> tuple[str, ...]:
        """Ask the endpoint which models it offers; sorted names. Runs on the runtime loop.

        Args:
            target: Names the endpoint; that of calls for the client's own model by default.

        Raises:
            OfflineError: `rath.offline()` holds.
            ProviderError: No answer, or one that lists no models.
            ValueError: No model is named, or the endpoint may not be called.
        """
        target = target or self.target(None)
        refuse_live_call(target.name, target.model, kind=type(self).__name__)
        return await (await self.connect(target)).models()

    @abstractmethod
    def target(self, model: str | None) -> RequestTarget:
        """Return the target of a call for `model`; of the client's own model when it is None.

        Raises:
            ValueError: There is no model.
        """

    @abstractmethod
    def write_body(self, request: RathLLMChatRequest, *, model: str) -> BodyWriter:
        """Return a writer for bodies with the parameters and tools of `request`."""

    @abstractmethod
    def decode(
        self, reply: Mapping[str, Any], target: RequestTarget
    ) -> tuple[RathLLMChatResponse, ServedInfo]:
        """Return what a whole answer says.

        Raises:
            ProviderError: The answer reports an error, or has no choices.
        """

    @abstractmethod
    def chunk_decoder(self, target: RequestTarget) -> ChunkDecoder:
        """Return a reader for the events of one stream."""

    @abstractmethod
    async def connect(self, target: RequestTarget) -> Transport:
        """Return the way to the endpoint, shared by all clients of this process that use it."""

    def warm_up(self) -> None:
        """Begin to open what the next call needs; runs on the runtime loop, returns at once."""

    def resolved_settings(self) -> object:
        """Return what was found for the client: one with an equal value calls the same way."""
        try:
            return self.target(None)
        except ValueError:
            return self.target("any")  # it has no model of its own


class VendorDraft(BodyDraft):
    """A draft that is sent through the transport of one of our clients."""

    def __init__(
        self, client: VendorClient, body: RequestBody, target: RequestTarget, *, streaming: bool
    ) -> None:
        facts = client.call_facts(target, tools_digest=body.tools_digest)
        super().__init__(body, facts, streaming=streaming)
        self._client = client
        self._target = target
        self._caps = caps_of(client.provider)

    async def asend(self, *, on_delta: OnDelta | None = None) -> Exchange:
        streaming = on_delta is not None
        body = self._body.content(streaming=streaming)
        call = self._record_call(streaming=streaming)
        return call.finish(
            await self._client.complete_call(
                call,
                partial(self._attempt, body, call, on_delta),
                self._target,
                list_models=self._client.amodels,
                n_images=self._body.n_images,
            )
        )

    async def _attempt(
        self, body: bytes, call: CallRecorder, on_delta: OnDelta | None
    ) -> RathLLMChatResponse:
        transport = await self._client.connect(self._target)
        gate = await enter_endpoint(call, transport, self._caps)
        try:
            if on_delta is None:
                return self._decode(await transport.post(body), call)
            async with transport.stream(body) as stream:
                return await self._receive(stream, call, giving_way(gate, on_delta))
        finally:
            gate.leave()

    async def _receive(
        self, stream: ReplyStream, call: CallRecorder, on_delta: OnDelta
    ) -> RathLLMChatResponse:
        """Give each delta of one try out as it comes, and return what they add up to."""
        folded = call.begin_stream()
        reader = StreamReader(self._client.chunk_decoder(self._target))
        call.served = reader.decoder.served

        async def give(deltas: Iterator[RathLLMStreamDelta]) -> None:
            for delta in deltas:
                folded.add(delta)
                waiting = on_delta(delta)
                if waiting is not None:
                    await waiting

        # Many servers name some other type for events, but not these.
        if "json" in stream.content_type or stream.content_type == "text/html":
            # The endpoint does not stream although it was asked to.
            chunks: list[bytes] = []
            while chunk := await stream.next_chunk():
                chunks.append(chunk)
            reply = WireReply.redacted(stream.status, b"".join(chunks), self._target)
            response = self._decode(reply, call)
            await give(split(response))
            return response
        lost: errors.ProviderConnectionError | None = None
        try:
            while not reader.ended and (chunk := await stream.next_chunk()):
                await give(call.noting_tokens(reader.feed(chunk)))
            if reader.ended:
                await stream.drain()
            await give(call.noting_tokens(reader.close()))
        except errors.ProviderConnectionError as exc:
            lost = exc
        if not reader.ended and folded.finish_reason is None:
            text = folded.text
            raise errors.StreamInterrupted(
                f"the stream of {self._target.name} ended without its end marker after "
                f"{len(text)} characters of text",
                endpoint=self._target.name,
                partial_text=text,
            ) from lost
        if not folded.has_content:
            raise protocol_error(self._target, "its stream holds no answer", b"")
        served = reader.served
        return folded.response(
            id=served.response_id or "",
            created=served.created,
            model=served.model or self._target.model,
            service_tier=served.service_tier,
            system_fingerprint=served.fingerprint,
        )

    def _decode(self, reply: WireReply, call: CallRecorder) -> RathLLMChatResponse:
        """Return what a whole answer says."""
        target, content, status = self._target, reply.content, reply.status
        payload = answer_object(content, target, status=status)
        try:
            response, call.served = self._client.decode(payload, target)
        except RecursionError as exc:
            problem = "with an answer of an unexpected form"
            raise protocol_error(target, problem, content, status=status) from exc
        if reply.repeats_key:
            call.served.blocks = ()  # what is signed and was changed is not accepted any more
        return response


def _iterate(draft: VendorDraft) -> Iterator[RathLLMStreamDelta]:
    """Yield what the call on the runtime loop gives; ending the iteration ends the call."""
    if runtime().is_own_thread():
        raise errors.SelfWaitError(
            "complete_stream would block an event loop of rath; use a draft and await it there"
        )
    deltas: SimpleQueue[RathLLMStreamDelta | None] = SimpleQueue()

    async def send() -> None:
        try:
            await draft.asend(on_delta=deltas.put)
        finally:
            deltas.put(None)  # the end

    running = runtime().submit(send, label="a streamed model call")
    try:
        while (delta := deltas.get()) is not None:
            yield delta
        running.future.result()
    finally:
        runtime().cancel(running)


def open_draft(
    client: ChatClient,
    request: RathLLMChatRequest,
    *,
    streaming: bool = False,
    provider_origin: ProviderOrigin = "call",
    provider: Provider | None = None,
) -> ChatDraft:
    """Return a draft for any chat client.

    A client that only knows `complete` and `complete_stream` gets a whole request each time.

    Args:
        client: The client that will be asked.
        request: Parameters, tools and the messages that are there already.
        streaming: Whether `digest` and `body` are those of streamed calls.
        provider_origin: Who gave the client's provider; only told in the evidence.
        provider: Sets the limits of calls through a client that is not ours and was not made for
            it; the client's own one by default.

    Raises:
        ValueError: The request names no model and the client has none either.
    """
    # Quicker than `isinstance`, which looks at all of a protocol.
    if callable(getattr(client, "open_draft", None)):
        drafting = cast("DraftingClient", client)
        if not _answers_by_itself(drafting):
            return drafting.open_draft(
                request, streaming=streaming, provider_origin=provider_origin
            )
    return CustomDraft(
        client, request, streaming=streaming, provider_origin=provider_origin, provider=provider
    )


def output_mode(
    client: ChatClient, provider: Provider, *, with_tools: bool, strict: bool
) -> OutputMode:
    """Return how a typed answer is asked for.

    Args:
        client: Is asked for what `provider` leaves open; one that has no method `output_mode` is
            taken to know nothing of schemas.
        provider: Parameters of the call.
        with_tools: Whether the request offers tools.
        strict: Whether the schema of the answer is strict.
    """
    if provider.output_mode is not None:
        return provider.output_mode
    if isinstance(client, SchemaClient) and (
        strict or getattr(client, "takes_loose_schema", False)
    ):
        return client.output_mode(with_tools=with_tools)
    return "tool"


def require_model(client: ChatClient, model: str | None) -> None:
    """Refuse a call for which nobody names a model, without making it.

    Only our own clients must know one: a client of somebody else, and one that answers by itself,
    may need no name.

    Raises:
        ValueError: Neither `model` nor `client` names one.
    """
    if isinstance(client, VendorClient) and not _answers_by_itself(client):
        client.target(model)


def warm_up(client: ChatClient) -> None:
    """Have a client of ours prepare for a call while its request is written."""
    if isinstance(client, VendorClient) and not is_offline():
        client.warm_up()


def _answers_by_itself(client: DraftingClient) -> bool:
    """Tell whether a subclass overrides what its parent's draft would go past."""
    for name in ("complete", "complete_stream"):
        for owner in type(client).__mro__:
            if "open_draft" in vars(owner):
                break
            if name in vars(owner):
                return True
    return False
