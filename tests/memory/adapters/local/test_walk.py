"""A walk gives way to searches, and is not cut off by a program that ends soon."""

from __future__ import annotations

import threading
import time

import pytest

from rath.memory.adapters.local.walk import WalkPace


def test_a_walk_goes_on_for_a_second_after_its_catalog_was_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    pace = WalkPace(threading.RLock())
    assert not pace.is_to_end()
    pace.close()
    now[0] += 0.9
    assert not pace.is_to_end()
    now[0] += 0.2
    assert pace.is_to_end()


def test_a_walk_waits_for_a_search_that_goes_on() -> None:
    lock, has_gone_on = threading.RLock(), threading.Event()
    pace = WalkPace(lock)

    def walk() -> None:
        pace.is_to_end()
        has_gone_on.set()

    with lock:
        walker = threading.Thread(target=walk)
        walker.start()
        assert not has_gone_on.wait(0.05)
    assert has_gone_on.wait(50)
    walker.join()
