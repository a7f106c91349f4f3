"""Calls through LiteLLM, and its exceptions as errors of rath; imports the library.

LiteLLM maps what a vendor's client raised to a class of its own, and often to another status: a 403
of Anthropic becomes a lost connection, a lost connection a status 500. What really happened stands
in the chain of the exception, so that is read.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.metadata
import json
import logging
import os
import sys
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import aclosing, asynccontextmanager
from typing import Any, cast

import httpx
import openai

from rath._async.runtime import runtime
from rath._core.options import Sourced
from rath._core.text import one_line_preview
from rath.config.redaction import Redactor, guard_logs, looks_secret
from rath.errors import AuthenticationError, ProviderError, ProviderProtocolError
from rath.llm import errors
from rath.llm.credentials import RequestTarget, credential_digest
from rath.llm.litellm.client import LiteLLMTarget, first_choice, keyword_arguments, to_event
from rath.llm.transport import WireReply

MAPPED: tuple[type[Exception], ...] = (
    TimeoutError, openai.OpenAIError, httpx.HTTPError, ValueError,
)  # fmt: skip
"""Exceptions that `map_error` takes: LiteLLM's classes are subclasses of OpenAI's."""

END = b"data: [DONE]\n\n"
"""End marker behind a stream that has reached its end."""

_LISTING_SECONDS = 10.0
"""How long a list of models may take; a guess, since somebody waits for an error meanwhile."""

_LOGGING = ("LiteLLM", "anthropic", "httpcore", "httpx", "openai")
"""Libraries that log what an endpoint sends."""

_MAX_MESSAGE = 500
_MIN_SECRET = 8

_ENVIRONMENT = {
    # Else it fetches a table of prices, and one of header names, from the network.
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS": "True",
    # Else it reads a `.env` file of the project into the environment.
    "LITELLM_MODE": "PRODUCTION",
}
_LOGGERS = ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy")


def _import_quietly() -> Any:
    """Import LiteLLM; where the program has done so before, it is left as the program set it up."""
    if "litellm" in sys.modules:
        return sys.modules["litellm"]
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    library: Any = importlib.import_module("litellm")
    library.telemetry = False
    # Else a stream that breaks off ends like any other, and a cancelled one is not hung up.
    library.disable_aiohttp_transport = True
    # Else it prints advice about each error on stdout.
    library.suppress_debug_info = True
    # Else it may fetch a tokenizer from a hub, to estimate tokens that a vendor did not count.
    library.disable_hf_tokenizer_download = True
    # Else it refuses histories that vendors refuse, such as tool calls where no tools are offered.
    library.modify_params = True
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        # Its own handlers write to stderr. Records still reach the handlers of the program.
        logger.handlers[:] = [logging.NullHandler()]
    return library


litellm: Any = _import_quietly()
_version = importlib.metadata.version("litellm")


class LiteLLMConnection:
    """State that the calls to one endpoint share.

    Blocks: it may create the salt of the home directory.
    """

    def __init__(self, target: LiteLLMTarget) -> None:
        self.target = target
        self.credential: str | None = None
        guard_logs(_LOGGING, target.api_key)
        if target.api_key:
            self.credential = credential_digest(Sourced(target.api_key, target.key_origin))

    def transport(self, target: RequestTarget) -> LiteLLMTransport:
        """Return the way for one draft."""
        return LiteLLMTransport(self, target)

    async def aclose(self) -> None:
        """Do nothing: LiteLLM keeps the connections, and closes them at exit."""


class LiteLLMTransport:
    """Calls with the timeout and the words of one draft; see `Transport`."""

    def __init__(self, connection: LiteLLMConnection, target: RequestTarget) -> None:
        self._target = connection.target
        self._request = target
        self.endpoint: str | None = None if connection.target.api_base is None else target.endpoint
        self.sdk_version: str | None = _version
        self.credential: str | None = connection.credential

    async def post(self, body: bytes) -> WireReply:
        arguments = self._arguments(body)

        async def call() -> bytes:
            answer = await litellm.acompletion(**arguments)
            text: str = answer.model_dump_json(exclude_none=True, warnings=False)
            return text.encode(errors="replace")

        try:
            async with asyncio.timeout(self._request.timeout):
                content = await runtime().call_on_user_loop(call)
        except MAPPED as exc:
            raise map_error(exc, self._request) from _redactor(self._request).cause(exc)
        return WireReply.redacted(200, content, self._request)

    @asynccontextmanager
    async def stream(self, body: bytes) -> AsyncGenerator[LiteLLMStream, None]:
        arguments = self._arguments(body)
        stream = LiteLLMStream(self._request)
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
            async with asyncio.timeout(min(self._request.timeout, _LISTING_SECONDS)):
                names = await runtime().call_in_worker(self._list_models)
        except MAPPED as exc:
            raise map_error(exc, self._request) from _redactor(self._request).cause(exc)
        if not names:
            raise ProviderProtocolError(
                f"LiteLLM cannot list the models of {self._request.name}",
                endpoint=self.endpoint,
            )
        return tuple(sorted(names))

    def _arguments(self, body: bytes) -> dict[str, Any]:
        target = self._target
        return keyword_arguments(
            body, api_key=target.api_key, api_base=target.api_base, timeout=self._request.timeout
        )

    def _list_models(self) -> list[str]:
        """Ask the vendor of the model; blocks. LiteLLM gives an empty list for a failure."""
        target = self._target
        _, vendor, *_ = litellm.get_llm_provider(self._request.model, api_base=target.api_base)
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
    """A streamed answer on its way from the user loop to the runtime's; see `ReplyStream`."""

    status = 200
    content_type = "text/event-stream"

    def __init__(self, target: RequestTarget) -> None:
        self._request = target
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
            async with asyncio.timeout(self._request.timeout):
                item = await self._items.get()
        except TimeoutError as exc:
            raise errors.timeout_error(self._request) from exc
        if isinstance(item, bytes):
            return item
        self._ended = True
        if item is None:
            return b""
        if isinstance(item, MAPPED):
            raise map_error(item, self._request) from _redactor(self._request).cause(item)
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
            is_final = first_choice(fields).get("finish_reason")
            if is_final and getattr(chunks, "received_finish_reason", "unknown") is None:
                return
            stream.put(to_event(fields))
    stream.put(END)


def map_error(exc: Exception, target: RequestTarget) -> ProviderError:
    """Return the error of rath for a timeout or one of `MAPPED`; its text holds no key."""
    if isinstance(exc, TimeoutError):
        return errors.timeout_error(target)
    foreign = [each for each in _chain(exc) if not type(each).__module__.startswith("litellm")]
    for each in reversed(foreign):
        response: Any = getattr(each, "response", None)
        if isinstance(getattr(response, "status_code", None), int):
            return _from_status(response, each, target)
    for each in foreign:
        build = next((build for kinds, build in _ERRORS if isinstance(each, kinds)), None)
        if build is not None and (error := build(each, target)) is not None:
            return error
    if isinstance(exc, openai.APITimeoutError):
        return errors.timeout_error(target)
    status: object = getattr(exc, "status_code", None)
    is_midstream = isinstance(exc, litellm.exceptions.MidStreamFallbackError)
    is_unread = status == 500 and not foreign and not is_midstream
    if isinstance(status, int) and not is_unread:
        return errors.status_error(target, status, _preview(exc, target))
    return ProviderProtocolError(
        f"LiteLLM cannot use the answer of {target.name}: {_preview(exc, target)}",
        endpoint=target.name,
    )


_ERRORS: tuple[
    tuple[tuple[type[Exception], ...], Callable[[Any, RequestTarget], ProviderError | None]], ...
] = (
    (
        (httpx.ConnectTimeout, httpx.PoolTimeout),
        lambda _, target: errors.connection_error(target, "it did not open in time"),
    ),
    (
        (openai.APITimeoutError, httpx.TimeoutException),
        lambda _, target: errors.timeout_error(target),
    ),
    (
        (json.JSONDecodeError,),
        lambda exc, target: errors.protocol_error(
            target, "not with the JSON that was expected", exc.doc.encode()
        ),
    ),
    (
        (httpx.TransportError,),
        lambda exc, target: errors.connection_error(
            target, f"{type(exc).__name__}: {_preview(exc, target)}"
        ),
    ),
    # What it wraps says more.
    ((openai.APIConnectionError,), lambda _exc, _request: None),
    ((openai.APIError,), lambda exc, target: errors.reported_error(exc.body or str(exc), target)),
    (
        (openai.OpenAIError,),
        lambda exc, target: AuthenticationError(
            f"LiteLLM did not call {target.name}: {_preview(exc, target)}",
            endpoint=target.name,
        ),
    ),
)
"""Errors for what a vendor's client raised without an answer: the first class that fits decides."""


def _chain(exc: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = exc
    while link is not None:
        yield link
        link = link.__cause__ or link.__context__


def _from_status(response: Any, exc: BaseException, target: RequestTarget) -> ProviderError:
    try:
        content: bytes = response.content
    except (httpx.StreamError, RuntimeError):
        content = b""  # a streamed answer that nobody has read
    message, code = errors.decode_error_body(content)
    wait = errors.retry_after(cast("Mapping[str, str]", response.headers))
    text = _preview(message or exc, target)
    return errors.status_error(target, response.status_code, text, code=code, wait=wait)


def _preview(message: object, target: RequestTarget) -> str:
    return one_line_preview(_redactor(target).text(str(message)), _MAX_MESSAGE)


def _redactor(target: RequestTarget) -> Redactor:
    """Hide the key, and those of the environment that LiteLLM may have found by itself."""
    found = (
        value
        for name, value in os.environ.items()
        if len(value) >= _MIN_SECRET and looks_secret(name)
    )
    return Redactor((*target.redactor.secrets, *found))
