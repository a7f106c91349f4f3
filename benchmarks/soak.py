"""Sessions that run again and again for many minutes: what the process holds must not grow.

`python -m benchmarks.soak --minutes 30 --sessions 1000` prints a line each minute. A session runs
with tools, streams, is stored, is cancelled in the middle, or meets connections that are cut.
The exit status is 1 when memory, descriptors or threads grow after the first quarter, or when a
run fails for which no fault was made.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import combinations

from benchmarks.by_hand import add_tool
from benchmarks.endpoint import Endpoint, serve
from benchmarks.machine import status_of
from benchmarks.ours import AddTool, provider
from rath.errors import ProviderError
from rath.flow import Agent
from rath.session import Session

_SAMPLE_SECONDS = 10.0
_WARM_UP = 0.25
"""The part of the time after which nothing may grow any more; a guess."""

_FEWEST_SAMPLES = 20
"""Below this nothing is said of growth, since threads and connections come and go; a guess."""

_CANCEL_SECONDS = 0.05
_MAX_SHOWN = 5
_BLOCKS = "Blocks"
"""What Python has allocated and not freed, of any size, right after a garbage collection."""

_LIMITS = {
    _BLOCKS: (0.05, 20_000),
    "VmRSS": (0.15, 16 * 1024),
    "Descriptors": (0.05, 16),
    "Threads": (0.05, 4),
}
"""How far each may rise over the rest of the time: a share of its median, or so much if that is
more. Guesses: what pools of connections need to breathe, and allocators, whose memory is as large
as its fullest moment was, and in pieces; what is really held are the blocks."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One way in which sessions run."""

    path: str
    """Of the fake server."""
    streams: bool = False
    persists: bool = False
    is_cancelled: bool = False
    has_faults: bool = False


_KINDS = {
    "plain": Kind("reply"),
    "tools": Kind("tools-3"),
    "many calls": Kind("tools-1x8"),
    "streamed": Kind("stream-50", streams=True),
    "stored": Kind("tools-2", persists=True),
    "cancelled": Kind("delay-1000ms", is_cancelled=True),
    "slow": Kind("delay-300ms"),
    "cut": Kind("tools-3-cut-10", has_faults=True),
}


@dataclass(slots=True)
class Tally:
    """The runs so far."""

    ended: Counter[str] = field(default_factory=Counter[str])
    failed: Counter[str] = field(default_factory=Counter[str])
    """By the class of the error; those that a fault explains too."""
    unexplained: list[str] = field(default_factory=list[str])


@dataclass(frozen=True, slots=True)
class Holding:
    """What the process held at a time."""

    at: float
    """Seconds."""
    figures: dict[str, int]


def growth(samples: Sequence[tuple[float, float]]) -> float:
    """Return by how much a quantity rises from the first time to the last: the median slope.

    Theil and Sen: a third of the samples may be anything at all.
    """
    slopes = [
        (later - value) / (end - start)
        for (start, value), (end, later) in combinations(samples, 2)
        if end > start
    ]
    return statistics.median(slopes) * (samples[-1][0] - samples[0][0]) if slopes else 0.0


def grown(holdings: Sequence[Holding]) -> list[str]:
    """Return a text for each quantity that rises more than it may, after the warm-up.

    A soak of less than two minutes or so is too short to tell.
    """
    first, last = holdings[0].at, holdings[-1].at
    settled = [each for each in holdings if each.at >= first + (last - first) * _WARM_UP]
    if len(settled) < _FEWEST_SAMPLES:
        return []
    texts: list[str] = []
    for name, (share, least) in _LIMITS.items():
        values = [(each.at, float(each.figures[name])) for each in settled]
        typical = statistics.median(value for _, value in values)
        rise = growth(values)
        # A steady rise is twice the distance of the quartiles; pools that fill and empty are less.
        low, _, high = statistics.quantiles([value for _, value in values], n=4)
        if rise > max(share * typical, least, high - low):
            texts.append(f"{name} grew by {rise:.0f} from about {typical:.0f}")
    return texts


async def soak(endpoint: Endpoint, *, seconds: float, n_sessions: int) -> int:
    """Run sessions for so long, print a line each minute, and return the exit status."""
    start, tally, holdings = time.monotonic(), Tally(), list[Holding]()
    with ExitStack() as stack:
        agents = {
            name: stack.enter_context(_open_agent(endpoint, kind)) for name, kind in _KINDS.items()
        }
        async with asyncio.TaskGroup() as group:
            for slot in range(n_sessions):
                group.create_task(_run_again(agents, slot, start + seconds, tally))
            await _watch(endpoint, start, seconds, tally, holdings)
    found = [*grown(holdings), *tally.unexplained[:_MAX_SHOWN]]
    for text in found:
        print(text)
    print(f"{sum(tally.ended.values())} runs: {_counts(tally.ended)}; failed: "
          f"{_counts(tally.failed) or 'none'}")  # fmt: skip
    return 1 if found else 0


async def _watch(
    endpoint: Endpoint, start: float, seconds: float, tally: Tally, holdings: list[Holding]
) -> None:
    minutes = 0
    print(
        "minute    calls     runs   errors  1000 blocks   RSS MB  descriptors  threads", flush=True
    )
    while (passed := time.monotonic() - start) < seconds:
        gc.collect()
        held = {_BLOCKS: sys.getallocatedblocks(), **status_of()}
        holdings.append(Holding(passed, held))
        if passed >= 60 * (minutes + 1):
            minutes += 1
            await _print_minute(endpoint, minutes, tally, holdings[-1])
        await asyncio.sleep(_SAMPLE_SECONDS)
    await _print_minute(endpoint, minutes + 1, tally, holdings[-1])


async def _print_minute(endpoint: Endpoint, minute: int, tally: Tally, held: Holding) -> None:
    calls = await asyncio.to_thread(endpoint.count_requests)
    figures = held.figures
    print(
        f"{minute:6} {calls:8} {sum(tally.ended.values()):8} {sum(tally.failed.values()):8} "
        f"{figures[_BLOCKS] / 1000:12.0f} {figures['VmRSS'] / 1024:8.1f} "
        f"{figures['Descriptors']:12} {figures['Threads']:8}",
        flush=True,
    )


async def _run_again(agents: dict[str, Agent], slot: int, end: float, tally: Tally) -> None:
    """Run one session after another, of each kind in turn, until the time is over."""
    names = list(_KINDS)
    while time.monotonic() < end:
        name = names[slot % len(names)]
        slot += 1
        try:
            await _run(agents[name], _KINDS[name])
        except Exception as error:  # noqa: BLE001  # any error is counted, and the soak goes on
            tally.failed[type(error).__name__] += 1
            if not (_KINDS[name].has_faults and isinstance(error, ProviderError)):
                tally.unexplained.append(f"{name}: {error!r}")
        tally.ended[name] += 1


async def _run(agent: Agent, kind: Kind) -> None:
    session = agent(Session.from_user_message(add_tool.QUESTION))
    if kind.is_cancelled:
        await asyncio.sleep(_CANCEL_SECONDS)
        session.cancel()
    await session
    if not kind.is_cancelled and not session.text():
        raise AssertionError(f"a run ended with {session.outcome!r}")


def _open_agent(endpoint: Endpoint, kind: Kind) -> Agent:
    return Agent(
        add_tool.SYSTEM,
        provider(endpoint.url(kind.path)),
        [AddTool()],
        system_tools=False,
        persist=kind.persists,
        on_event=(lambda _: None) if kind.streams else None,
    )


def _counts(counter: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counter.most_common())


def main() -> int:
    """Run the soak of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.soak",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--sessions", type=int, default=1000, help="that run at once")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rath-soak-") as home, serve() as endpoint:
        os.environ.update(OPENRATH_HOME=home, NO_PROXY="127.0.0.1")
        return asyncio.run(
            soak(endpoint, seconds=60 * options.minutes, n_sessions=options.sessions)
        )


if __name__ == "__main__":
    sys.exit(main())
