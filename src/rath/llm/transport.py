"""The way to an endpoint: prepared bytes out, an answer or a stream of bytes back.

A client gives a body and gets bytes; it never sees what carries them.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Hashable
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import field
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from rath._async.runtime import Closeable, Runtime, runtime
from rath._core.dataclasses import dataclass
from rath.config.env import env_value
from rath.llm.credentials import RequestTarget, public_url
from rath.llm.provider import SdkName

if TYPE_CHECKING:
    from rath.llm.http_transport import HttpConnection

K = TypeVar("K", bound=Hashable)
C = TypeVar("C", bound=Closeable)


@dataclass(frozen=True, slots=True)
class WireReply:
    """An answer without an error status."""

    status: int
    content: bytes
    """Without the key, if it came from a transport of ours."""

    repeats_key: bool = False
    """Whether the key was taken out of the content."""

    @classmethod
    def redacted(cls, status: int, content: bytes, target: RequestTarget) -> WireReply:
        """Return an answer with the key of `target` hidden in it."""
        clean = target.redactor.json_bytes(content)
        return cls(status, clean, repeats_key=clean != content)


class ReplyStream(Protocol):
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


class Transport(Protocol):
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

    async def post(self, body: bytes) -> WireReply:
        """Send a body and return the whole answer.

        Raises:
            ProviderError: No answer, or one with an error status.
        """
        ...

    def stream(self, body: bytes) -> AbstractAsyncContextManager[ReplyStream]:
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


@dataclass(frozen=True, slots=True)
class ModelListing:
    """The request for the models of an endpoint."""

    path: str
    """Below the base URL, such as `/models`."""

    query: tuple[tuple[str, str], ...] = ()
    cursor: str | None = None
    """Query parameter that asks for what follows a page; None where there is one page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiEndpoint:
    """Protocol, address and key that calls have in common; equal ones share a connection.

    Raises:
        ValueError: The environment would add headers to calls of a project's own endpoint.
    """

    base_url: str = field(repr=False)
    """Without a slash at its end. User and password in it are sent in the place of the key."""

    key_origin: str | None
    """Where the key came from; None for one that only this process knows."""

    from_project: bool
    """Whether the endpoint is one that no secret of the environment may reach."""

    headers_variable: str | None
    """Environment variable whose headers are added to every call, as the SDK of the vendor does;
    None where there is none.

    They may hold a secret, so they are refused for an endpoint that a project's config names.
    """

    api_key: str = field(repr=False)
    key_header: str = "Authorization"
    """Name of the header that holds the key; in this one it is a bearer token."""

    headers: tuple[tuple[str, str], ...] = ()
    """Further headers of every request, such as the version of the API."""

    query: tuple[tuple[str, str], ...] = ()
    """Query parameters of every request."""

    listing: ModelListing | None = field(default=None, compare=False)
    """None where the names that a call may use cannot be listed."""

    def __post_init__(self) -> None:
        self.refuse_added_headers()

    def refuse_added_headers(self) -> None:
        """Refuse headers of the environment for an endpoint that a project's config names.

        Raises:
            ValueError: There are some.
        """
        name = self.headers_variable
        if self.from_project and name is not None and env_value(name):
            raise ValueError(
                f"{name} is set and would be sent to {public_url(self.base_url)!r}, which the "
                "project's own config names; unset it for this project"
            )


def load_sdk(name: SdkName) -> Any:
    """Import the SDK of a vendor."""
    if name == "anthropic":
        import anthropic

        return anthropic
    import openai

    return openai


def retryable_errors(name: SdkName) -> tuple[type[Exception], ...]:
    """Return the exceptions of an SDK that another try may mend; imports it."""
    names = ("RateLimitError", "APIConnectionError", "APITimeoutError", "InternalServerError")
    module = load_sdk(name)
    return tuple(getattr(module, name) for name in names)


async def open_transport(endpoint: ApiEndpoint, target: RequestTarget) -> Transport:
    """Return the way to the path of `target` at an endpoint.

    The connection is shared by all clients of the process.
    """
    return (await _connections.get(endpoint)).transport(target)


def warm_up(endpoint: ApiEndpoint) -> None:
    """Begin to open a connection where none is open; the first call meets what keeps it closed."""

    async def open_one() -> None:
        with suppress(Exception):
            await (await _connections.get(endpoint)).warm_up()

    if not _connections.is_opening(endpoint):
        known = _connections.find(endpoint)
        if known is None or not known.is_warm:
            # In no context: that of a run would live as long as the connection.
            runtime().submit(
                open_one, label="a connection", context=contextvars.Context(), at_exit="leave"
            )


class ConnectionPool(Generic[K, C]):
    """One connection for each key in the whole process; used on the runtime loop only.

    A connection belongs to the loop of the runtime that opened it and closes it, so a forked child,
    which has a runtime of its own, starts with none.

    Args:
        open: Opens a connection. Runs on a worker thread, since it may read files.
    """

    def __init__(self, open: Callable[[K], C]) -> None:
        self._open = open
        self._owner: Runtime | None = None
        self._opened: dict[K, C] = {}
        self._opening: dict[K, asyncio.Future[C]] = {}

    async def get(self, key: K) -> C:
        """Return the connection for `key`; those who ask while it opens wait for the same one."""
        known = self.find(key)
        if known is not None:
            return known
        opening = self._opening.get(key)
        if opening is None:
            future = runtime().start_in_worker(lambda: self._open_for_runtime(key))
            opening = self._opening[key] = asyncio.wrap_future(future)
            opening.add_done_callback(lambda done: self._note_opened(key, done))
        # Shielded: who gives up waiting does not take the connection from the others.
        return await asyncio.shield(opening)

    def _note_opened(self, key: K, opening: asyncio.Future[C]) -> None:
        self._opening.pop(key, None)
        if not opening.cancelled() and opening.exception() is None:
            self._opened[key] = opening.result()

    def find(self, key: K) -> C | None:
        """Return the connection for `key`, if it is open."""
        if self._owner is not runtime():
            self._owner, self._opened, self._opening = runtime(), {}, {}
        return self._opened.get(key)

    def is_opening(self, key: K) -> bool:
        """Tell whether somebody waits for the connection for `key`."""
        return self._owner is runtime() and key in self._opening

    def _open_for_runtime(self, key: K) -> C:
        connection = self._open(key)
        runtime().keep_open(connection)
        return connection


def _connect(endpoint: ApiEndpoint) -> HttpConnection:
    from rath.llm.http_transport import HttpConnection

    return HttpConnection(endpoint)


_connections: ConnectionPool[ApiEndpoint, HttpConnection] = ConnectionPool(_connect)
