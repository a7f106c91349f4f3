"""Costly work for several who ask in a row is done once."""

from __future__ import annotations

from functools import partial
from threading import Event

from rath.memory.adapters.local.store import Pace


def test_the_first_does_not_wait() -> None:
    done: list[str] = []
    Pace(pause_seconds=1000).ask(partial(done.append, "first"))
    assert done == ["first"]


def test_those_who_follow_share_one_run() -> None:
    done: list[str] = []
    pace = Pace(pause_seconds=1000)
    for name in ("first", "second", "third"):
        pace.ask(partial(done.append, name))
    assert done == ["first"]
    pace.finish()
    assert done == ["first", "second"]


def test_after_the_pause_nobody_waits() -> None:
    done: list[str] = []
    pace = Pace(pause_seconds=0)
    for name in ("first", "second"):
        pace.ask(partial(done.append, name))
    assert done == ["first", "second"]


def test_at_the_end_nobody_is_put_off() -> None:
    done: list[str] = []
    pace = Pace(pause_seconds=1000)
    pace.ask(partial(done.append, "first"))
    pace.finish()
    pace.ask(partial(done.append, "second"))
    assert done == ["first", "second"]


def test_a_pause_ends_by_itself() -> None:
    is_done = Event()
    pace = Pace(pause_seconds=0.01)
    pace.ask(list)
    pace.ask(is_done.set)
    assert is_done.wait(50)
