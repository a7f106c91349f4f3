"""How many calls may be open at one place and begin within a minute; the others wait their turn."""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict, deque
from collections.abc import Awaitable
from typing import TypeVar

from rath._async.runtime import Runtime, runtime
from rath._core.dataclasses import dataclass

T = TypeVar("T")

WINDOW_SECONDS = 60.0
"""Length of the window in which `Caps.per_minute` counts."""


@dataclass(frozen=True, slots=True)
class Caps:
    """What one caller allows at a place, over the calls of all callers."""

    in_flight: int | None = None
    """A call begins only while fewer than this are open."""

    per_minute: int | None = None
    """A call begins only if fewer than this began in the 60 s before it."""

    goes_first: bool = False
    """The call is let in before all who wait: one that has a place waits for it, and perhaps
    they wait for that place."""


class Gate:
    """Counts the calls at one place, and lets a call with caps begin once they allow it.

    Those who wait begin in the order in which they came, whatever their caps: a small cap is not
    starved by calls with larger ones, which wait behind it in turn.

    Args:
        loop: Tells the time, and is the one loop on which the gate is used.
    """

    __slots__ = ("_in_flight", "_loop", "_now", "_starts", "_timer", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._now = loop.time
        self._in_flight = 0
        self._starts: deque[float] = deque()
        self._waiting: OrderedDict[asyncio.Future[float], Caps] = OrderedDict()
        self._timer: asyncio.TimerHandle | None = None

    def enter_at_once(self, caps: Caps | None = None) -> bool:
        """Begin a call if that needs no waiting, and tell whether it has begun.

        A call without caps always has, and counts for those that have some.
        """
        now = self._now()
        if caps is not None:
            has_turn = caps.goes_first or not self._waiting
            if not has_turn or self._opens_at(caps, now) > now:
                return False
        self._begin(now)
        return True

    async def enter(self, caps: Caps) -> None:
        """Begin a call when `caps` allow it; a cancelled wait ends at once and takes no place."""
        if self.enter_at_once(caps):
            return
        turn: asyncio.Future[float] = self._loop.create_future()
        self._waiting[turn] = caps
        if caps.goes_first:
            self._waiting.move_to_end(turn, last=False)
        self._admit()
        try:
            await turn
        except asyncio.CancelledError:
            self._waiting.pop(turn, None)
            if not turn.cancelled():
                self._take_back(turn.result())
            self._admit()
            raise

    def leave(self) -> None:
        """End a call."""
        self._in_flight -= 1
        if self._waiting:
            self._admit()

    async def give_way(self, waiting: Awaitable[T]) -> T:
        """Return what `waiting` gives; the call that has a place holds none until then.

        A call that awaits what others do must hold no place that they may need. Afterwards it goes
        on at once, since it is open still, and those who come next wait for one more to end.
        """
        self.leave()
        try:
            return await waiting
        finally:
            self._in_flight += 1

    def is_idle(self) -> bool:
        """Tell whether the gate holds nothing that a new one would not know."""
        self._forget(self._now())
        return not (self._in_flight or self._waiting or self._starts)

    def _admit(self) -> None:
        """Let in who may begin now, and see to it that the next one is looked at in time."""
        now = self._now()
        opens = math.inf
        while self._waiting:
            turn, caps = next(iter(self._waiting.items()))
            if not turn.done():
                opens = self._opens_at(caps, now)
                if opens > now:
                    break
                turn.set_result(self._begin(now))
            del self._waiting[turn]
        self._look_again_at(opens if self._waiting else math.inf)

    def _opens_at(self, caps: Caps, now: float) -> float:
        """Return when `caps` allow another call; infinity while that hangs on a call that is open.

        What hangs on both is looked at again when a call ends.
        """
        if caps.in_flight is not None and self._in_flight >= caps.in_flight:
            return math.inf
        if caps.per_minute is not None:
            self._forget(now)
            if len(self._starts) >= caps.per_minute:
                return self._starts[-caps.per_minute] + WINDOW_SECONDS
        return now

    def _begin(self, now: float) -> float:
        if self._starts and self._starts[0] + WINDOW_SECONDS <= now:
            self._forget(now)
        self._starts.append(now)
        self._in_flight += 1
        return now

    def _take_back(self, start: float) -> None:
        """Undo a beginning: the call was let in and cancelled within one step of the loop."""
        self._in_flight -= 1
        if start in self._starts:
            self._starts.remove(start)

    def _forget(self, now: float) -> None:
        starts = self._starts
        while starts and starts[0] + WINDOW_SECONDS <= now:
            starts.popleft()

    def _look_again_at(self, when: float) -> None:
        if self._timer is not None:
            if self._timer.when() == when:
                return
            self._timer.cancel()
            self._timer = None
        if when < math.inf:
            self._timer = self._loop.call_at(when, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        self._admit()


class Limiter:
    """The gates of this process, by key; used on the runtime loop only.

    They belong to the runtime, so a forked child, which has one of its own, starts with none. One
    that nobody has used for a minute is dropped when another is made.
    """

    def __init__(self) -> None:
        self._owner: Runtime | None = None
        self._gates: dict[str, Gate] = {}

    def __len__(self) -> int:
        return len(self._gates)

    def gate(self, key: str) -> Gate:
        """Return the one gate of a place; who wants to pass it must do so in the same step."""
        owner = runtime()
        if self._owner is not owner:
            self._owner, self._gates = owner, {}
        gate = self._gates.get(key)
        if gate is None:
            self._gates = {key: one for key, one in self._gates.items() if not one.is_idle()}
            gate = self._gates[key] = Gate(asyncio.get_running_loop())
        return gate
