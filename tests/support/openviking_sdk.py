"""A double of OpenViking's SDK: each method gives, or raises, what a test queued for it."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

from rath._async.runtime import runtime
from rath.memory import MemoryOp, MemoryResult, get
from rath.memory.adapters.openviking.backend import OpenVikingStore
from rath.memory.adapters.openviking.client import SDK_BUGS, Addresses, VikingClient

KEY = "secret-key-0123456789"


class OpenVikingError(Exception):
    """Named and shaped like the SDK's."""

    def __init__(self, message: str = "said by the server", **details: object) -> None:
        super().__init__(message)
        self.details: Mapping[str, object] = details


def error(name: str, message: str = "said by the server", **details: object) -> OpenVikingError:
    """An error whose class has that name."""
    made: OpenVikingError = type(name, (OpenVikingError,), {})(message, **details)
    return made


NOT_FOUND = "NotFoundError"
FOREVER = "forever"
"""Queued, it lets a call never end."""


class ScriptedSdk:
    """Answers in the order queued; the last answer of a method repeats."""

    def __init__(self, **answers: object) -> None:
        self.calls: list[tuple[str, tuple[object, ...], dict[str, object]]] = []
        self._answers: dict[str, deque[object]] = defaultdict(deque)
        for name, answer in answers.items():
            given = cast("tuple[object, ...]", answer) if isinstance(answer, tuple) else (answer,)
            self.queue(name, *given)

    def queue(self, name: str, *answers: object) -> None:
        self._answers[name].extend(answers)

    def named(self, name: str) -> list[tuple[tuple[object, ...], dict[str, object]]]:
        """Arguments of the calls of one method."""
        return [(args, options) for called, args, options in self.calls if called == name]

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        async def call(*args: object, **options: object) -> Any:
            self.calls.append((name, args, options))
            left = self._answers[name]
            assert left, f"no answer is queued for {name}{args}"
            answer = left[0] if len(left) == 1 else left.popleft()
            if answer == FOREVER:
                await asyncio.Event().wait()
            if isinstance(answer, BaseException):
                raise answer
            return answer

        return call


def dispatch(sdk: ScriptedSdk, op: MemoryOp, *, timeout: float = 5.0) -> MemoryResult:
    """Run one operation of the backend on a scripted SDK, as the user `alice`."""
    return runtime().run(lambda: adispatch(sdk, op, timeout=timeout), label="a test")


async def adispatch(sdk: ScriptedSdk, op: MemoryOp, *, timeout: float = 5.0) -> MemoryResult:
    """Do the same on the loop of the runtime."""
    client = VikingClient(sdk, Addresses("alice"), (OpenVikingError, *SDK_BUGS), KEY)
    return await get("openviking").adispatch(OpenVikingStore(client, timeout), op)
