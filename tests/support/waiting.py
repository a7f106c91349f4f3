"""Waiting for what another thread or process does, on however busy a machine."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")

PATIENCE = 50.0
"""Seconds: far more than anything takes, and less than the limit of a test."""


def wait_until(holds: Callable[[], bool], what: str = "what is waited for") -> None:
    """Wait until something holds.

    Args:
        holds: Looks; called again and again.
        what: Stands in the message where it never does.
    """
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end, f"after {PATIENCE:.0f} s: {what}"
        time.sleep(0.01)


def wait_until_let_go(holds: Callable[[], bool], what: str = "what was held is let go") -> None:
    """Wait until something holds that follows from the end of an object.

    A thread that made a result may hold it for a moment after others can read it.
    """

    def is_seen() -> bool:
        gc.collect()
        return holds()

    wait_until(is_seen, what)


def at_a_deadline(
    run: Callable[[float], T],
    has_begun: Callable[[T], bool],
    *,
    deadlines: Sequence[float] = (0.3, 3.0, 20.0),
) -> T:
    """Return what ends at its deadline, the first one that came after its beginning.

    Args:
        run: Runs it anew with a deadline in seconds.
        has_begun: Tells from the result whether it had begun by then.
        deadlines: In seconds, each longer than the one before.
    """
    result = run(deadlines[0])
    for deadline in deadlines[1:]:
        if has_begun(result):
            break
        result = run(deadline)
    return result
