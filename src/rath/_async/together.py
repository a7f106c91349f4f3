"""Several coroutines side by side."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")

__all__ = ["together"]


async def together(makes: Iterable[Callable[[], Coroutine[Any, Any, T]]]) -> list[T]:
    """Run coroutines at the same time and return their results in the order given.

    Args:
        makes: Each makes one, for which a failure is a value: an error in one ends the others.

    Raises:
        ExceptionGroup: One of them raised.
    """
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(make()) for make in makes]
    return [task.result() for task in tasks]
