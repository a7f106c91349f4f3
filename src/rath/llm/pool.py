"""One connection per endpoint for the whole process, opened once and closed by us."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Generic, TypeVar

from rath._async.runtime import Closeable, Runtime, runtime

K = TypeVar("K", bound=Hashable)
C = TypeVar("C", bound=Closeable)

__all__ = ["ConnectionPool"]


class ConnectionPool(Generic[K, C]):
    """Connections by key; used on the runtime loop only.

    A connection belongs to the loop of the runtime that opened it, so a forked child, which has a
    runtime of its own, starts with none.

    Args:
        open: Opens a connection. Runs on a worker thread, since it may import an SDK.
    """

    def __init__(self, open: Callable[[K], C]) -> None:
        self._open = open
        self._owner: Runtime | None = None
        self._opened: dict[K, C] = {}
        self._opening: dict[K, Future[C]] = {}

    async def get(self, key: K) -> C:
        """Return the connection for `key`; those who ask while it opens wait for the same one."""
        if self._owner is not runtime():
            self._owner, self._opened, self._opening = runtime(), {}, {}
        known = self._opened.get(key)
        if known is not None:
            return known
        if key not in self._opening:
            self._opening[key] = runtime().start_in_worker(lambda: self._open_and_keep(key))
        opening = self._opening[key]
        try:
            # Shielded: who gives up waiting does not take the connection from the others.
            return await asyncio.shield(asyncio.wrap_future(opening))
        finally:
            if opening.done():
                self._opening.pop(key, None)
                if opening.exception() is None:
                    self._opened[key] = opening.result()

    def _open_and_keep(self, key: K) -> C:
        made = self._open(key)
        runtime().keep_open(made)
        return made
