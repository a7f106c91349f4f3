"""Points in the life of a program at which it kills or stops itself: events, never times.

before a line is written into a log, in the middle of it, behind it
before and behind a call of a function that the program counts: a model call, an effect
"""

from __future__ import annotations

import itertools
import signal
import threading
from collections.abc import Callable, Collection
from functools import wraps
from typing import Any

from rath._core.blobs import Blob
from tests.support.api import Log


class FaultPoints:
    """Counts the events of this process, and acts at one of them.

    Args:
        at: At which one, from 1; 0 for none.
        act: What is done there, on the thread that the event is on.
        tears: Whether a line is written in two parts, with an event between them.
    """

    def __init__(self, at: int, act: Callable[[], object], *, tears: bool = True) -> None:
        self._at = at
        self._act = act
        self._tears = tears
        self._numbers = itertools.count(1)
        self.n_events = 0

    def reach(self) -> None:
        """Come to an event."""
        self.n_events = number = next(self._numbers)
        if number == self._at:
            self._act()

    def count_calls(self, owner: Any, name: str) -> None:
        """Take the beginning and the end of each call of a function for events."""
        function = getattr(owner, name)

        @wraps(function)
        def counted(*args: Any, **options: Any) -> Any:
            self.reach()
            result = function(*args, **options)
            self.reach()
            return result

        setattr(owner, name, counted)

    def count_writes(self) -> None:
        """Take what is written into logs, and the ends of these, for events."""
        append, points = Log.append, self

        def write(
            log: Log, data: bytes, *, blobs: Collection[Blob] = (), durable: bool = False
        ) -> None:
            points.reach()
            if points._tears:
                append(log, data[: len(data) // 2], blobs=blobs)
                points.reach()
                data = data[len(data) // 2 :]
            append(log, data, blobs=blobs, durable=durable)
            points.reach()

        Log.append = write  # type: ignore[method-assign,assignment]
        self.count_calls(Log, "finish")


def send_self(number: signal.Signals) -> None:
    """Send this process a signal, which this thread takes at once."""
    signal.pthread_kill(threading.get_ident(), number)
