"""IPython extension: `%load_ext rath` shows the runs of a cell while it waits for them.

Sessions, workflows, jobs, profiles and reports are shown by IPython without it.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Protocol

from rath._async.runtime import runtime
from rath._core import html
from rath._core.text import one_line_preview, short_id
from rath.session import Session
from rath.session.loop import on_run_submit

__all__ = ["load_ipython_extension", "unload_ipython_extension"]

SECONDS = 0.5
"""Between two pictures of the runs of a cell."""

MAX_RUNS = 12
"""Runs that are shown, the last ones."""

MAX_CHARS = 90
"""Characters of what a run last said."""


class ShellEvents(Protocol):
    """The events of an IPython shell."""

    def register(self, event: str, function: Callable[..., object]) -> None: ...
    def unregister(self, event: str, function: Callable[..., object]) -> None: ...


class Shell(Protocol):
    """What is used of an IPython shell."""

    events: ShellEvents


class Display(Protocol):
    """What IPython gives for something that is shown and changes."""

    def update(self, picture: object, /) -> None: ...


class LiveRuns:
    """The runs that were submitted in a cell, shown as long as they go on.

    Args:
        show: Shows something that changes, as `IPython.display.display(..., display_id=True)`.
        seconds: Between two pictures.
    """

    def __init__(self, show: Callable[[object], Display], *, seconds: float = SECONDS) -> None:
        self._show = show
        self._seconds = seconds
        self._sessions: list[Session] = []
        self._end = threading.Event()
        self._drawing: Future[None] | None = None
        self._take_back: Callable[[], None] = lambda: None

    def begin(self, _cell: object = None) -> None:
        """Show the runs that are submitted from now on."""
        self.end()  # where this cell runs inside another one, as with `%run`
        self._drawing = None
        self._end = threading.Event()
        self._take_back = on_run_submit(self._add)

    def end(self, _cell: object = None) -> None:
        """Show no more runs, and wait for the last picture, which shows all of them as they are."""
        self._take_back()
        self._end.set()
        drawing = self._drawing
        if drawing is not None:
            drawing.result()
        self._sessions = []

    def _add(self, session: Session) -> None:
        self._sessions.append(session)
        if self._drawing is None:
            self._drawing = runtime().start_in_worker(self._draw)

    def _draw(self) -> None:
        """Draw again and again until the cell ends; a cell that waits for nothing shows nothing."""
        display: Display | None = None
        while not self._end.wait(self._seconds):
            if display is None:
                display = self._show(Picture(self.picture()))
            else:
                display.update(Picture(self.picture()))
        if display is not None:
            display.update(Picture(self.picture()))

    def picture(self) -> str:
        """Return the runs as HTML: how each stands, its rows, and what was said last."""
        sessions = self._sessions[-MAX_RUNS:]
        n_pending = sum(each.is_pending for each in self._sessions)
        n_runs = len(self._sessions)
        title = html.facts(f"{n_runs} run{'' if n_runs == 1 else 's'}", [f"{n_pending} pending"])
        head = ("session", "state", "rows", "last")
        return title + html.table(head, map(_cells, sessions))


class Picture:
    """HTML that IPython shows.

    Args:
        text: The HTML.
    """

    def __init__(self, text: str) -> None:
        self._text = text

    def _repr_html_(self) -> str:
        return self._text


def _cells(session: Session) -> tuple[str, str, str, str]:
    table = session.partial_table
    texts = [row.payload.get("content") for row in table]
    last = next((each for each in reversed(texts) if isinstance(each, str) and each), "")
    if session.is_pending:
        state = "pending"
    elif session.core.body.error(is_read=False) is not None:
        state = "failed"
    else:
        state = type(session.outcome).__name__
    return short_id(session.id), state, str(len(table)), one_line_preview(last, MAX_CHARS)


_loaded: dict[int, LiveRuns] = {}
"""What shows the runs of a shell, by the id of that."""


def load_ipython_extension(shell: Shell) -> None:
    """Show the runs of each cell of a shell while it waits; `%load_ext rath` calls it."""
    # What is loaded by IPython has it; no program needs it.
    display: Callable[..., Display] = importlib.import_module("IPython.display").display
    unload_ipython_extension(shell)
    runs = _loaded[id(shell)] = LiveRuns(partial(display, display_id=True))
    shell.events.register("pre_run_cell", runs.begin)
    shell.events.register("post_run_cell", runs.end)


def unload_ipython_extension(shell: Shell) -> None:
    """Show runs no more; `%unload_ext rath` calls it."""
    runs = _loaded.pop(id(shell), None)
    if runs is not None:
        shell.events.unregister("pre_run_cell", runs.begin)
        shell.events.unregister("post_run_cell", runs.end)
        runs.end()
