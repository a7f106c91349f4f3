"""A server at an address: what goes with every request, and what the answers were."""

from __future__ import annotations

import base64
import contextlib
import contextvars
from collections.abc import AsyncGenerator, Callable, Iterable
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import unquote, urlsplit, urlunsplit

import httpx2
import msgspec
from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken

from rath._core.dataclasses import dataclass
from rath._core.trace_context import parse_traceparent
from rath.config.redaction import REFERENCE, address_secrets, guard_logs, looks_random
from rath.errors import ConfigError
from rath.mcp.spec import (
    Bearer,
    HttpServer,
    credential_settings,
    expand,
    read_variable,
    server_name,
    setting_secrets,
)

if TYPE_CHECKING:
    from types import TracebackType

    from mcp.client._transport import ReadStream, TransportStreams
    from mcp.shared._context_streams import ContextReceiveStream
    from mcp.shared.message import SessionMessage

__all__ = ["HttpAccess", "HttpExchange", "current_exchange", "open_http", "open_sse"]

_LIBRARIES = ("mcp", "client", "httpx2", "httpcore2")
"""Whose loggers tell addresses, headers and messages."""

MAX_EVENT_BYTES = 64 << 20
"""Longest event of a stream, in bytes. A guess."""

MAX_ANSWER_BYTES = MAX_EVENT_BYTES
"""Longest answer that is no stream, in bytes."""

_MAX_RATIO = 1000
"""How many times larger gzip makes a content at most: 1032, https://zlib.net/zlib_tech.html."""


@dataclass(slots=True)
class HttpExchange:
    """Answers to the requests that one operation made."""

    status: int | None = None
    """Status of the last answer that was an error, or no message at all."""

    content_type: str = ""
    on_refused: Callable[[], None] | None = None
    """Called when an answer was an error."""


current_exchange: contextvars.ContextVar[HttpExchange | None] = contextvars.ContextVar(
    "rath_mcp_exchange", default=None
)


@dataclass(frozen=True, slots=True)
class HttpAccess:
    """An address, and what is sent to it and to nowhere else; made anew at each connect."""

    url: str = field(repr=False)
    """Without user and password, which go as a header: addresses are logged."""

    headers: dict[str, str] = field(repr=False)
    inner: httpx2.Auth | None = field(repr=False)
    secrets: list[str] = field(repr=False)
    """Parts of the settings that no text may hold."""

    tokens: list[str] = field(repr=False)
    """Those of them that are credentials, and in no answer either."""

    @classmethod
    def of(cls, server: HttpServer) -> Self:
        """Read what a server needs from the environment.

        Raises:
            ConfigError: A variable that it refers to is not set.
        """
        headers = {name: expand(value, f"headers.{name}") for name, value in server.headers.items()}
        for name, value in headers.items():
            _check_one_line(value, f"the header {name!r}")
        url, user, password = _address(server)
        access = cls(url, headers, None, [], [])
        secrets, tokens = _secrets(server, url)
        access.hide(*secrets, tokens=tokens)
        if user or password:
            # As httpx does for a client that has no `auth` of its own.
            basic = base64.b64encode(f"{user}:{password}".encode()).decode()
            if "authorization" not in map(str.lower, headers):
                access.headers["Authorization"] = f"Basic {basic}"
            access.hide(tokens=[password, basic])
        match server.auth:
            case None:
                pass
            case Bearer() as bearer:
                token = _token(bearer)
                access.headers["Authorization"] = f"Bearer {token}"
                access.hide(tokens=[token])
            case credentials:
                secret = read_variable(credentials.secret_env, "auth.secret_env")
                access.hide(tokens=[secret])
                inner = ClientCredentialsOAuthProvider(
                    # The issuer gets it as the resource; the query is not meant for that one.
                    urlsplit(url)._replace(query="").geturl(),
                    _TokenMemory(access),
                    expand(credentials.client_id, "auth.client_id"),
                    secret,
                    credentials.method,
                    " ".join(credentials.scopes) or None,
                    credentials.issuer,
                )
                return replace(access, inner=inner)
        return access

    def hide(self, *secrets: str, tokens: Iterable[str] = ()) -> None:
        """Let no text hold `secrets`, and no answer `tokens` either."""
        added = list(tokens)
        self.secrets.extend((*secrets, *added))
        self.tokens.extend(added)
        guard_logs(_LIBRARIES, *secrets, *added)

    def client(self, *, timeout: float) -> httpx2.AsyncClient:
        """Return a client for the server; answers are noted in the current `HttpExchange`."""
        return httpx2.AsyncClient(
            auth=_ToOrigin(self),
            # How long an answer may take is up to each request; the deadline is ours.
            timeout=httpx2.Timeout(timeout, read=None),
            # What is packed may be a thousand times as large; that is not known in time.
            headers={"Accept-Encoding": "identity"},
            event_hooks={"request": [_add_trace], "response": [_note, _bound]},
        )


class _TracedParams(msgspec.Struct):
    meta: dict[str, Any] = msgspec.field(name="_meta", default_factory=dict[str, Any])


class _TracedMessage(msgspec.Struct):
    params: _TracedParams = msgspec.field(default_factory=_TracedParams)


_TRACED = msgspec.json.Decoder(_TracedMessage)


async def _add_trace(request: httpx2.Request) -> None:
    """Send the trace of a message as a header too, which proxies and other servers read.

    It is taken from the message, since a task of the SDK sends it and not the one that calls.
    """
    if request.method != "POST" or b'"traceparent"' not in request.content:
        return
    with contextlib.suppress(msgspec.MsgspecError):
        span = _TRACED.decode(request.content).params.meta.get("traceparent")
        if isinstance(span, str) and parse_traceparent(span) is not None:
            request.headers["traceparent"] = span


class _TokenMemory:
    """Storage of a token: with the connection, and nowhere else."""

    def __init__(self, access: HttpAccess) -> None:
        self._access = access
        self._tokens: OAuthToken | None = None
        self._client: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self._tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self._tokens = tokens
        self._access.hide(tokens=filter(None, (tokens.access_token, tokens.refresh_token)))

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self._client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self._client = client_info


class _ToOrigin(httpx2.Auth):
    """Adds headers to requests to one origin; others, as of an OAuth flow, go without them."""

    def __init__(self, access: HttpAccess) -> None:
        self._access = access
        self._origin = _origin(httpx2.URL(access.url))

    async def async_auth_flow(
        self, request: httpx2.Request
    ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        if not self._belongs(request.url):
            yield request
            return
        request.headers.update(self._access.headers)
        if self._access.inner is None:
            yield request
            return
        flow = self._access.inner.async_auth_flow(request)
        async with contextlib.aclosing(flow):
            outgoing = await anext(flow)
            while True:
                response = yield outgoing
                try:
                    outgoing = await flow.asend(response)
                except StopAsyncIteration:
                    return

    def _belongs(self, url: httpx2.URL) -> bool:
        scheme, host, port = self._origin
        is_upgrade = _origin(url) == ("https", host, 443) and (scheme, port) == ("http", 80)
        return _origin(url) == self._origin or is_upgrade


@contextlib.asynccontextmanager
async def open_http(access: HttpAccess, *, timeout: float) -> AsyncGenerator[TransportStreams]:
    """Give the streams of a connection by streamable HTTP."""
    async with (
        access.client(timeout=timeout) as client,
        streamable_http_client(
            access.url, http_client=client, max_sse_event_size=MAX_EVENT_BYTES
        ) as streams,
    ):
        yield streams


@contextlib.asynccontextmanager
async def open_sse(
    access: HttpAccess, *, timeout: float, on_lost: Callable[[], None]
) -> AsyncGenerator[TransportStreams]:
    """Give the streams of a connection by SSE.

    Args:
        access: Where to, and with what.
        timeout: Seconds that a connection may take.
        on_lost: Called when the server ends the stream: nothing will be answered any more.
    """
    http_client = access.client(timeout=timeout)

    def client(
        headers: dict[str, str] | None = None,
        timeout: httpx2.Timeout | None = None,
        auth: httpx2.Auth | None = None,
    ) -> httpx2.AsyncClient:
        return http_client  # which says already what these would

    async with sse_client(access.url, httpx_client_factory=client) as (read, write):
        yield _WatchedStream(read, on_lost), write


class _WatchedStream:
    """A stream of messages that tells when it ends."""

    def __init__(
        self,
        stream: ContextReceiveStream[SessionMessage | Exception],
        on_end: Callable[[], None],
    ) -> None:
        self._stream = stream
        self._on_end = on_end

    @property
    def last_context(self) -> contextvars.Context | None:
        """The context in which the last message was sent on."""
        return self._stream.last_context

    async def receive(self) -> SessionMessage | Exception:
        return await self._stream.receive()

    async def aclose(self) -> None:
        await self._stream.aclose()

    def __aiter__(self) -> ReadStream[SessionMessage | Exception]:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await anext(self._stream)
        except StopAsyncIteration:
            self._on_end()
            raise

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        await self.aclose()


async def _note(response: httpx2.Response) -> None:
    exchange = current_exchange.get()
    if exchange is None:
        return
    content_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    is_html = content_type in ("text/html", "application/xhtml+xml")
    if response.status_code < 300 and not is_html:
        exchange.status = None
        return
    exchange.status, exchange.content_type = response.status_code, content_type
    if exchange.on_refused is not None:
        exchange.on_refused()


class _BoundedStream(httpx2.AsyncByteStream):
    """An answer that ends with an error above `limit` bytes."""

    def __init__(self, stream: httpx2.AsyncByteStream, limit: int) -> None:
        self._stream = stream
        self._limit = limit

    async def __aiter__(self) -> AsyncGenerator[bytes]:
        n_bytes = 0
        async for chunk in self._stream:
            n_bytes += len(chunk)
            if n_bytes > self._limit:
                raise httpx2.RemoteProtocolError(f"its answer is above {self._limit} bytes")
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


async def _bound(response: httpx2.Response) -> None:
    """Let no answer fill the memory; events of a stream have a bound of their own."""
    if response.headers.get("content-type", "").lower().startswith("text/event-stream"):
        return
    is_plain = response.headers.get("content-encoding", "identity").lower() == "identity"
    assert isinstance(response.stream, httpx2.AsyncByteStream)
    limit = MAX_ANSWER_BYTES if is_plain else MAX_ANSWER_BYTES // _MAX_RATIO
    response.stream = _BoundedStream(response.stream, limit)


def _secrets(server: HttpServer, url: str) -> tuple[list[str], list[str]]:
    """Return the parts of the settings that no text may hold, and those that are credentials.

    The latter as far as their names or they themselves tell.
    """
    names = REFERENCE.findall(server.url)
    # Apart: a header may have the name of a variable.
    settings = [{name: f"${{{name}}}" for name in names}, dict(server.headers)]
    in_address = address_secrets(expand(server.url, "url"))
    # Short parts of an address are secrets in this place alone.
    near = [url, url.partition("?")[0]] if in_address else []
    credentials = [
        secret for each in settings for secret in setting_secrets(credential_settings(each))
    ]
    tokens = [*credentials, *filter(looks_random, in_address)]
    secrets = [secret for each in settings for secret in setting_secrets(each)]
    return [*secrets, *in_address, *near], tokens


def _address(server: HttpServer) -> tuple[str, str, str]:
    """Return what is asked, without login and fragment, and user and password."""
    url = expand(server.url, "url")
    _check_one_line(url, "the address")
    try:
        parts = urlsplit(url)
        user, password, _ = parts.username or "", parts.password or "", parts.port
    except ValueError:  # whose text shows the address
        raise ConfigError(
            f"the address {server_name(server)} of an MCP server cannot be read; give it as "
            "https://HOST:PORT/PATH, with everything else in it percent-encoded"
        ) from None
    public = parts._replace(netloc=parts.netloc.rpartition("@")[2], fragment="")
    return urlunsplit(public), unquote(user), unquote(password)


def _token(bearer: Bearer) -> str:
    token = bearer.token
    if token is None and bearer.env is not None:
        token = read_variable(bearer.env, "the bearer token")
    if not token:
        raise ConfigError("the bearer token of an MCP server is empty; give one, or no auth")
    _check_one_line(token, "the bearer token")
    return token


def _check_one_line(value: str, what: str) -> None:
    """Refuse what cannot be sent here, since the network's own error would show it."""
    if any(character in value for character in "\r\n\0"):
        raise ConfigError(f"{what} of an MCP server holds a line break; give it as one line")


def _origin(url: httpx2.URL) -> tuple[str, str, int]:
    return url.scheme, url.host, url.port or (443 if url.scheme == "https" else 80)
