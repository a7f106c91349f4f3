"""Coroutines side by side."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from rath._async.lanes import gather


def test_results_stand_in_the_order_given_whatever_ended_first() -> None:
    async def run() -> list[str]:
        gate = asyncio.Event()

        async def first() -> str:
            await gate.wait()
            return "first"

        async def second() -> str:
            gate.set()
            return "second"

        return await gather([first, second])

    assert asyncio.run(run()) == ["first", "second"]


def test_nothing_gives_nothing() -> None:
    none: list[Callable[[], Coroutine[Any, Any, int]]] = []
    assert asyncio.run(gather(none)) == []


def test_an_error_in_one_ends_the_others() -> None:
    ended: list[bool] = []

    async def fail() -> None:
        raise LookupError("gone")

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    with pytest.raises(ExceptionGroup) as raised:
        asyncio.run(gather([wait, fail]))
    assert ended == [True]
    assert isinstance(raised.value.exceptions[0], LookupError)
