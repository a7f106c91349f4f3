"""Transports over the SDKs of vendors, which one generator makes; imports their HTTP client.

An SDK posts ready bytes: it brings connection and authentication, and nothing of its encoding,
retries and parsing is used.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from traceback import clear_frames
from typing import Any, TypeVar, cast
from urllib.request import getproxies, proxy_bypass

import httpx2

from rath._core.options import Sourced
from rath._core.text import one_line_preview
from rath.config.redaction import guard_logs
from rath.errors import ProviderError, ProviderProtocolError, ProviderTimeout
from rath.llm import errors
from rath.llm.chat_response import fields_of
from rath.llm.credentials import (
    RequestTarget,
    credential_digest,
    password_in,
    public_url,
    without_login,
)
from rath.llm.transport import ApiEndpoint, ModelListing, WireReply, load_sdk

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

_CALL_HEADERS = ("Retry-Count", "Read-Timeout", "Timeout")
"""The same for each call."""

_LOGGING = ("anthropic", "httpcore2", "httpx2", "openai")
"""Libraries that log what an endpoint sends."""

_PER_POOL = 8
"""Connections of one pool; measured: 200 calls at once cost half the CPU of one large pool."""

_MAX_POOLS = 125
"""Times `_PER_POOL` gives the 1000 connections that the SDKs allow an endpoint."""

_MAX_IDLE_POOLS = 25
"""Times `_PER_POOL` gives the 200 connections that may stay open with nothing to do; a guess."""

_IDLE_SECONDS = 5.0
"""How long a pool with nothing to do stays open, as the HTTP client has it for connections: that
looks for expired ones only when their pool is asked again, which after a burst never happens."""

_HARMLESS_HEADERS = frozenset(
    {"accept", "accept-encoding", "anthropic-version", "connection", "content-length",
     "content-type", "host", "transfer-encoding", "user-agent"}
)  # fmt: skip
"""All that another origin gets to see: a header that somebody added may hold a secret."""

E = TypeVar("E", bound=BaseException)


class SdkConnection:
    """An SDK client of one endpoint, whose own retries are off, with what else its calls share.

    Blocks: it imports the SDK and may create the salt of the home directory.

    Raises:
        ValueError: The environment would add headers to calls of a project's own endpoint.
    """

    def __init__(self, endpoint: ApiEndpoint) -> None:
        self.endpoint = endpoint
        self.sdk = load_sdk(endpoint.sdk)
        endpoint.refuse_added_headers()  # the environment may have changed since it was made
        self._base_error: type[Exception] = self.sdk.APIError.__base__
        self.call_options: dict[str, Any] = {"headers": self._without(_CALL_HEADERS)}
        if endpoint.sdk == "openai":
            # Without this it may also send an administrator's key that it finds in the environment.
            self.call_options["security"] = {"bearer_auth": True}
        guard_logs(_LOGGING, endpoint.api_key, password_in(endpoint.base_url))
        self.client = self._make_client()
        self.credential = None
        if endpoint.key_origin is not None:
            self.credential = credential_digest(Sourced(endpoint.api_key, endpoint.key_origin))

    def transport(self, target: RequestTarget) -> SdkTransport:
        """Return the way to the path of `target`."""
        return SdkTransport(self, target)

    @contextmanager
    def mapping_errors(self, target: RequestTarget) -> Generator[None]:
        """Turn what SDK and HTTP client raise in a block into errors of rath."""
        try:
            yield
        except (self._base_error, httpx2.HTTPError, httpx2.InvalidURL) as exc:
            cause = target.redactor.cause(without_locals(exc))
            raise map_error(exc, self.sdk, target) from cause

    async def aclose(self) -> None:
        """Close every connection of the client."""
        await self.client.close()

    def _make_client(self) -> Any:
        """Make the SDK's client, with nothing that it would find in the environment.

        An SDK fills in what its constructor is not given: other credentials, profiles, an endpoint.
        So everything that it would look up is given, and what came from the environment after all
        (a header, an organisation) must be safe to send to any endpoint of the user's own choice.
        """
        endpoint, sdk = self.endpoint, self.sdk
        options: dict[str, Any] = {
            "api_key": endpoint.api_key,
            "max_retries": 0,  # there is one owner of retries, and it is not the SDK
            "default_headers": self._without(_MACHINE_HEADERS),
            "http_client": open_http_client(sdk, endpoint.base_url),
        }
        # The address of each request is logged, so the HTTP client alone gets user and password.
        base_url = without_login(endpoint.base_url)
        if endpoint.sdk == "anthropic":
            return sdk.AsyncAnthropic(base_url=base_url, **options)
        if endpoint.api_version is None:
            client = sdk.AsyncOpenAI(base_url=base_url, **options)
        else:
            client = sdk.AsyncAzureOpenAI(
                azure_endpoint=base_url, api_version=endpoint.api_version, **options
            )
        if endpoint.from_project:
            # The environment names the user's own; a project's endpoint need not know of them.
            client.organization = client.project = None
        return client

    def _without(self, names: tuple[str, ...]) -> dict[str, Any]:
        return {f"X-Stainless-{name}": self.sdk.Omit() for name in names}


class SdkTransport:
    """A connection with the path, the timeout and the words of one draft; see `Transport`."""

    def __init__(self, connection: SdkConnection, target: RequestTarget) -> None:
        self._connection = connection
        self._target = target
        connect = min(target.timeout, _CONNECT_SECONDS)
        # A whole answer has a limit of its own below; a stream is limited between its pieces.
        overall = httpx2.Timeout(None, connect=connect)
        piecewise = httpx2.Timeout(target.timeout, connect=connect)
        self._options: Any = {**connection.call_options, "timeout": overall}
        self._stream_options: Any = {**connection.call_options, "timeout": piecewise}
        self.endpoint = target.endpoint
        self.sdk_version: str | None = connection.sdk.__version__
        self.credential = connection.credential

    async def post(self, body: bytes) -> WireReply:
        target = self._target
        call = partial(self._connection.client.post, target.path, content=body)
        async with _time_limit(target):
            reply = await self._answer(call, self._options, target)
        return WireReply.redacted(reply.status_code, reply.content, target)

    @asynccontextmanager
    async def stream(self, body: bytes) -> AsyncGenerator[SdkStream, None]:
        connection, target = self._connection, self._target
        with connection.mapping_errors(target):
            reply: Any = await connection.client.post(
                target.path, content=body, cast_to=httpx2.Response, options=self._stream_options,
                stream=True, stream_cls=connection.sdk.AsyncStream[Any],
            )  # fmt: skip
        try:
            yield SdkStream(reply, connection, target)
        finally:
            await reply.aclose()

    async def models(self) -> tuple[str, ...]:
        endpoint = self._connection.endpoint
        if endpoint.listing is None:
            raise ProviderProtocolError(
                f"{self._target.name} cannot list the names that a call may use there",
                endpoint=self._target.name,
            )
        url = endpoint.base_url + endpoint.listing.path
        target = replace(
            self._target,
            endpoint=public_url(url) or url,
            model="",
            timeout=min(self._target.timeout, _LISTING_SECONDS),
        )
        async with _time_limit(target):
            return tuple(sorted(await self._list_models(endpoint.listing, target)))

    async def _list_models(self, listing: ModelListing, target: RequestTarget) -> set[str]:
        found = set[str]()
        query = dict(listing.query)
        for _ in range(_MAX_PAGES):
            call = partial(self._connection.client.get, listing.path)
            options = {**self._options, "params": query} if query else self._options
            reply = await self._answer(call, options, target)
            content = target.redactor.json_bytes(reply.content)
            try:
                names, last = decode_models(content)
            except (ValueError, RecursionError) as exc:
                problem = "not with a list of models"
                raise errors.protocol_error(
                    target, problem, content, status=reply.status_code
                ) from exc
            found.update(names)
            if listing.cursor is None or last is None:
                break
            query[listing.cursor] = last
        return found

    async def _answer(
        self, call: Callable[..., Any], options: Any, target: RequestTarget
    ) -> httpx2.Response:
        with self._connection.mapping_errors(target):
            reply: httpx2.Response = await call(
                cast_to=httpx2.Response, options=options, stream=False, stream_cls=None
            )
            return reply


class SdkStream:
    """The body of a streamed answer; see `ReplyStream`."""

    def __init__(
        self, reply: httpx2.Response, connection: SdkConnection, target: RequestTarget
    ) -> None:
        self._target = target
        self._connection = connection
        self._chunks = reply.aiter_bytes()
        self.status = reply.status_code
        self.content_type = reply.headers.get("content-type", "").partition(";")[0].strip().lower()

    async def next_chunk(self) -> bytes:
        with self._connection.mapping_errors(self._target):
            return await anext(self._chunks, b"")

    async def drain(self) -> None:
        try:
            async with asyncio.timeout(_DRAIN_SECONDS):
                while await self.next_chunk():
                    pass
        except (TimeoutError, ProviderError):
            pass  # the answer is complete; a connection is all that may be lost


@asynccontextmanager
async def _time_limit(target: RequestTarget) -> AsyncGenerator[None, None]:
    try:
        async with asyncio.timeout(target.timeout):
            yield
    except ProviderTimeout:
        raise
    except TimeoutError as exc:
        raise errors.timeout_error(target) from without_locals(exc)


def decode_models(content: bytes) -> tuple[tuple[str, ...], str | None]:
    """Return the names of a page of models, and where the next page begins, if there is one.

    The list stands under `data` or `models`, or alone; an entry has an `id` or a `name`, or is one.

    Raises:
        ValueError: The content holds no list of models.
    """
    payload: object = json.loads(content)
    fields = fields_of(payload)
    entries = fields.get("data", fields.get("models")) if fields else payload
    if not isinstance(entries, list):
        raise ValueError("no list of models")  # noqa: TRY004  # the content is wrong, not its type
    names: list[str] = []
    for entry in cast("list[object]", entries):
        known = fields_of(entry)
        name = (known.get("id") or known.get("name")) if known else entry
        if isinstance(name, str) and name:
            names.append(name)
    last = fields.get("last_id") if fields.get("has_more") is True else None
    return tuple(names), last if isinstance(last, str) else None


def map_error(exc: Exception, sdk: Any, target: RequestTarget) -> ProviderError:
    """Return the error of rath for what an SDK or its HTTP client raised; it holds no key."""
    if isinstance(exc, sdk.APIStatusError):
        reply: httpx2.Response = cast("Any", exc).response
        reason = reply.reason_phrase
        return errors.response_error(
            target, reply.status_code, reply.content, reason=reason, headers=reply.headers
        )
    # The SDK wraps what its HTTP client raised; a stream is read from that client itself.
    cause = exc if isinstance(exc, httpx2.HTTPError) else exc.__cause__ or exc
    if isinstance(cause, httpx2.ConnectTimeout | httpx2.PoolTimeout):
        return errors.connection_error(target, "it did not open in time")
    if isinstance(exc, sdk.APITimeoutError) or isinstance(cause, httpx2.TimeoutException):
        return errors.timeout_error(target)
    reason = one_line_preview(target.redactor.text(str(cause)), errors.MAX_MESSAGE)
    return errors.connection_error(target, f"{type(cause).__name__}{reason and ': '}{reason}")


def without_locals(exc: E) -> E:
    """Return `exc` with no variables in the frames that it and what it came from have left.

    Those of the HTTP client hold the headers of a request that ended while it was sent, and so the
    key, which tools that report errors with local variables would show.
    """
    pending, seen = list[BaseException | None]([exc]), set[int]()
    while pending:
        each = pending.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            clear_frames(each.__traceback__)
            pending += (each.__cause__, each.__context__)
            if isinstance(each, BaseExceptionGroup):
                # `isinstance` does not tell of what it is a group.
                pending += cast("BaseExceptionGroup[BaseException]", each).exceptions
    return exc


def open_http_client(
    sdk: Any, base_url: str, *, idle_seconds: float = _IDLE_SECONDS
) -> httpx2.AsyncClient:
    """Return an HTTP client for the client of an SDK, which closes it.

    A key goes to the origin of `base_url` alone, also when that redirects to another one. User
    and password in `base_url` are sent in the place of an `Authorization` of the SDK.

    Args:
        sdk: The module of the SDK.
        base_url: The endpoint.
        idle_seconds: How long connections stay open with nothing to do.
    """
    own = httpx2.URL(base_url)
    hooks = {"request": [_KeyGuard(own)]}
    make: Callable[..., httpx2.AsyncClient] = sdk.DefaultAsyncHttpxClient
    auth = httpx2.BasicAuth(own.username, own.password) if own.userinfo else None
    if _is_proxied(own):
        # With a transport of its own a client no longer reads the proxies of the environment.
        limits = httpx2.Limits(
            max_connections=_PER_POOL * _MAX_POOLS,
            max_keepalive_connections=_PER_POOL * _MAX_IDLE_POOLS,
            keepalive_expiry=idle_seconds,
        )
        return make(limits=limits, event_hooks=hooks, auth=auth)
    return make(transport=_SpreadTransport(idle_seconds), event_hooks=hooks, auth=auth)


def _is_proxied(url: httpx2.URL) -> bool:
    """Tell whether requests to `url`, or to where it may redirect, go through a proxy."""
    # `NO_PROXY` stands among them as "no", and is a proxy for nothing.
    named = {"all", "http", "https"} & getproxies().keys()
    return bool(named) and not proxy_bypass(url.host)


class _KeyGuard:
    """Takes the key off a request that was redirected to another origin."""

    def __init__(self, own: httpx2.URL) -> None:
        home = (own.scheme, own.host, own.port)
        # What a server does that tells its callers to use TLS.
        self._allowed = {home, ("https", own.host, None)} if own.port is None else {home}

    async def __call__(self, request: httpx2.Request) -> None:
        url = request.url
        if (url.scheme, url.host, url.port) not in self._allowed:
            for name in set(request.headers) - _HARMLESS_HEADERS:
                del request.headers[name]


class _Pool:
    """A small connection pool, and how many requests it serves now."""

    def __init__(self, transport: httpx2.AsyncHTTPTransport) -> None:
        self.transport = transport
        self.n_in_flight = 0
        self.expiry: asyncio.TimerHandle | None = None
        """Closes the pool, while it has nothing to do."""


class _SpreadTransport(httpx2.AsyncBaseTransport):
    """Spreads requests over small pools, filling the first ones first.

    For each request a pool looks at all of its connections, so one pool of 200 costs more than
    the requests do. A pool that has had nothing to do for a while is closed, and at once where
    many others have nothing to do either.
    """

    def __init__(self, idle_seconds: float) -> None:
        self._ssl_context = httpx2.create_ssl_context()
        self._idle_seconds = idle_seconds
        self._pools: list[_Pool] = []
        self._closing: set[asyncio.Task[None]] = set()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        pool = self._choose()
        pool.n_in_flight += 1
        if pool.expiry is not None:
            pool.expiry.cancel()
            pool.expiry = None
        try:
            response = await pool.transport.handle_async_request(request)
        except BaseException:
            self._release(pool)
            raise
        stream = cast("httpx2.AsyncByteStream", response.stream)
        response.stream = _CountedStream(stream, partial(self._release, pool))
        return response

    async def aclose(self) -> None:
        pools, self._pools = self._pools, []
        for pool in pools:
            if pool.expiry is not None:
                pool.expiry.cancel()
            await pool.transport.aclose()
        await asyncio.gather(*self._closing)

    def _release(self, pool: _Pool) -> None:
        """Count a request less; the last one of a pool begins the time after which it closes."""
        pool.n_in_flight -= 1
        if pool.n_in_flight or pool not in self._pools:
            return
        n_idle = sum(each.n_in_flight == 0 for each in self._pools)
        seconds = self._idle_seconds if n_idle <= _MAX_IDLE_POOLS else 0.0
        # In no context: that of a run would live as long.
        pool.expiry = asyncio.get_running_loop().call_later(
            seconds, self._close, pool, context=contextvars.Context()
        )

    def _close(self, pool: _Pool) -> None:
        self._pools.remove(pool)
        task = asyncio.get_running_loop().create_task(pool.transport.aclose())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _choose(self) -> _Pool:
        for pool in self._pools:
            if pool.n_in_flight < _PER_POOL:
                return pool
        if len(self._pools) == _MAX_POOLS:
            return min(self._pools, key=lambda pool: pool.n_in_flight)
        limits = httpx2.Limits(
            max_connections=_PER_POOL,
            max_keepalive_connections=_PER_POOL,
            keepalive_expiry=self._idle_seconds,
        )
        self._pools.append(
            _Pool(httpx2.AsyncHTTPTransport(verify=self._ssl_context, limits=limits))
        )
        return self._pools[-1]


class _CountedStream(httpx2.AsyncByteStream):
    """The body of an answer; closing it makes room in its pool."""

    def __init__(self, stream: httpx2.AsyncByteStream, release: Callable[[], None]) -> None:
        self._stream = stream
        self._release: Callable[[], None] | None = release

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._stream.__aiter__()

    async def aclose(self) -> None:
        try:
            await self._stream.aclose()
        finally:
            release, self._release = self._release, None
            if release is not None:
                release()
