"""HTTP connections for many calls at once; imports the SDK's HTTP client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import cast
from urllib.request import getproxies

import httpx2
import openai

__all__ = ["open_http_client"]

_PER_POOL = 8
"""Connections of one pool; measured: 200 calls at once cost half the CPU of one large pool."""

_MAX_POOLS = 125
"""Times `_PER_POOL` gives the 1000 connections that the SDK allows an endpoint."""


def open_http_client() -> httpx2.AsyncClient:
    """Return an HTTP client for the SDK's own client, which closes it."""
    if getproxies():
        # With a transport of its own a client no longer reads the proxies of the environment.
        limits = httpx2.Limits(
            max_connections=_PER_POOL * _MAX_POOLS, max_keepalive_connections=_PER_POOL * 25
        )
        return openai.DefaultAsyncHttpxClient(limits=limits)
    return openai.DefaultAsyncHttpxClient(transport=_SpreadTransport())


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
