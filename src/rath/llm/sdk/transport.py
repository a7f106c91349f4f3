"""HTTP connections for many calls at once; imports the HTTP client of the SDKs."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import cast
from urllib.request import getproxies, proxy_bypass

import httpx2

from rath.llm.sdk.binding import Sdk

__all__ = ["open_http_client"]

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


def open_http_client(
    sdk: Sdk, base_url: str, *, idle_seconds: float = _IDLE_SECONDS
) -> httpx2.AsyncClient:
    """Return an HTTP client for the client of an SDK, which closes it.

    A key goes to the origin of `base_url` alone, also when that redirects to another one. User
    and password in `base_url` are sent in the place of an `Authorization` of the SDK.

    Args:
        sdk: Makes the client.
        base_url: The endpoint.
        idle_seconds: How long connections stay open with nothing to do.
    """
    own = httpx2.URL(base_url)
    hooks = {"request": [_KeyGuard(own)]}
    auth = httpx2.BasicAuth(own.username, own.password) if own.userinfo else None
    if _is_proxied(own):
        # With a transport of its own a client no longer reads the proxies of the environment.
        limits = httpx2.Limits(
            max_connections=_PER_POOL * _MAX_POOLS,
            max_keepalive_connections=_PER_POOL * _MAX_IDLE_POOLS,
            keepalive_expiry=idle_seconds,
        )
        return sdk.make_http_client(limits=limits, event_hooks=hooks, auth=auth)
    return sdk.make_http_client(
        transport=_SpreadTransport(idle_seconds), event_hooks=hooks, auth=auth
    )


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
