"""Asking a server for one operation: errors become faults, and what is busy is asked again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from rath._async.lanes import gather
from rath.memory.adapters.openviking.addresses import Addresses
from rath.memory.adapters.openviking.faults import Fault, fault_of
from rath.memory.adapters.openviking.wire import Sdk

__all__ = ["BUSY_WAITS", "GIVEN_UP", "Asking", "faults"]

GIVEN_UP = "the connection was given up before the memory server had answered"

T = TypeVar("T")

BUSY_WAITS = (0.05, 0.1, 0.2, 0.5)
"""Waits before something is sent again that the server refused because another work on the same
place went on, in seconds; the last one repeats until the deadline. A guess: waited writes take half
a second."""

# Besides errors of its own and of httpx, the SDK lets out what it stumbles over in odd answers.
_STUMBLES = (AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError)


@dataclass(frozen=True, slots=True)
class Asking:
    """One operation on its way."""

    sdk: Sdk
    addresses: Addresses
    errors: tuple[type[Exception], ...] = ()
    """What the SDK and its connection raise."""

    secret: str = field(default="", repr=False)
    deadline: float = float("inf")
    """On the clock of the event loop."""

    @property
    def seconds_left(self) -> float:
        """Time until the deadline."""
        return self.deadline - asyncio.get_running_loop().time()

    async def ask(self, call: Callable[[Sdk], Awaitable[T]]) -> T:
        """Return what a call of the SDK gives.

        A call that the server refused as in conflict did nothing: it is made again until the
        deadline. Nothing else is sent twice.

        Raises:
            Fault: It failed.
        """
        n_tries = 0
        while True:
            try:
                return await self._answer(call)
            except Fault as fault:
                wait = BUSY_WAITS[min(n_tries, len(BUSY_WAITS) - 1)]
                if not fault.is_busy:
                    raise
                if wait >= self.seconds_left:
                    message = f"other work on the same place went on until the deadline: {fault}"
                    raise Fault("timeout", message, fault.failure.detail) from fault
                n_tries += 1
                await asyncio.sleep(wait)

    async def _answer(self, call: Callable[[Sdk], Awaitable[T]]) -> T:
        async def ask() -> T | Fault:
            try:
                async with faults(self.errors, self.secret):
                    return await call(self.sdk)
            except Fault as fault:
                return fault

        # In a task of its own: a call was seen to end in a cancellation that nobody asked for (out
        # of connect_tcp of anyio 4.16, measuring coverage on Python 3.11; not reproduced since, in
        # 12,000 connections). In our task it could not be told from one that somebody did.
        try:
            [answer] = await gather([ask])
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise Fault("transport", GIVEN_UP, "CancelledError") from None
        if isinstance(answer, Fault):
            raise answer
        return answer


@asynccontextmanager
async def faults(errors: tuple[type[Exception], ...], secret: str) -> AsyncGenerator[None]:
    """Let every error of a call come out as a `Fault`."""
    caught: tuple[type[Exception], ...] = (*errors, *_STUMBLES)
    try:
        yield
    except caught as exc:
        fault = fault_of(exc, secret)
        # A chained error would show the key where its text repeats it.
        raise fault from (None if secret and secret in str(exc) else exc)
