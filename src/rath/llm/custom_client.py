"""Drafts over chat clients of others, and drafts of recorded calls, which are never sent."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import fields
from functools import partial
from pkgutil import resolve_name
from typing import Any, cast

from rath._async.bridge import is_async
from rath._async.runtime import await_future, runtime
from rath._async.workers import UserExit
from rath.config.redaction import HIDDEN, Redactor
from rath.errors import ProviderError, ProviderProtocolError, RathError
from rath.llm import body
from rath.llm.base import BodyDraft, ChatClient, StreamingChatClient, require_streaming
from rath.llm.calls import CallSlot, caps_of, giving_way, inside_custom_client, pass_gate
from rath.llm.chat_request import RathLLMChatRequest, RathLLMFunctionTool, RathLLMMessage
from rath.llm.chat_response import RathLLMChatResponse, RathLLMStreamDelta
from rath.llm.credentials import public_url
from rath.llm.errors import network_error_class
from rath.llm.evidence import CallEvidence, CallRecorder, DraftFacts, Exchange, OnDelta
from rath.llm.image import Image
from rath.llm.offline import refuse_live_call
from rath.llm.provider import OutputMode, Provider, ProviderOrigin
from rath.llm.stream import ServedInfo, StreamRedactor

RENDERER = "canonical-json/1"
_MAX_WAITING = 256
"""Deltas that a plain iterator may be ahead of those who read them; a guess."""

_REQUEST_FIELDS = tuple(item.name for item in fields(RathLLMChatRequest))

_Take = Callable[[RathLLMStreamDelta], Awaitable[None]]


class CustomDraft(BodyDraft):
    """Keeps the messages and gives the client a whole request each time.

    The body, of which the digest is taken, is a canonical JSON of the request: what the client
    really sends is unknown.
    """

    def __init__(
        self,
        client: ChatClient,
        request: RathLLMChatRequest,
        *,
        streaming: bool,
        provider_origin: ProviderOrigin,
        provider: Provider | None = None,
    ) -> None:
        # Parameters are recorded, and what is no key of a body may hold a secret.
        extra = {
            name: HIDDEN if name in body.CALL_OPTIONS else value
            for name, value in request.extra_create_args.items()
        }
        plain = body.plain_json({**body.encode_sampling(request, model=request.model), **extra})
        writer = body.ListWriter(
            plain,
            [body.encode_tool(tool) for tool in request.tools or ()] or None,
            encode=encode_named,
        )
        # A client need not say what it was made for.
        found: object = getattr(client, "provider", None)
        own = found if isinstance(found, Provider) else Provider()
        model = request.model or own.model
        origins = {"model": model, "base_url": own.base_url, "api_key": own.api_key}
        facts = DraftFacts(
            provider_kind=own.provider_kind or "custom",
            adapter=_name(client),
            adapter_version="unknown",
            renderer=RENDERER,
            endpoint=public_url(own.base_url),
            requested_model=model,
            origins=tuple((name, provider_origin) for name, value in origins.items() if value),
            tools_digest=writer.tools_digest,
        )
        super().__init__(body.RequestBody(writer), facts, streaming=streaming)
        self._client = client
        self._fields = {name: getattr(request, name) for name in _REQUEST_FIELDS}
        self._messages: list[RathLLMMessage] = []
        self._caps = caps_of(provider or own)
        self._redactor = Redactor((own.api_key or "",))
        self.append(request.messages)

    def append(self, messages: Sequence[RathLLMMessage]) -> None:
        self._messages.extend(messages)
        super().append(messages)

    async def asend(self, *, on_delta: OnDelta | None = None) -> Exchange:
        call = self._record_call(streaming=on_delta is not None)
        messages = body.images_apart(self._messages) if self._body.n_images else self._messages
        members: dict[str, Any] = {**self._fields, "messages": tuple(messages)}
        request = RathLLMChatRequest(**members)
        gate = await pass_gate(call, self._caps, whose="custom")
        work = _Work()
        try:
            if not getattr(self._client, "answers_offline", False):
                facts = self._facts
                refuse_live_call(facts.endpoint, facts.requested_model, kind=facts.adapter)
            with inside_custom_client():
                if on_delta is None:
                    answer = await work.call_either(partial(self._client.complete, request))
                    response = self._checked(answer)
                else:
                    take = giving_way(gate, on_delta)
                    response = await self._stream(request, call, take, work)
        except Exception as exc:
            # The record has the class that decides about fallbacks; the caller gets his own error.
            error = self._map_error(exc, call)
            if not isinstance(exc, RathError | UserExit):
                self._redact_args(exc)
                if self._redactor.cause(exc) is not None:
                    raise
            cause = exc.__cause__ if isinstance(exc, RathError) else _raised(exc)
            raise error from None if cause is None else self._redactor.cause(cause)
        except asyncio.CancelledError:
            call.cancel()
            raise
        finally:
            work.leave_at_its_end(gate)
        call.served = ServedInfo.of(response)
        return call.finish(response)

    def _checked(self, answer: object) -> RathLLMChatResponse:
        """Return an answer without the key; nobody has checked what a client of others returns.

        Raises:
            ProviderProtocolError: It is none.
        """
        if not isinstance(answer, RathLLMChatResponse) or not answer.choices:
            raise ProviderProtocolError(
                f"{_name(self._client)}.complete returned {type(answer).__name__}; expected a "
                "RathLLMChatResponse with at least one choice"
            )
        return self._redactor.value(answer)

    async def _stream(
        self, request: RathLLMChatRequest, call: CallRecorder, on_delta: OnDelta, work: _Work
    ) -> RathLLMChatResponse:
        require_streaming(self._client)
        folded = call.begin_stream()
        keys = StreamRedactor(self._redactor.secrets[0])

        async def give(deltas: Iterable[RathLLMStreamDelta]) -> None:
            for delta in call.noting_tokens(deltas):
                folded.add(delta)
                waiting = on_delta(delta)
                if waiting is not None:
                    await waiting

        client = cast("StreamingChatClient", self._client)  # just required above

        async def take(delta: RathLLMStreamDelta) -> None:
            await give(keys.hide((delta,)))

        await _consume(partial(client.complete_stream, request), take, work)
        await give(keys.flush())
        return folded.response(model=self._facts.requested_model or "")

    def _map_error(self, exc: Exception, call: CallRecorder) -> RathError:
        """Return `exc` as an error of rath, with the evidence where it can hold it."""
        if isinstance(exc, RathError):
            self._redact_args(exc)
            if isinstance(exc, ProviderError):
                call.fail(exc)
            return exc
        raised = _raised(exc)
        reason = self._redactor.text(f"{type(raised).__name__}: {raised}")
        kind = network_error_class(raised)
        error = kind(f"{_name(self._client)} failed: {reason}", endpoint=call.endpoint)
        if call.permit is not None:
            # As the SDKs of vendors name it.
            call.permit.note_status(getattr(raised, "status_code", None))
        call.fail(error)
        return error

    def _redact_args(self, exc: Exception) -> None:
        exc.args = tuple(
            self._redactor.text(arg) if isinstance(arg, str) else arg for arg in exc.args
        )


class _Work:
    """The work of a client for one call, step after step, where user code runs."""

    def __init__(self) -> None:
        self._step: Future[Any] | None = None

    def call_either(self, fn: Callable[[], object]) -> Awaitable[object]:
        """Return what `fn` gives, whether it is `def` or `async def`."""
        if is_async(fn):
            return self.on_user_loop(cast("Callable[[], Awaitable[object]]", fn))
        return self._in_worker_first(fn)

    async def _in_worker_first(self, fn: Callable[[], object]) -> object:
        result = await self.in_worker(fn)
        if inspect.isawaitable(result):
            return await self.on_user_loop(lambda: cast("Awaitable[object]", result))
        return result

    def in_worker(self, fn: Callable[[], object]) -> asyncio.Future[object]:
        """Start a blocking `fn`; cancelling the wait abandons it."""
        self._step = runtime().start_in_worker(fn)
        return asyncio.wrap_future(self._step)

    async def on_user_loop(self, fn: Callable[[], Awaitable[object]]) -> object:
        """Await `fn()`; cancelling the wait cancels it there."""
        running = runtime().start_on_user_loop(fn)
        self._step = running.future
        try:
            return cast("object", await await_future(running.future))
        except asyncio.CancelledError:
            runtime().cancel_on_user_loop(running)
            raise

    def leave_at_its_end(self, gate: CallSlot) -> None:
        """Leave `gate` when nothing of it goes on, which may be long after it was given up."""
        if self._step is None or self._step.done():
            gate.leave()
            return
        loop = asyncio.get_running_loop()
        self._step.add_done_callback(lambda _: loop.call_soon_threadsafe(gate.leave))


async def _consume(make: Callable[[], object], take: _Take, work: _Work) -> None:
    """Call `make` where user code runs, and give what it yields to `take` on this loop."""
    items: object
    if is_async(make):
        items = await work.on_user_loop(cast("Callable[[], Awaitable[object]]", make))
        rest: object = await _Pump(lambda: items, take, work).run()
    else:
        rest = await _Pump(make, take, work).run()
    if rest is not None:
        await _consume_async(cast("AsyncIterable[RathLLMStreamDelta]", rest), take, work)


async def _consume_async(
    items: AsyncIterable[RathLLMStreamDelta], take: _Take, work: _Work
) -> None:
    """Iterate on the user loop; each delta is taken before the next is asked for."""
    loop = asyncio.get_running_loop()

    async def iterate() -> None:
        async for delta in items:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_as_coroutine(delta), loop))

    async def _as_coroutine(delta: RathLLMStreamDelta) -> None:
        await take(delta)

    await work.on_user_loop(iterate)


class _Pump:
    """Runs a plain iterator on a worker thread and hands what it yields to the loop in batches."""

    def __init__(self, make: Callable[[], object], take: _Take, work: _Work) -> None:
        self._make = make
        self._take = take
        self._work = work
        self._loop = asyncio.get_running_loop()
        self._ready = asyncio.Event()
        self._room = threading.Condition()
        self._waiting: list[RathLLMStreamDelta] = []
        self._stopped = False

    async def run(self) -> object:
        """Take everything; what turns out to be an async iterable is returned untouched."""
        working = self._work.in_worker(self._iterate)
        working.add_done_callback(lambda _: self._ready.set())
        try:
            while batch := await self._next_batch(working):
                for delta in batch:
                    await self._take(delta)
            return await working
        finally:
            with self._room:
                self._stopped = True
                self._room.notify()

    async def _next_batch(self, working: asyncio.Future[object]) -> list[RathLLMStreamDelta]:
        """Wait for deltas; an empty batch means that there will be no more."""
        while True:
            await self._ready.wait()
            self._ready.clear()
            with self._room:
                batch, self._waiting = self._waiting, []
                self._room.notify()
            if working.done():
                self._ready.set()
                return batch
            if batch:
                return batch

    def _iterate(self) -> object:
        items: Any = self._make()
        if hasattr(items, "__aiter__"):
            return items
        try:
            for delta in cast("Iterable[RathLLMStreamDelta]", items):
                if not self._put(delta):
                    break
        finally:
            if inspect.isgenerator(items):
                items.close()
        return None

    def _put(self, delta: RathLLMStreamDelta) -> bool:
        with self._room:
            self._room.wait_for(lambda: self._stopped or len(self._waiting) < _MAX_WAITING)
            if self._stopped:
                return False
            self._waiting.append(delta)
            is_first = len(self._waiting) == 1
        if is_first:
            self._loop.call_soon_threadsafe(self._ready.set)
        return True


def encode_named(message: RathLLMMessage) -> dict[str, Any]:
    """Return a message that names images by their digest: the client alone writes their bytes."""

    def named(text: str | None, images: Sequence[Image]) -> list[dict[str, Any]]:
        parts = [{"type": "image", "mime": one.mime, "sha256": one.blob.digest} for one in images]
        return [*parts, *body.text_part(text)]

    return body.encode_message(message, parts=named)


def _name(client: ChatClient) -> str:
    return f"{type(client).__module__}:{type(client).__qualname__}"


def _raised(exc: Exception) -> BaseException:
    """Return what the client really raised; SystemExit and its like come wrapped."""
    return exc.cause if isinstance(exc, UserExit) else exc


_NOT_SENT = "a call is only written again from what was recorded of it; it is never sent"


def can_write_again(renderer: str) -> bool:
    """Tell whether the bodies of a renderer, as evidence names it, can be written here."""
    return renderer in _WRITERS


class RecordedClient:
    """Stands for the client of a call that was made, for `open_draft`; it sends nothing.

    Parameters are taken from the evidence as they were sent, whatever a request says.

    Args:
        evidence: Of the call; its renderer is one that `can_write_again` knows.
        output_mode: How a typed answer was asked for.
    """

    def __init__(self, evidence: CallEvidence, *, output_mode: OutputMode = "schema") -> None:
        self._evidence = evidence
        self._provider = Provider(
            model=evidence.requested_model,
            provider_kind=evidence.provider_kind,
            output_mode=output_mode,
        )

    @property
    def provider(self) -> Provider:
        """A provider of the same kind and model, without a key."""
        return self._provider

    def complete(self, req: RathLLMChatRequest) -> RathLLMChatResponse:
        """Refuse: nothing is sent.

        Raises:
            RuntimeError: Always.
        """
        raise RuntimeError(_NOT_SENT)

    def open_draft(
        self, request: RathLLMChatRequest, *, streaming: bool, provider_origin: ProviderOrigin
    ) -> RecordedDraft:
        """Return a draft that writes what the call sent, as far as messages are added to it."""
        return RecordedDraft(self._evidence, request)


class RecordedDraft(BodyDraft):
    """Messages of a call that was made, in the form in which they were sent."""

    def __init__(self, evidence: CallEvidence, request: RathLLMChatRequest) -> None:
        parameters = evidence.parameters
        # Tools that were given as an extra argument are parameters like any other.
        tools = () if "tools" in parameters else request.tools or ()
        growing = body.RequestBody(_recorded_writer(evidence.renderer, tools, parameters))
        growing.append(request.messages)
        known: dict[str, Any] = {
            item.name: getattr(evidence, item.name) for item in fields(DraftFacts)
        }
        known["tools_digest"] = growing.tools_digest
        super().__init__(growing, DraftFacts(**known))

    async def asend(self, *, on_delta: OnDelta | None = None) -> Exchange:
        raise RuntimeError(_NOT_SENT)


def _recorded_writer(
    renderer: str, tools: Sequence[RathLLMFunctionTool], parameters: Mapping[str, Any]
) -> body.BodyWriter:
    """Return a writer for bodies with the parameters of a call that was made."""
    found = resolve_name(_WRITERS[renderer])
    if renderer == "anthropic-messages/1":
        writer: body.BodyWriter = found(tools, parameters)
        return writer
    schemas = [body.encode_tool(tool) for tool in tools] or None
    return body.ListWriter(parameters, schemas, streaming={}, encode=found)


_WRITERS: Mapping[str, str] = {
    "openai-chat/1": "rath.llm.body:encode_message",
    "litellm-chat/1": "rath.llm.litellm.client:encode_litellm_message",
    "anthropic-messages/1": "rath.llm.anthropic.create_kwargs:MessagesWriter.recorded",
    RENDERER: "rath.llm.custom_client:encode_named",
}
"""The code of each renderer, imported on first use; a change of bytes gives it another name."""
