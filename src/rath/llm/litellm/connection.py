"""Calls through LiteLLM; imports it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from concurrent.futures import Future
from contextlib import aclosing, asynccontextmanager
from typing import Any

from rath._async.runtime import runtime
from rath._core.options import Sourced
from rath.config.redaction import guard_logs
from rath.errors import ProviderProtocolError
from rath.llm.credentials import RequestTarget, credential_digest
from rath.llm.errors import timeout_error
from rath.llm.litellm.decode import END, event, is_final
from rath.llm.litellm.encode import keyword_arguments
from rath.llm.litellm.errors import MAPPED, map_error, shown_cause
from rath.llm.litellm.library import litellm, version
from rath.llm.litellm.target import LiteLLMTarget
from rath.llm.transport import WireReply

__all__ = ["LiteLLMConnection"]

_LISTING_SECONDS = 10.0
"""How long a list of models may take; a guess, since somebody waits for an error meanwhile."""


_LOGGING = ("LiteLLM", "anthropic", "httpcore", "httpx", "openai")
"""Libraries that log what an endpoint sends."""


class LiteLLMConnection:
    """What the calls to one endpoint share.

    Blocks: it may create the salt of the home directory.
    """

    def __init__(self, target: LiteLLMTarget) -> None:
        self.target = target
        self.credential = None
        guard_logs(_LOGGING, target.api_key)
        if target.api_key:
            self.credential = credential_digest(Sourced(target.api_key, target.key_origin))

    def wire(self, asked: RequestTarget) -> LiteLLMWire:
        """Return the way for one draft."""
        return LiteLLMWire(self, asked)

    async def aclose(self) -> None:
        """Do nothing: LiteLLM keeps the connections, and closes them at exit."""


class LiteLLMWire:
    """Calls with the timeout and the words of one draft; see `Wire`."""

    def __init__(self, connection: LiteLLMConnection, asked: RequestTarget) -> None:
        self._target = connection.target
        self._asked = asked
        self.endpoint = None if connection.target.api_base is None else asked.endpoint
        self.sdk_version: str | None = version
        self.credential = connection.credential

    async def post(self, body: bytes) -> WireReply:
        arguments = self._arguments(body)

        async def call() -> bytes:
            answer = await litellm.acompletion(**arguments)
            text: str = answer.model_dump_json(exclude_none=True, warnings=False)
            return text.encode(errors="replace")

        try:
            async with asyncio.timeout(self._asked.timeout):
                content = await runtime().call_on_user_loop(call)
        except TimeoutError as exc:
            raise timeout_error(self._asked) from exc
        except MAPPED as exc:
            raise map_error(exc, self._asked) from shown_cause(exc, self._asked)
        return WireReply.redacted(200, content, self._asked)

    @asynccontextmanager
    async def stream(self, body: bytes) -> AsyncGenerator[LiteLLMStream, None]:
        arguments = self._arguments(body)
        stream = LiteLLMStream(self._asked)
        running = runtime().start_on_user_loop(lambda: _pump(arguments, stream))
        running.future.add_done_callback(stream.end)
        try:
            await stream.opened()
            yield stream
        finally:
            runtime().cancel_on_user_loop(running)

    async def models(self) -> tuple[str, ...]:
        names: list[str] = []
        try:
            async with asyncio.timeout(min(self._asked.timeout, _LISTING_SECONDS)):
                names = await runtime().call_in_worker(self._list_models)
        except TimeoutError as exc:
            raise timeout_error(self._asked) from exc
        except MAPPED as exc:
            raise map_error(exc, self._asked) from shown_cause(exc, self._asked)
        if not names:
            raise ProviderProtocolError(
                f"LiteLLM cannot list the models of {self._asked.endpoint}",
                endpoint=self.endpoint,
            )
        return tuple(sorted(names))

    def _arguments(self, body: bytes) -> dict[str, Any]:
        target = self._target
        return keyword_arguments(
            body, api_key=target.api_key, api_base=target.api_base, timeout=self._asked.timeout
        )

    def _list_models(self) -> list[str]:
        """Ask the vendor of the model; blocks. LiteLLM gives an empty list for a failure."""
        target = self._target
        _, vendor, *_ = litellm.get_llm_provider(self._asked.model, api_base=target.api_base)
        kinds = litellm.utils.ProviderConfigManager
        if kinds.get_provider_model_info(None, litellm.LlmProviders(vendor)) is None:
            return []  # LiteLLM would give a table of its own instead of what the endpoint offers
        names: list[str] = litellm.get_valid_models(
            check_provider_endpoint=True,
            custom_llm_provider=vendor,
            api_key=target.api_key or None,
            api_base=target.api_base,
        )
        return [name if name.startswith(f"{vendor}/") else f"{vendor}/{name}" for name in names]


class LiteLLMStream:
    """A streamed answer on its way from the user loop to the runtime's; see `RawStream`."""

    status = 200
    content_type = "text/event-stream"

    def __init__(self, asked: RequestTarget) -> None:
        self._asked = asked
        self._loop = asyncio.get_running_loop()
        self._items: asyncio.Queue[bytes | BaseException | None] = asyncio.Queue()
        self._ended = False

    def put(self, item: bytes | BaseException | None) -> None:
        """Hand over the next bytes, what it failed with, or None at its end; from any thread."""
        self._loop.call_soon_threadsafe(self._items.put_nowait, item)

    def end(self, done: Future[Any]) -> None:
        """Hand over how it ended."""
        self.put(done.exception())

    async def opened(self) -> None:
        """Wait until the call was accepted, which is told by an item without bytes."""
        await self.next_chunk()

    async def next_chunk(self) -> bytes:
        if self._ended:
            return b""
        try:
            async with asyncio.timeout(self._asked.timeout):
                item = await self._items.get()
        except TimeoutError as exc:
            raise timeout_error(self._asked) from exc
        if isinstance(item, bytes):
            return item
        self._ended = True
        if item is None:
            return b""
        if isinstance(item, MAPPED):
            raise map_error(item, self._asked) from shown_cause(item, self._asked)
        raise item

    async def drain(self) -> None:
        """Do nothing: the connection is LiteLLM's."""


async def _pump(arguments: dict[str, Any], stream: LiteLLMStream) -> None:
    """Call, and hand over what comes; runs on the user loop."""
    chunks = await litellm.acompletion(**arguments)
    stream.put(b"")
    async with aclosing(chunks):
        async for chunk in chunks:
            fields: dict[str, Any] = chunk.model_dump(
                mode="json", exclude_none=True, warnings=False
            )
            # Where a stream breaks off, LiteLLM ends it with a "stop" that nobody sent.
            if is_final(fields) and getattr(chunks, "received_finish_reason", "unknown") is None:
                return
            stream.put(event(fields))
    stream.put(END)
