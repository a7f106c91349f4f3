"""Who wants to know that a run has ended."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from rath._async.runtime import runtime
from rath.session.replay.stage import current_stage
from rath.session.session import Session

_log = logging.getLogger("rath.session")

_watchers: tuple[Callable[[Session], None], ...] = ()


def on_run_end(call: Callable[[Session], None]) -> Callable[[], None]:
    """Have `call` made with each session whose run ended from now on, on a worker thread.

    What it raises is logged, and disturbs nobody.

    Returns:
        What takes it back.
    """
    global _watchers  # who watches is known to the whole process
    # Something of its own, so that the same function may be given twice and taken back once.
    watcher = partial(call)
    _watchers = (*_watchers, watcher)

    def take_back() -> None:
        global _watchers
        _watchers = tuple(each for each in _watchers if each is not watcher)

    return take_back


def announce_end(session: Session) -> None:
    """Tell those who want to know when the run of `session` has ended; costs nothing if none do."""
    for watcher in () if current_stage() is not None else _watchers:
        start = partial(_start, partial(_tell, watcher, session))
        if not session.body.at_end(start):
            start()


def _start(tell: Callable[[], None]) -> None:
    runtime().promise(runtime().start_in_worker(tell))


def _tell(watcher: Callable[[Session], None], session: Session) -> None:
    try:
        watcher(session)
    except Exception:  # noqa: BLE001  # as a callback: a run must not fail for who watches it
        _log.exception("what watches for the end of runs failed on session %s", session.id)
