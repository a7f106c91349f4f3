"""Something that is opened, kept open and closed in one task of its own."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Generic, TypeVar

from rath._async.runtime import Running, runtime

T = TypeVar("T")

__all__ = ["OwnedContext"]


class OwnedContext(Generic[T]):
    """A context manager that is entered and left by one task, whoever uses what it gives.

    Some libraries tie what they open to the task that opened it. All methods run on the runtime
    loop. It is opened once; what was closed, or has ended by itself, is opened anew by another.
    At exit of the program it is closed, and nobody is told that it was open.

    Args:
        make: Makes the context manager; called in the task.
        label: What it is, for messages.
    """

    def __init__(self, make: Callable[[], AbstractAsyncContextManager[T]], *, label: str) -> None:
        self._make = make
        self._label = label
        self._stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._opened: asyncio.Future[T] = loop.create_future()
        self._ended: asyncio.Future[None] = loop.create_future()
        self._running: Running | None = None
        self.error: BaseException | None = None
        """What ended it, or kept it from being opened; None while it goes on or was closed well."""

    @property
    def is_open(self) -> bool:
        """Whether it is open and nobody has asked it to close."""
        opened = self._opened
        is_there = opened.done() and not opened.cancelled() and opened.exception() is None
        return is_there and not self._stop.is_set() and not self.has_ended

    @property
    def has_ended(self) -> bool:
        """Whether it is closed, or could not be opened."""
        return self._ended.done()

    async def aopened(self) -> T:
        """Return what is open, opening it first; a cancelled wait leaves the opening alone.

        Raises:
            BaseException: What kept it from being opened; the same object at every call.
            RuntimeError: It was closed before it was open.
        """
        if self._running is None:
            # In no context: that of the run that needed it first would live as long.
            self._running = runtime().submit(
                self._live, label=self._label, context=contextvars.Context(), at_exit="leave"
            )
        return await asyncio.shield(self._opened)

    def stop(self) -> None:
        """Ask it to close; returns at once."""
        self._stop.set()

    async def aclose(self, timeout: float) -> None:
        """Close it and wait for its end; safe to call again.

        Args:
            timeout: Seconds that closing may take; then it is cancelled, and given as long again.
        """
        self._stop.set()
        if self._running is None:
            return
        if not self._opened.done():
            self._running.cancel()  # there is nothing yet that could be closed well
        if not await self.aended(timeout):
            self._running.cancel()
            await self.aended(timeout)

    async def aended(self, timeout: float) -> bool:
        """Wait for its end, `timeout` seconds at most, and tell whether it has come."""
        await asyncio.wait([self._ended], timeout=timeout)
        return self.has_ended

    async def _live(self) -> None:
        try:
            async with self._make() as value:
                self._opened.set_result(value)
                await self._stop.wait()
        except asyncio.CancelledError:
            raise
        except BaseException as exc:  # noqa: BLE001  # it belongs to whoever waits or asks
            self.error = exc
        finally:
            self._ended.set_result(None)
            self._fail()

    def _fail(self) -> None:
        if not self._opened.done():
            closed = RuntimeError(f"{self._label} was closed before it was open")
            self._opened.set_exception(self.error or closed)
            self._opened.exception()  # nobody may wait for it any more
