"""A draft whose messages are encoded once each and sent through a vendor's wire."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, cast

from rath._async.limiter import Caps
from rath._async.retry import retry
from rath.errors import (
    InvalidRequestError,
    ProviderConnectionError,
    ProviderError,
    ProviderStatusError,
    StreamInterrupted,
)
from rath.llm.body import Body
from rath.llm.call import CallFacts, OnDelta, OpenCall
from rath.llm.chat_request import RathLLMMessage
from rath.llm.chat_response import RathLLMChatResponse, RathLLMStreamDelta
from rath.llm.exchange import CallEvidence, Exchange
from rath.llm.failure import Asked, protocol_error
from rath.llm.fold import split
from rath.llm.key_keeper import KeyKeeper
from rath.llm.limits import giving_way, pass_gate
from rath.llm.offline import refuse_live_call
from rath.llm.refusal import explain_refusal
from rath.llm.sse import EventParser
from rath.llm.surrogates import PairKeeper
from rath.llm.wire import RawReply, RawStream, Vendor, Wire, list_models

__all__ = ["VendorDraft"]

_ODD = "of an unexpected form"
_IMAGES_NOTE = "the request shows images, which not every model reads"


class VendorDraft:
    """Messages on their way to one model of one vendor; see `rath.llm.draft.ChatDraft`."""

    def __init__(
        self,
        client: Vendor,
        body: Body,
        *,
        facts: CallFacts,
        asked: Asked,
        streaming: bool,
        caps: Caps | None = None,
    ) -> None:
        self._client = client
        self._body = body
        self._facts = facts
        self._asked = asked
        self._streaming = streaming
        self._caps = caps
        self._call: OpenCall | None = None

    @property
    def facts(self) -> CallFacts:
        return self._facts

    @property
    def digest(self) -> str:
        return self._body.digest(streaming=self._streaming)

    def append(self, messages: Sequence[RathLLMMessage]) -> None:
        self._body.append(messages)

    def body(self) -> bytes:
        return self._body.content(streaming=self._streaming)

    def last_evidence(self) -> CallEvidence | None:
        return None if self._call is None else self._call.evidence()

    async def asend(self, *, on_delta: OnDelta | None = None) -> Exchange:
        streaming = on_delta is not None
        body = self._body.content(streaming=streaming)
        call = self._call = OpenCall(
            self._facts,
            parameters=self._body.parameters(streaming=streaming),
            digest=self._body.digest(streaming=streaming),
        )

        async def attempt(_: int) -> RathLLMChatResponse:
            asked = self._facts.endpoint, self._facts.requested_model
            refuse_live_call(*asked, kind=self._facts.provider_kind)
            wire = await self._client.connect(self._asked)
            call.reached(wire.endpoint, sdk_version=wire.sdk_version, credential=wire.credential)
            gate = await pass_gate(call, self._caps)
            try:
                if on_delta is None:
                    return await self._ask(wire, body, call)
                take = giving_way(gate, on_delta)
                return await _StreamedTry(self._client, self._asked, call, take).run(wire, body)
            finally:
                gate.leave()

        try:
            response = await retry(
                attempt,
                policy=self._client.retry_policy,
                retryable=self._client.retryable,
                on_attempt=call.attempts.append,
                sleep=self._client.sleep,
            )
        except ProviderStatusError as exc:
            explained = await explain_refusal(
                exc, self._asked, partial(list_models, self._client, self._asked)
            )
            if self._body.n_images and isinstance(explained, InvalidRequestError):
                explained.add_note(f"{_IMAGES_NOTE} (images: {self._body.n_images})")
            explained.evidence = call.fail(explained)
            if explained is exc:
                raise
            raise explained from exc
        except Exception as exc:
            evidence = call.fail(exc)
            if isinstance(exc, ProviderError):
                exc.evidence = evidence
            raise
        return call.finish(response)

    async def _ask(self, wire: Wire, body: bytes, call: OpenCall) -> RathLLMChatResponse:
        return _decoded(await wire.post(body), self._client, self._asked, call)


class _StreamedTry:
    """One try of a streamed call."""

    def __init__(self, client: Vendor, asked: Asked, call: OpenCall, on_delta: OnDelta) -> None:
        self._client = client
        self._asked = asked
        self._call = call
        self._on_delta = on_delta
        self._folded = call.begin_stream()
        self._decoder = client.chunk_decoder(asked)
        self._pairs = PairKeeper()
        self._keys = KeyKeeper(asked.secret)
        call.served = self._decoder.served

    async def run(self, wire: Wire, body: bytes) -> RathLLMChatResponse:
        """Send the body and give each delta out as it comes."""
        async with wire.stream(body) as stream:
            if not _holds_events(stream):
                return await self._take_whole(stream)
            try:
                await self._take_events(stream)
            except ProviderConnectionError as exc:
                if not self._is_complete():
                    raise self._interrupted() from exc
        if not self._is_complete():
            raise self._interrupted()
        return self._response()

    async def _take_events(self, stream: RawStream) -> None:
        parser = EventParser()
        decoder = self._decoder
        while chunk := await stream.next_chunk():
            for data in parser.feed(chunk):
                await self._give(self._decoded(data))
            if decoder.ended:
                await stream.drain()
                break
        else:
            for data in parser.close():
                # What a cut left of an event is no event.
                if data.startswith("[DONE]") or _is_json(data):
                    await self._give(self._decoded(data))
        await self._give(self._pairs.flush())
        for delta in self._keys.flush():
            await self._pass_on(delta)

    def _decoded(self, data: str) -> Iterable[RathLLMStreamDelta]:
        shown = self._asked.event_without_secret(data)
        if shown != data:
            data, self._keys.has_hidden = shown, True
        try:
            deltas = self._decoder.decode_chunk(data)
        except (ValueError, RecursionError) as exc:
            is_json = not isinstance(exc, json.JSONDecodeError)
            problem = f"its stream holds an event {_ODD if is_json else 'that is not JSON'}"
            raise protocol_error(self._asked, problem, data.encode(errors="replace")) from exc
        # Only an escape can bring half a character; to look for one is much cheaper than to mend.
        return self._pairs.mend(deltas) if "\\u" in data or self._pairs.holds else deltas

    async def _give(self, deltas: Iterable[RathLLMStreamDelta]) -> None:
        for delta in self._keys.hide(deltas):
            self._call.note_token()
            await self._pass_on(delta)

    async def _pass_on(self, delta: RathLLMStreamDelta) -> None:
        self._folded.add(delta)
        waiting = self._on_delta(delta)
        if waiting is not None:
            await waiting

    async def _take_whole(self, stream: RawStream) -> RathLLMChatResponse:
        """Take the answer of an endpoint that does not stream although it was asked to."""
        reply = await _whole_of(stream, self._asked)
        response = _decoded(reply, self._client, self._asked, self._call)
        for delta in split(response):
            await self._pass_on(delta)
        return response

    def _is_complete(self) -> bool:
        return self._decoder.ended or self._folded.finish_reason is not None

    def _response(self) -> RathLLMChatResponse:
        if not self._folded.has_begun:
            raise protocol_error(self._asked, "its stream holds no answer", b"")
        served = self._decoder.served
        # Blocks were folded from events, which may each hold a part of the key.
        if self._keys.has_hidden or self._keys.is_in(served.blocks):
            served.blocks = ()
        return self._folded.response(
            id=served.response_id or "",
            created=served.created,
            model=served.model or self._asked.model,
            service_tier=served.service_tier,
            system_fingerprint=served.fingerprint,
        )

    def _interrupted(self) -> StreamInterrupted:
        text = self._folded.text
        return StreamInterrupted(
            f"the stream of {self._asked.endpoint} ended without its end marker after "
            f"{len(text)} characters of text",
            endpoint=self._asked.endpoint,
            partial_text=text,
        )


def _holds_events(stream: RawStream) -> bool:
    """Tell whether a stream holds events; many servers name some other type, but not these."""
    return "json" not in stream.content_type and stream.content_type != "text/html"


async def _whole_of(stream: RawStream, asked: Asked) -> RawReply:
    chunks: list[bytes] = []
    while chunk := await stream.next_chunk():
        chunks.append(chunk)
    content = b"".join(chunks)
    shown = asked.answer_without_secret(content)
    return RawReply(stream.status, shown, repeats_key=shown != content)


def _decoded(reply: RawReply, client: Vendor, asked: Asked, call: OpenCall) -> RathLLMChatResponse:
    payload = _object(asked, reply.content, reply.status)
    try:
        response, call.served = client.decode(payload, asked)
    except RecursionError as exc:
        problem = f"with an answer {_ODD}"
        raise protocol_error(asked, problem, reply.content, status=reply.status) from exc
    if reply.repeats_key:
        call.served.blocks = ()  # what is signed and was changed is not accepted any more
    return response


def _object(asked: Asked, content: bytes, status: int) -> dict[str, Any]:
    try:
        payload: object = json.loads(content)
    except (ValueError, RecursionError) as exc:
        raise protocol_error(
            asked, "not with the JSON that was expected", content, status=status
        ) from exc
    if not isinstance(payload, dict):
        raise protocol_error(asked, "not with a JSON object", content, status=status)
    return cast("dict[str, Any]", payload)


def _is_json(data: str) -> bool:
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        return False
    return True
