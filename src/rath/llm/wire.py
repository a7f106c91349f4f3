"""Between the base client and a vendor: how answers are read, and what carries the bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from rath._async.retry import RetryPolicy, Sleep
from rath.llm.call import Served
from rath.llm.chat_response import RathLLMChatResponse, RathLLMStreamDelta
from rath.llm.failure import Asked
from rath.llm.offline import refuse_live_call

__all__ = ["ChunkDecoder", "RawReply", "RawStream", "Vendor", "Wire", "list_models"]


@dataclass(frozen=True, slots=True)
class RawReply:
    """An answer without an error status."""

    status: int
    content: bytes
    """Without the key, if it came from a wire of ours."""

    repeats_key: bool = False
    """Whether the key was taken out of the content."""


class RawStream(Protocol):
    """An answer without an error status whose body is still coming."""

    @property
    def status(self) -> int: ...

    @property
    def content_type(self) -> str:
        """The media type without parameters, in lower case."""
        ...

    async def next_chunk(self) -> bytes:
        """Return the next bytes of the body, and none at its end.

        Raises:
            ProviderError: The connection broke or fell silent.
        """
        ...

    async def drain(self) -> None:
        """Read what follows the end marker, for a moment, so that the connection stays usable."""
        ...


class Wire(Protocol):
    """An open way to one endpoint; used on the runtime loop only."""

    @property
    def endpoint(self) -> str | None:
        """Scheme, host and path."""
        ...

    @property
    def sdk_version(self) -> str | None: ...

    @property
    def credential(self) -> str | None:
        """Source of the key and a digest of it."""
        ...

    async def post(self, body: bytes) -> RawReply:
        """Send a body and return the whole answer.

        Raises:
            ProviderError: No answer, or one with an error status.
        """
        ...

    def stream(self, body: bytes) -> AbstractAsyncContextManager[RawStream]:
        """Send a body and give the answer as it comes.

        Raises:
            ProviderError: On entry: no answer, or one with an error status.
        """
        ...

    async def models(self) -> tuple[str, ...]:
        """Ask the endpoint which models it offers; sorted names.

        Raises:
            ProviderError: No answer, or one that lists no models.
        """
        ...


class ChunkDecoder(Protocol):
    """Reads the chunks of one stream."""

    @property
    def served(self) -> Served:
        """What the chunks so far say about the answer; one object that fills up."""
        ...

    @property
    def ended(self) -> bool:
        """Whether the end marker has come."""
        ...

    def decode_chunk(self, data: str) -> Sequence[RathLLMStreamDelta]:
        """Return what one event says.

        Raises:
            ProviderError: The event reports an error.
            ValueError: The event is not a JSON object.
        """
        ...


class Vendor(Protocol):
    """What sending a draft needs of its client."""

    @property
    def retry_policy(self) -> RetryPolicy: ...

    @property
    def sleep(self) -> Sleep: ...

    def retryable(self, error: BaseException) -> float | bool:
        """Tell whether another try may mend `error`, or after how many seconds it may."""
        ...

    def decode(self, reply: Mapping[str, Any], asked: Asked) -> tuple[RathLLMChatResponse, Served]:
        """Return what a whole answer says.

        Raises:
            ProviderError: The answer reports an error, or has no choices.
        """
        ...

    def chunk_decoder(self, asked: Asked) -> ChunkDecoder:
        """Return a reader for the chunks of one stream."""
        ...

    async def connect(self, asked: Asked) -> Wire:
        """Return the way to the endpoint, shared by all clients of this process that use it.

        The first use imports the vendor's SDK, in a worker thread.
        """
        ...


async def list_models(client: Vendor, asked: Asked) -> tuple[str, ...]:
    """Ask the endpoint of a client which models it offers; sorted names.

    Raises:
        ProviderError: No answer, or one that lists no models.
        OfflineError: `rath.offline()` holds.
    """
    refuse_live_call(asked.endpoint, asked.model, kind=type(client).__name__)
    wire = await client.connect(asked)
    return await wire.models()
