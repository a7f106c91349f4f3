"""An event loop whose clock jumps to the next timer, so that an hour takes no time."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """A loop that starts at second 0 and never waits; work on other threads must not be awaited."""

    def __init__(self) -> None:
        self._now = 0.0
        super().__init__(_JumpingSelector(self))

    def time(self) -> float:
        return self._now

    def jump(self, seconds: float) -> None:
        """Let time go on."""
        self._now += seconds


class _JumpingSelector(selectors.SelectSelector):
    """Looks for events without waiting; where there are none, time goes on to the next timer."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(0)
        if not events:
            if timeout is None:
                raise RuntimeError("nothing is left to happen and something is still awaited")
            self._loop.jump(timeout)
        return events


def run_virtually(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` on a loop of its own with virtual time."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
