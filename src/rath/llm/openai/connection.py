"""The SDK's client of one endpoint, and calls through it; imports the SDK."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import openai

from rath._core.options import Sourced
from rath.errors import ProviderError
from rath.llm.credentials import credential_digest
from rath.llm.failure import Asked, timeout_error
from rath.llm.openai.errors import MAPPED, map_error
from rath.llm.openai.target import Target
from rath.llm.openai.transport import open_http_client
from rath.llm.wire import RawReply

__all__ = ["Connection"]

_CONNECT_SECONDS = 10.0
"""How long a connection may take to open; a guess, twice what the SDK gives."""

_DRAIN_SECONDS = 0.1
"""How long to wait for what follows the end marker; as in the SDK."""

_OMIT: Any = openai.Omit()

_MACHINE_HEADERS = ("Lang", "Package-Version", "OS", "Arch", "Runtime", "Runtime-Version", "Async")
"""Headers, after "X-Stainless-", in which the SDK describes this machine to every endpoint.

No endpoint needs them, and without them a call costs a tenth less CPU.
"""

_CALL_OPTIONS: dict[str, Any] = {
    # Without this the SDK may also send an administrator's key that it finds in the environment.
    "security": {"bearer_auth": True},
    "headers": {"X-Stainless-Retry-Count": _OMIT, "X-Stainless-Read-Timeout": _OMIT},
}


class Connection:
    """An SDK client, whose own retries are off, with what else its calls share.

    Blocks: it may create the salt of the home directory.

    Raises:
        ValueError: The environment would add headers to calls of a project's own endpoint.
    """

    def __init__(self, target: Target) -> None:
        if target.from_project and os.environ.get("OPENAI_CUSTOM_HEADERS"):
            raise ValueError(
                f"OPENAI_CUSTOM_HEADERS is set and would be sent to {target.base_url!r}, which "
                "the project's own config names; unset it for this project"
            )
        self.client = _make_client(target)
        self.credential = None
        if target.key_origin is not None:
            self.credential = credential_digest(Sourced(target.api_key, target.key_origin))

    def wire(self, path: str, asked: Asked) -> OpenAIWire:
        """Return the way to a path of the endpoint."""
        return OpenAIWire(self, path, asked)

    async def aclose(self) -> None:
        """Close every connection of the client."""
        await self.client.close()


class OpenAIWire:
    """A connection with the path, the timeout and the words of one draft; see `Wire`."""

    def __init__(self, connection: Connection, path: str, asked: Asked) -> None:
        self._client = connection.client
        self._path = path
        self._asked = asked
        connect = min(asked.timeout, _CONNECT_SECONDS)
        # A whole answer has a limit of its own below; a stream is limited between its pieces.
        whole = httpx2.Timeout(None, connect=connect)
        piecewise = httpx2.Timeout(asked.timeout, connect=connect)
        self._whole: Any = {**_CALL_OPTIONS, "timeout": whole}
        self._piecewise: Any = {**_CALL_OPTIONS, "timeout": piecewise}
        self.endpoint = asked.endpoint
        self.sdk_version = openai.__version__
        self.credential = connection.credential

    async def post(self, body: bytes) -> RawReply:
        try:
            async with asyncio.timeout(self._asked.timeout):
                reply = await self._client.post(
                    self._path, content=body, cast_to=httpx2.Response, options=self._whole
                )
        except TimeoutError as exc:
            raise timeout_error(self._asked) from exc
        except MAPPED as exc:
            raise map_error(exc, self._asked) from self._cause(exc)
        return RawReply(reply.status_code, reply.content)

    @asynccontextmanager
    async def stream(self, body: bytes) -> AsyncGenerator[OpenAIStream, None]:
        try:
            reply: Any = await self._client.post(
                self._path,
                content=body,
                cast_to=httpx2.Response,
                options=self._piecewise,
                stream=True,
                stream_cls=openai.AsyncStream[Any],
            )
        except MAPPED as exc:
            raise map_error(exc, self._asked) from self._cause(exc)
        try:
            yield OpenAIStream(reply, self._asked)
        finally:
            await reply.aclose()

    def _cause(self, exc: Exception) -> Exception | None:
        """Return `exc` as a cause unless its text, which a traceback shows, repeats the key."""
        text = str(exc)
        return exc if self._asked.without_secret(text) == text else None


class OpenAIStream:
    """The body of a streamed answer; see `RawStream`."""

    def __init__(self, reply: httpx2.Response, asked: Asked) -> None:
        self._asked = asked
        self._chunks = reply.aiter_bytes()
        self.status = reply.status_code
        self.content_type = reply.headers.get("content-type", "").partition(";")[0].strip().lower()

    async def next_chunk(self) -> bytes:
        try:
            return await anext(self._chunks, b"")
        except MAPPED as exc:
            raise map_error(exc, self._asked) from exc

    async def drain(self) -> None:
        try:
            async with asyncio.timeout(_DRAIN_SECONDS):
                while await self.next_chunk():
                    pass
        except (TimeoutError, ProviderError):
            pass  # the answer is complete; a connection is all that may be lost


def _make_client(target: Target) -> openai.AsyncOpenAI:
    shared: Any = {
        "api_key": target.api_key,
        "max_retries": 0,
        "default_headers": {f"X-Stainless-{name}": _OMIT for name in _MACHINE_HEADERS},
        "http_client": open_http_client(),
    }
    if target.azure_version is None:
        return openai.AsyncOpenAI(base_url=target.base_url, **shared)
    return openai.AsyncAzureOpenAI(
        azure_endpoint=target.base_url, api_version=target.azure_version, **shared
    )
