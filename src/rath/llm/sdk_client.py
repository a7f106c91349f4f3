"""Chat clients over a client of a vendor's SDK that the user has made: Azure AD, Bedrock, Vertex.

The SDK sends: it brings endpoint, credentials and connections. Its retries and parsers are not
used, so calls are tried again, read and recorded as all others are. What it changes in a body,
such as the model that Bedrock and Vertex want in the path, stands in no digest.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, ClassVar, cast

import msgspec

from rath._async.retry import Sleep
from rath._core.text import one_line_preview
from rath.config.redaction import guard_logs
from rath.errors import ProviderError, ProviderProtocolError
from rath.llm import errors
from rath.llm.anthropic.client import MESSAGES_PATH, MessagesClient
from rath.llm.body import to_json
from rath.llm.client import VendorClient
from rath.llm.credentials import RequestTarget, public_url
from rath.llm.http_transport import TimeLimit, without_locals
from rath.llm.openai.client import COMPLETIONS_PATH, CompletionsClient
from rath.llm.provider import Provider, sdk_of
from rath.llm.transport import Transport, WireReply

_LOGGING = ("anthropic", "httpcore", "httpcore2", "httpx", "httpx2", "openai")
"""Libraries that log what an endpoint sends."""


def sdk_chat_client(provider: Provider) -> VendorClient:
    """Return the chat client that calls through `provider.client`."""
    if sdk_of(provider.client) == "anthropic":
        return SdkMessagesClient(provider)
    return SdkCompletionsClient(provider)


class _SdkChatClient(VendorClient):
    """Calls through `provider.client`."""

    path: ClassVar[str]

    def __init__(self, provider: Provider, *, sleep: Sleep = asyncio.sleep) -> None:
        super().__init__(provider, sleep=sleep)
        self.sdk = sdk_of(provider.client)
        guard_logs(_LOGGING, self._key)

    @property
    def _key(self) -> str:
        """Empty where the client signs in another way."""
        key: object = getattr(self.provider.client, "api_key", None)
        return key if isinstance(key, str) else ""

    def target(self, model: str | None) -> RequestTarget:
        chosen = model or self.provider.model
        if not chosen:
            raise ValueError("model is required: name one in Provider(model=...)")
        base_url = str(cast("Any", self.provider.client).base_url)
        return RequestTarget(
            kind=self.kind,
            endpoint=public_url(base_url.rstrip("/") + self.path),
            model=chosen,
            path=self.path,
            origins=(("model", "call"), ("base_url", "client"), ("api_key", "client")),
            timeout=self.timeout,
            secret=self._key,
        )

    async def connect(self, target: RequestTarget) -> Transport:
        return SdkTransport(self.provider.client, target)


class SdkCompletionsClient(_SdkChatClient, CompletionsClient):
    """Speaks chat completions through a client of the `openai` package."""

    kind: ClassVar[str] = "openai"
    path: ClassVar[str] = COMPLETIONS_PATH


class SdkMessagesClient(_SdkChatClient, MessagesClient):
    """Speaks the Messages API through a client of the `anthropic` package."""

    path: ClassVar[str] = MESSAGES_PATH


class SdkTransport:
    """A client of an SDK with the path and the timeout of one draft; see `Transport`."""

    credential: str | None = None
    """What the client signs with is its own business."""

    def __init__(self, client: Any, target: RequestTarget) -> None:
        self._client = client
        self._target = target
        # Loaded, since its client is there.
        self._sdk: Any = sys.modules[sdk_of(client) or ""]
        self._http: Any = sys.modules[self._sdk.DefaultAsyncHttpxClient.__base__.__module__]
        self.endpoint: str | None = target.endpoint
        self.sdk_version: str | None = self._sdk.__version__

    async def post(self, body: bytes) -> WireReply:
        async with TimeLimit(self._target):
            with self._mapping_errors():
                reply = await self._send(body)
        return WireReply.redacted(200, to_json(reply), self._target)

    @asynccontextmanager
    async def stream(self, body: bytes) -> AsyncGenerator[SdkStream, None]:
        async with TimeLimit(self._target):
            with self._mapping_errors():
                events = await self._send(
                    body, stream=True, stream_cls=self._sdk.AsyncStream[object]
                )
        try:
            yield SdkStream(self, events)
        finally:
            await events.close()

    async def models(self) -> tuple[str, ...]:
        raise ProviderProtocolError(
            f"{self._target.name} is called through a client of your own, which is not asked for "
            "the names that a call may use",
            endpoint=self._target.name,
        )

    async def next_event(self, events: AsyncIterator[object]) -> bytes:
        """Return the next event of a stream as its data, and none at its end."""
        async with TimeLimit(self._target):
            with self._mapping_errors():
                event = await anext(events, None)
        if event is None:
            return b""
        return b"data: " + self._target.redactor.json_bytes(to_json(event)) + b"\n\n"

    async def _send(self, body: bytes, **how: Any) -> Any:
        # There is one owner of retries, and it is not the SDK.
        options = {"max_retries": 0, "timeout": self._target.timeout}
        return await self._client.post(
            self._target.path,
            body=msgspec.json.decode(body),
            cast_to=object,
            options=options,
            **how,
        )

    @contextmanager
    def _mapping_errors(self) -> Generator[None]:
        sdk = self._sdk
        try:
            yield
        except (sdk.APIError.__base__, self._http.HTTPError) as exc:
            cause = self._target.redactor.cause(without_locals(exc))
            raise self._error_of(exc) from cause

    def _error_of(self, exc: Any) -> ProviderError:
        sdk, target = self._sdk, self._target
        if isinstance(exc, sdk.APIStatusError) and exc.response.status_code >= 400:
            reply = exc.response
            return errors.response_error(
                target,
                reply.status_code,
                reply.content,
                reason=reply.reason_phrase,
                headers=reply.headers,
            )
        if isinstance(exc, sdk.APITimeoutError | self._http.TimeoutException):
            return errors.timeout_error(target)
        if isinstance(exc, sdk.APIError) and not isinstance(exc, sdk.APIConnectionError):
            return errors.reported_error(exc.body or str(exc), target)
        cause = exc.__cause__ or exc
        reason = one_line_preview(target.redactor.text(str(cause)), errors.MAX_MESSAGE)
        return errors.connection_error(target, f"{type(cause).__name__}{reason and ': '}{reason}")


class SdkStream:
    """The events of a streamed answer as the SDK gives them; see `ReplyStream`."""

    status = 200
    content_type = "text/event-stream"

    def __init__(self, transport: SdkTransport, events: AsyncIterator[object]) -> None:
        self._transport = transport
        self._events = events

    async def next_chunk(self) -> bytes:
        return await self._transport.next_event(self._events)

    async def drain(self) -> None:
        """The SDK has read what follows its end marker."""
