"""Many sessions in four processes, one of which is killed in the middle."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from rath import flow
from rath.session.persistence.store import FileStore
from tests.support.job_program import (
    CountedItem,
    count,
    counted_items,
    decide_by_what_was_seen,
    lines,
    release,
    repeated_calls,
    team,
)
from tests.support.waiting import wait_until

N_ITEMS = 200 if os.environ.get("RATH_FULL") else 40


@pytest.mark.timeout(180)
@pytest.mark.parametrize("share", [0.1, 0.5, 0.8])
def test_a_kill_in_the_middle_loses_and_repeats_nothing(tmp_path: Path, share: float) -> None:
    held, *others = counted_items(N_ITEMS, tmp_path, seconds=0.05)
    first = CountedItem(held.key, held.folder, "hold")
    job = flow.map(
        team(),
        [first, *others],
        key=lambda item: item.key,
        session=CountedItem.session,
        store=FileStore(tmp_path / "store"),
        engine="procs:4",
        concurrency=16,
    )
    wait_until(lambda: len(lines(tmp_path, "effects")) >= share * N_ITEMS)
    wait_until(lambda: bool(lines(tmp_path, "held")))
    os.kill(int(lines(tmp_path, "held")[0][2]), signal.SIGKILL)
    release(tmp_path)
    job.synchronize()
    decide_by_what_was_seen(job, tmp_path)
    job = job.retry("waiting").synchronize()
    assert job.report().counts == {"done": N_ITEMS}
    assert count(tmp_path, "effects") == {f"i{n}": 1 for n in range(N_ITEMS)}
    # Of an item at most the one call that was cut off is made again; all others were answered.
    again = repeated_calls(tmp_path)
    assert set(again.values()) <= {2}
    assert set(Counter(key for key, _, _ in again).values()) <= {1}
    assert 1 <= len(again) <= 16
