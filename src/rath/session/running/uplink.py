"""From a run to the run that it happens in: what a sub-agent does is known to its caller."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass

from rath.session.record import Entry


@dataclass(slots=True, eq=False)
class InnerLog:
    """The log of a run inside another run, which has its entries before the log of the other."""

    flush: Callable[[], Future[None]]
    """Hands over to this log what its run has noted; returns the end of that write, or its failure.
    """

    on_write: Callable[[], None] | None = None
    """Called once, on the runtime thread, when the next lines have been handed over."""


Sink = Callable[[Entry, InnerLog | None], None]
"""Takes an entry, and the log that has to have it first; None where there is none."""

_above: contextvars.ContextVar[Sink | None] = contextvars.ContextVar("rath_uplink", default=None)


def uplink() -> Sink:
    """Return the sink of the run inside which the current code runs; one that drops, if none.

    A sink is called on the runtime thread.
    """
    return _above.get() or _drop


def is_inside_run() -> bool:
    """Tell whether the current code runs inside a run that wants to know of others in it."""
    return _above.get() is not None


@contextmanager
def collecting(sink: Sink) -> Generator[None]:
    """Let `sink` have the entries of every run that is submitted inside."""
    token = _above.set(sink)
    try:
        yield
    finally:
        _above.reset(token)


def _drop(_: Entry, __: InnerLog | None) -> None:
    return
