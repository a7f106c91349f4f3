"""What an adapter says of its vendor's SDK."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import httpx2

    from rath.llm.sdk.target import Target

__all__ = ["ClientParts", "Sdk", "SdkClient"]


class SdkClient(Protocol):
    """An asynchronous client of an SDK, as far as it is used here."""

    async def get(
        self, path: str, *, cast_to: Any, options: Any, stream: bool, stream_cls: Any
    ) -> Any: ...

    async def post(
        self, path: str, *, cast_to: Any, content: bytes, options: Any, stream: bool,
        stream_cls: Any,
    ) -> Any: ...  # fmt: skip

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ClientParts:
    """What `Sdk.make_client` must hand to the constructor of the SDK's client."""

    max_retries: int
    """None: there is one owner of retries, and it is not the SDK."""

    default_headers: Mapping[str, Any]
    """Takes away the headers that describe this machine; a vendor may add its own to them."""

    http_client: httpx2.AsyncClient
    """Small pools; the SDK's client closes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sdk:
    """The classes of one SDK, and how its client is made."""

    version: str
    make_client: Callable[[Target, ClientParts], SdkClient]
    """Makes the client for a target, with nothing that the SDK would find in the environment.

    An SDK fills in what its constructor is not given: other credentials, profiles, an endpoint.
    So everything that it would look up is given, and what came from the environment after all
    (a header, an organisation) must be safe to send to any endpoint of the user's own choice.
    """

    make_http_client: Callable[..., httpx2.AsyncClient]
    """The SDK's `DefaultAsyncHttpxClient`."""

    stream_cls: Any
    """The SDK's `AsyncStream`; with it the SDK leaves the body of an answer unread."""

    omit: Any
    """A header with this value is not sent."""

    base_error: type[Exception]
    status_error: type[Exception]
    """`APIStatusError`: its `response` is one of httpx2, with its body read."""

    timeout_error: type[Exception]
    call_options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Request options of this SDK for every call."""
