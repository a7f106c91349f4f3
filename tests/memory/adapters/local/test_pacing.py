"""Costly work is done once for several who ask; a walk gives way to searches."""

from __future__ import annotations

import errno
import logging
import threading
import time
from pathlib import Path

import pytest

from rath.memory.adapters.local.catalog import Catalog
from rath.memory.adapters.local.pacing import DelayedWork, WalkOver, WalkPace

FOREVER = 1000.0


class Work:
    """Notes what is to be done; fails as long as `error` is set."""

    def __init__(self) -> None:
        self.batches: list[set[str]] = []
        self.is_done = threading.Event()
        self.error: Exception | None = None

    def __call__(self, batch: set[str]) -> None:
        if self.error is not None:
            raise self.error
        self.batches.append(set(batch))
        self.is_done.set()


@pytest.fixture
def work() -> Work:
    """Work that succeeds."""
    return Work()


def test_items_that_come_together_go_together_and_once(work: Work) -> None:
    delayed = DelayedWork(work, delay_seconds=FOREVER)
    for names in ("abc", "d"):
        for name in names:
            delayed.add(name)
        delayed.flush()
    delayed.flush()
    assert work.batches == [set("abc"), {"d"}]


def test_work_is_done_without_being_waited_for(work: Work) -> None:
    DelayedWork(work, delay_seconds=0.0).add("a")
    assert work.is_done.wait(50)
    assert work.batches == [{"a"}]


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), ValueError("unforeseen")])
def test_a_failure_in_the_background_is_logged_and_raised_once(
    work: Work, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    delayed = DelayedWork(work, delay_seconds=FOREVER)
    work.error = error
    delayed.add("a")
    with caplog.at_level(logging.ERROR), pytest.raises(type(error)) as raised:
        delayed.flush()
    assert raised.value is error
    assert str(error) in caplog.text
    work.error = None
    delayed.add("b")
    delayed.flush()
    assert work.batches == [{"b"}]


def test_a_failure_in_the_background_is_raised_by_work_that_is_waited_for(work: Work) -> None:
    delayed = DelayedWork(work, delay_seconds=FOREVER)
    work.error = OSError(errno.ENOSPC, "full")
    delayed.add("a")
    delayed.wait()
    work.error = None
    with pytest.raises(OSError, match="full"):
        delayed.run("b")
    assert work.batches == [{"b"}]


def test_who_waits_does_not_wait_for_items_that_come_later() -> None:
    names = iter("bcdefghij")

    def act(_: set[str]) -> None:
        # Somebody else is always there.
        delayed.add(next(names))

    delayed = DelayedWork(act, delay_seconds=FOREVER)
    delayed.add("a")
    delayed.flush()
    assert next(names) == "c"


def test_closing_a_store_raises_what_may_not_be_on_disk(tmp_path: Path, work: Work) -> None:
    catalog = Catalog(tmp_path, syncing=DelayedWork(work, delay_seconds=FOREVER))
    catalog.change("user", "a.md", lambda: catalog.syncing.add("a"))
    work.error = OSError(errno.ENOSPC, "full")
    with pytest.raises(OSError, match="full"):
        catalog.close()


@pytest.mark.parametrize(
    ("delay", "batches"), [(FOREVER, [{"a"}, {"b", "c"}]), (0.0, [{"a"}, {"b"}, {"c"}])]
)
def test_the_first_item_does_not_wait_and_those_who_follow_share_one_run(
    work: Work, delay: float, batches: list[set[str]]
) -> None:
    delayed = DelayedWork(work, delay_seconds=delay, is_first_at_once=True)
    for name in "abc":
        delayed.add(name)
        assert work.batches[0] == {"a"}
    delayed.flush()
    assert work.batches == batches


def test_after_it_was_waited_for_an_item_is_worked_on_at_once(work: Work) -> None:
    delayed = DelayedWork(work, delay_seconds=FOREVER, is_first_at_once=True)
    delayed.add("a")
    delayed.flush()
    delayed.add("b")
    assert work.batches == [{"a"}, {"b"}]


def test_a_walk_goes_on_for_a_second_after_its_catalog_was_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    pace = WalkPace(threading.RLock())
    pace.breathe()
    pace.close()
    now[0] += 0.9
    pace.breathe()
    now[0] += 0.2
    with pytest.raises(WalkOver):
        pace.breathe()


def test_a_walk_waits_for_a_search_that_goes_on() -> None:
    lock, has_gone_on = threading.RLock(), threading.Event()
    pace = WalkPace(lock)

    def walk() -> None:
        pace.breathe()
        has_gone_on.set()

    with lock:
        walker = threading.Thread(target=walk)
        walker.start()
        assert not has_gone_on.wait(0.05)
    assert has_gone_on.wait(50)
    walker.join()
