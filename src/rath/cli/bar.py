"""A bar of rich, drawn by who reports: that needs no thread."""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

__all__ = ["Bar"]

_PAUSE_SECONDS = 0.1


class Bar:
    """A bar that appears at once, and is gone after `close`.

    Args:
        what: What is being done, such as "reading sessions".
        console: Where it is drawn.
    """

    def __init__(self, what: str, console: Console) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        self._bar = Progress(*columns, console=console, transient=True, auto_refresh=False)
        self._bar.start()
        self._task = self._bar.add_task(what, total=None)
        self._drawn = 0.0

    def report(self, n_done: int, n_all: int) -> None:
        """Draw the bar again, if the last time is long enough ago or the work is done."""
        self._bar.update(self._task, completed=n_done, total=n_all)
        if n_done == n_all or time.monotonic() - self._drawn > _PAUSE_SECONDS:
            self._drawn = time.monotonic()
            self._bar.refresh()

    def close(self) -> None:
        """Take the bar away."""
        self._bar.stop()
