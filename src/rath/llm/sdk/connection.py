"""An SDK's client of one endpoint, and calls through it; imports the HTTP client of the SDKs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx2

from rath._core.options import Sourced
from rath.errors import ProviderError, ProviderProtocolError
from rath.llm.credentials import credential_digest
from rath.llm.endpoint import password_in, public_url, without_login
from rath.llm.failure import Asked, protocol_error, timeout_error
from rath.llm.log_guard import guard_logs
from rath.llm.repeated_key import cause_without
from rath.llm.sdk.binding import ClientParts, Sdk
from rath.llm.sdk.decode import ModelsPage, decode_models
from rath.llm.sdk.errors import map_error, mapped_by, without_locals
from rath.llm.sdk.target import Listing, Target
from rath.llm.sdk.transport import open_http_client
from rath.llm.wire import RawReply

__all__ = ["Connection"]

_CONNECT_SECONDS = 10.0
"""How long a connection may take to open; a guess, twice what the SDKs give."""

_DRAIN_SECONDS = 0.1
"""How long to wait for what follows the end marker; as in the SDKs."""

_LISTING_SECONDS = 10.0
"""How long a list of models may take; a guess, since somebody waits for an error meanwhile."""

_MAX_PAGES = 20
"""A vendor has a page or two; who has more pages than this is not listed whole."""

_MACHINE_HEADERS = ("Lang", "Package-Version", "OS", "Arch", "Runtime", "Runtime-Version", "Async")
"""Headers, after "X-Stainless-", in which an SDK describes this machine to every endpoint.

No endpoint needs them, and without them a call costs a tenth less CPU.
"""

_LOGGING = ("anthropic", "httpcore2", "httpx2", "openai")
"""Libraries that log what an endpoint sends."""

_CALL_HEADERS = ("Retry-Count", "Read-Timeout", "Timeout")
"""The same for each call."""


class Connection:
    """An SDK client, whose own retries are off, with what else its calls share.

    Blocks: it imports the SDK and may create the salt of the home directory.

    Raises:
        ValueError: The environment would add headers to calls of a project's own endpoint.
    """

    def __init__(self, target: Target) -> None:
        sdk = target.load()
        target.refuse_added_headers()  # the environment may have changed since it was made
        self.sdk = sdk
        self.target = target
        self.mapped = mapped_by(sdk)
        self.call_options: dict[str, Any] = {
            **sdk.call_options,
            "headers": _without(_CALL_HEADERS, sdk),
        }
        parts = ClientParts(
            max_retries=0,
            default_headers=_without(_MACHINE_HEADERS, sdk),
            http_client=open_http_client(sdk, target.base_url),
        )
        guard_logs(_LOGGING, target.api_key, password_in(target.base_url))
        # The address of each request is logged, so the HTTP client alone gets user and password.
        public = replace(target, base_url=without_login(target.base_url))
        self.client = sdk.make_client(public, parts)
        self.credential = None
        if target.key_origin is not None:
            self.credential = credential_digest(Sourced(target.api_key, target.key_origin))

    def wire(self, path: str, asked: Asked) -> SdkWire:
        """Return the way to a path of the endpoint."""
        return SdkWire(self, path, asked)

    def failed(self, exc: Exception, asked: Asked) -> ProviderError:
        """Return one of `mapped` as an error of rath."""
        return map_error(exc, self.sdk, asked)

    async def aclose(self) -> None:
        """Close every connection of the client."""
        await self.client.close()


class SdkWire:
    """A connection with the path, the timeout and the words of one draft; see `Wire`."""

    def __init__(self, connection: Connection, path: str, asked: Asked) -> None:
        self._connection = connection
        self._client = connection.client
        self._path = path
        self._asked = asked
        connect = min(asked.timeout, _CONNECT_SECONDS)
        # A whole answer has a limit of its own below; a stream is limited between its pieces.
        whole = httpx2.Timeout(None, connect=connect)
        piecewise = httpx2.Timeout(asked.timeout, connect=connect)
        self._whole: Any = {**connection.call_options, "timeout": whole}
        self._piecewise: Any = {**connection.call_options, "timeout": piecewise}
        self.endpoint = asked.endpoint
        self.sdk_version = connection.sdk.version
        self.credential = connection.credential

    async def post(self, body: bytes) -> RawReply:
        connection, asked = self._connection, self._asked
        try:
            async with asyncio.timeout(asked.timeout):
                reply = await self._client.post(
                    self._path, content=body, cast_to=httpx2.Response, options=self._whole,
                    stream=False, stream_cls=None,
                )  # fmt: skip
        except TimeoutError as exc:
            raise timeout_error(asked) from without_locals(exc)
        except connection.mapped as exc:
            raise connection.failed(exc, asked) from _cause(exc, asked)
        content = asked.answer_without_secret(reply.content)
        return RawReply(reply.status_code, content, repeats_key=content != reply.content)

    @asynccontextmanager
    async def stream(self, body: bytes) -> AsyncGenerator[SdkStream, None]:
        connection, asked = self._connection, self._asked
        try:
            reply: Any = await self._client.post(
                self._path, content=body, cast_to=httpx2.Response, options=self._piecewise,
                stream=True, stream_cls=connection.sdk.stream_cls,
            )  # fmt: skip
        except connection.mapped as exc:
            raise connection.failed(exc, asked) from _cause(exc, asked)
        try:
            yield SdkStream(reply, connection, asked)
        finally:
            await reply.aclose()

    async def models(self) -> tuple[str, ...]:
        listing = self._connection.target.listing
        if listing is None:
            raise ProviderProtocolError(
                f"{self._asked.endpoint} cannot list the names that a call may use there",
                endpoint=self._asked.endpoint,
            )
        url = self._connection.target.base_url + listing.path
        asked = replace(
            self._asked,
            endpoint=public_url(url) or url,
            model="",
            timeout=min(self._asked.timeout, _LISTING_SECONDS),
        )
        names = set[str]()
        try:
            async with asyncio.timeout(asked.timeout):
                await self._collect(listing, asked, into=names)
        except TimeoutError as exc:
            raise timeout_error(asked) from without_locals(exc)
        return tuple(sorted(names))

    async def _collect(self, listing: Listing, asked: Asked, *, into: set[str]) -> None:
        query = dict(listing.query)
        for _ in range(_MAX_PAGES):
            page = await self._ask_for_page(listing.path, query, asked)
            into.update(page.names)
            if listing.cursor is None or page.last is None:
                return
            query[listing.cursor] = page.last

    async def _ask_for_page(self, path: str, query: dict[str, str], asked: Asked) -> ModelsPage:
        connection = self._connection
        options = {**self._whole, "params": query} if query else self._whole
        try:
            reply = await self._client.get(
                path, cast_to=httpx2.Response, options=options, stream=False, stream_cls=None
            )
        except connection.mapped as exc:
            raise connection.failed(exc, asked) from _cause(exc, asked)
        content = asked.answer_without_secret(reply.content)
        try:
            return decode_models(content)
        except (ValueError, RecursionError) as exc:
            problem = "not with a list of models"
            raise protocol_error(asked, problem, content, status=reply.status_code) from exc


class SdkStream:
    """The body of a streamed answer; see `RawStream`."""

    def __init__(self, reply: httpx2.Response, connection: Connection, asked: Asked) -> None:
        self._asked = asked
        self._connection = connection
        self._mapped = connection.mapped
        self._chunks = reply.aiter_bytes()
        self.status = reply.status_code
        self.content_type = reply.headers.get("content-type", "").partition(";")[0].strip().lower()

    async def next_chunk(self) -> bytes:
        try:
            return await anext(self._chunks, b"")
        except self._mapped as exc:
            raise self._connection.failed(exc, self._asked) from _cause(exc, self._asked)

    async def drain(self) -> None:
        try:
            async with asyncio.timeout(_DRAIN_SECONDS):
                while await self.next_chunk():
                    pass
        except (TimeoutError, ProviderError):
            pass  # the answer is complete; a connection is all that may be lost


def _without(names: tuple[str, ...], sdk: Sdk) -> dict[str, Any]:
    return {f"X-Stainless-{name}": sdk.omit for name in names}


def _cause(exc: Exception, asked: Asked) -> Exception | None:
    return cause_without(without_locals(exc), asked.without_secret)
