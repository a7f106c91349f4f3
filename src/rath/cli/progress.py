"""A bar for long work: on stderr, only where that is a terminal, and gone when the work is done."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

__all__ = ["progress"]


_PAUSE_SECONDS = 0.1


@contextmanager
def progress(what: str) -> Generator[Callable[[int, int], None]]:
    """Show how far a piece of work is.

    The bar appears with the first report, so that work without any shows none.

    Args:
        what: What is being done, such as "reading sessions".

    Yields:
        What to call with the number of things done and of all.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _report_nothing
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    # Drawn by who reports: that needs no thread.
    with Progress(*columns, console=console, transient=True, auto_refresh=False) as bar:
        task = bar.add_task(what, total=None, visible=False)
        drawn = 0.0

        def report(n_done: int, n_all: int) -> None:
            nonlocal drawn
            bar.update(task, completed=n_done, total=n_all, visible=True)
            if n_done == n_all or time.monotonic() - drawn > _PAUSE_SECONDS:
                drawn = time.monotonic()
                bar.refresh()

        yield report


def _report_nothing(n_done: int, n_all: int) -> None:
    del n_done, n_all
