"""Coroutines at the same time; of the tool calls of a run equal keys in turn, barriers alone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from rath._core.dataclasses import dataclass

T = TypeVar("T")

Key = tuple[str, ...]

StageKeys = Callable[[Sequence[int]], Awaitable[Sequence[Key]]]
"""Gives the keys of jobs, by their indices, at the moment at which their stage starts."""


@dataclass(frozen=True, slots=True)
class LaneCall(Generic[T]):
    """One call of a round."""

    key: Key
    """Calls with equal keys never overlap and run in the order of the round."""

    is_barrier: bool
    """Whether all earlier calls end before it starts, and all later ones wait for it."""

    call: Callable[[], Awaitable[T]]
    """Runs the call; a failure is a value, so it never disturbs another call."""


class Lanes:
    """The lanes of one run; a call that was abandoned holds its lane until it really ends."""

    def __init__(self) -> None:
        self._held: dict[Key, Future[Any]] = {}

    def hold(self, key: Key, until: Future[Any]) -> None:
        """Keep the lane of an abandoned call occupied until its thread comes back."""
        self._held[key] = until

    def is_held(self, key: Key) -> bool:
        """Tell whether an abandoned call still holds the lane; any thread may ask."""
        held = self._held.get(key)
        return held is not None and not held.done()

    async def wait_free(self, key: Key) -> None:
        """Wait until no abandoned call holds the lane; the caller sets the deadline."""
        held = self._held.get(key)
        if held is not None:
            if not held.done():
                await asyncio.shield(_ended(held))
            self._held.pop(key, None)

    async def run(self, jobs: Sequence[LaneCall[T]], *, keys: StageKeys | None = None) -> list[T]:
        """Run a round and return the results in the order of the jobs, whatever ended first.

        Args:
            jobs: The calls of the round.
            keys: Gives the keys of a stage anew; by default those of its jobs.
        """
        results: dict[int, T] = {}
        for stage in _stages(jobs):
            lanes: dict[Key, list[int]] = {}
            stage_keys = [jobs[index].key for index in stage] if keys is None else await keys(stage)
            for index, key in zip(stage, stage_keys, strict=True):
                lanes.setdefault(key, []).append(index)
            async with asyncio.TaskGroup() as group:
                for lane in lanes.values():
                    group.create_task(_run_lane(jobs, lane, results))
        return [results[index] for index in range(len(jobs))]


def _stages(jobs: Sequence[LaneCall[Any]]) -> list[list[int]]:
    """Split a round at its barriers: each stage starts when the one before has ended."""
    stages: list[list[int]] = [[]]
    for index, job in enumerate(jobs):
        if job.is_barrier:
            stages += [[index], []]
        else:
            stages[-1].append(index)
    return [stage for stage in stages if stage]


async def _run_lane(jobs: Sequence[LaneCall[T]], lane: list[int], results: dict[int, T]) -> None:
    for index in lane:
        results[index] = await jobs[index].call()


async def _ended(future: Future[Any]) -> None:
    """Wait until `future` is done, whatever came of it."""
    loop, done = asyncio.get_running_loop(), asyncio.Event()
    future.add_done_callback(lambda _: loop.call_soon_threadsafe(done.set))
    await done.wait()


async def gather(makes: Iterable[Callable[[], Coroutine[Any, Any, T]]]) -> list[T]:
    """Run coroutines at the same time and return their results in the order given.

    Args:
        makes: Each makes one, for which a failure is a value: an error in one ends the others.

    Raises:
        ExceptionGroup: One of them raised.
    """
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(make()) for make in makes]
    return [task.result() for task in tasks]
