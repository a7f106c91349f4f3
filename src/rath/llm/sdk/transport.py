"""HTTP connections for many calls at once; imports the HTTP client of the SDKs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import cast
from urllib.request import getproxies, proxy_bypass

import httpx2

from rath.llm.sdk.binding import Sdk

__all__ = ["open_http_client"]

_PER_POOL = 8
"""Connections of one pool; measured: 200 calls at once cost half the CPU of one large pool."""

_MAX_POOLS = 125
"""Times `_PER_POOL` gives the 1000 connections that the SDKs allow an endpoint."""


_HARMLESS_HEADERS = frozenset(
    {"accept", "accept-encoding", "anthropic-version", "connection", "content-length",
     "content-type", "host", "transfer-encoding", "user-agent"}
)  # fmt: skip
"""All that another origin gets to see: a header that somebody added may hold a secret."""


def open_http_client(sdk: Sdk, base_url: str) -> httpx2.AsyncClient:
    """Return an HTTP client for the client of an SDK, which closes it.

    A key goes to the origin of `base_url` alone, also when that redirects to another one. User
    and password in `base_url` are sent in the place of an `Authorization` of the SDK.
    """
    own = httpx2.URL(base_url)
    hooks = {"request": [_KeyGuard(own)]}
    auth = httpx2.BasicAuth(own.username, own.password) if own.userinfo else None
    if _is_proxied(own):
        # With a transport of its own a client no longer reads the proxies of the environment.
        limits = httpx2.Limits(
            max_connections=_PER_POOL * _MAX_POOLS, max_keepalive_connections=_PER_POOL * 25
        )
        return sdk.make_http_client(limits=limits, event_hooks=hooks, auth=auth)
    return sdk.make_http_client(transport=_SpreadTransport(), event_hooks=hooks, auth=auth)


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


class _SpreadTransport(httpx2.AsyncBaseTransport):
    """Spreads requests over small pools, filling the first ones first.

    For each request a pool looks at all of its connections, so one pool of 200 costs more than
    the requests do.
    """

    def __init__(self) -> None:
        self._ssl_context = httpx2.create_ssl_context()
        self._pools: list[_Pool] = []

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        pool = self._choose()
        pool.n_in_flight += 1
        try:
            response = await pool.transport.handle_async_request(request)
        except BaseException:
            pool.n_in_flight -= 1
            raise
        response.stream = _CountedStream(cast("httpx2.AsyncByteStream", response.stream), pool)
        return response

    async def aclose(self) -> None:
        for pool in self._pools:
            await pool.transport.aclose()

    def _choose(self) -> _Pool:
        for pool in self._pools:
            if pool.n_in_flight < _PER_POOL:
                return pool
        if len(self._pools) == _MAX_POOLS:
            return min(self._pools, key=lambda pool: pool.n_in_flight)
        limits = httpx2.Limits(max_connections=_PER_POOL, max_keepalive_connections=_PER_POOL)
        self._pools.append(
            _Pool(httpx2.AsyncHTTPTransport(verify=self._ssl_context, limits=limits))
        )
        return self._pools[-1]


class _CountedStream(httpx2.AsyncByteStream):
    """The body of an answer; closing it makes room in its pool."""

    def __init__(self, stream: httpx2.AsyncByteStream, pool: _Pool) -> None:
        self._stream = stream
        self._pool: _Pool | None = pool

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._stream.__aiter__()

    async def aclose(self) -> None:
        try:
            await self._stream.aclose()
        finally:
            if self._pool is not None:
                self._pool.n_in_flight -= 1
                self._pool = None
