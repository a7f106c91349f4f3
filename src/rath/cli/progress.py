"""A bar for long work: on stderr, only where that is a terminal, and gone when the work is done."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from rich.console import Console

if TYPE_CHECKING:
    from rath.cli.bar import Bar

__all__ = ["progress"]


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
    with ExitStack() as ending:
        bar: Bar | None = None

        def report(n_done: int, n_all: int) -> None:
            nonlocal bar
            shown = bar
            if shown is None:
                shown = bar = _begun(what, console)
                ending.callback(shown.close)
            shown.report(n_done, n_all)

        yield report


def _begun(what: str, console: Console) -> Bar:
    # Most work is done before there is anything to report, and needs no bar loaded.
    bar: Bar = importlib.import_module("rath.cli.bar").Bar(what, console)
    return bar


def _report_nothing(n_done: int, n_all: int) -> None:
    del n_done, n_all
