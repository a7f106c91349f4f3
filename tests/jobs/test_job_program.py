"""The program by which effects and model calls of jobs are counted."""

from __future__ import annotations

import pickle
import threading
from pathlib import Path
from uuid import uuid4

import pytest

from rath.session import Session
from rath.session.outcome import Completed, NeedsApproval
from rath.session.persistence.store import FileStore
from tests.support.job_program import (
    Behaviour,
    count,
    counted_items,
    lines,
    mend,
    release,
    repeated_calls,
    team,
)
from tests.support.waiting import wait_until


def run(tmp_path: Path, behaviour: Behaviour) -> Session:
    (item,) = counted_items(1, tmp_path, behaviour)
    store = FileStore(tmp_path / "store")
    return team().run(item.session(), run=uuid4(), store=store).synchronize()


def test_each_item_has_one_effect_and_three_calls(tmp_path: Path) -> None:
    out = run(tmp_path, "work")
    assert (out.outcome, out.text()) == (Completed(), "reviewer has seen i0")
    assert (count(tmp_path, "effects"), count(tmp_path, "calls")) == ({"i0": 1}, {"i0": 3})
    assert repeated_calls(tmp_path) == {}


def test_it_travels_by_reference() -> None:
    workflow = team()
    assert type(pickle.loads(pickle.dumps(workflow))) is type(workflow)


def test_an_item_is_held_after_its_effect(tmp_path: Path) -> None:
    thread = threading.Thread(target=run, args=(tmp_path, "hold"))
    thread.start()
    wait_until(lambda: bool(lines(tmp_path, "held")))
    assert count(tmp_path, "effects") == {"i0": 1}
    release(tmp_path)
    thread.join()


def test_an_item_fails_until_it_is_mended(tmp_path: Path) -> None:
    with pytest.raises(ConnectionError, match="no answer for i0"):
        run(tmp_path, "fail")
    mend(tmp_path)
    assert run(tmp_path, "fail").outcome == Completed()


def test_an_item_asks_before_its_effect(tmp_path: Path) -> None:
    assert isinstance(run(tmp_path, "ask").outcome, NeedsApproval)
    assert count(tmp_path, "effects") == {}
