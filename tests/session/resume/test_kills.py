"""A program that is killed at any moment goes on as if it had never been, and repeats nothing."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from rath.session import Session
from rath.session.log.verify import verify
from rath.session.record import ToolRun
from tests.support.api import own_operation
from tests.support.crash_zygote import CALLS, PROBLEM, ROWS, Zygote, sessions_of, zygote
from tests.support.lanes import quick_sample
from tests.support.sessions import entries_of

N_KILLS = 200 if os.environ.get("RATH_FULL") else 15
MAX_KILLS = 3
"""Of one program: the first run, and those that go on."""


class Whole(NamedTuple):
    """A run that nobody killed."""

    zygote: Zygote
    seconds: float
    rows: Any
    by_place: dict[tuple[str, int], list[tuple[str, str]]]


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Whole]:
    home = tmp_path_factory.mktemp("whole")
    with zygote() as forked:
        # The first one waits for the imports.
        assert forked.run(tmp_path_factory.mktemp("first"), 0) == 0
        began = time.monotonic()
        assert forked.run(home, 0) == 0, problem(home)
        seconds = time.monotonic() - began
        yield Whole(forked, seconds, json.loads((home / ROWS).read_text()), rows_by_place(home))


def problem(home: Path) -> str:
    path = home / PROBLEM
    return path.read_text() if path.exists() else "it said nothing"


def rows_by_place(home: Path) -> dict[tuple[str, int], list[tuple[str, str]]]:
    """Load every session of a store, and return its rows by the place where it was made."""
    store = sessions_of(home)
    found: dict[tuple[str, int], list[tuple[str, str]]] = {}
    for session_id in store.stamps():
        session = Session.load(session_id, store=store)
        assert verify(store, session_id).is_sound
        made = own_operation(session.record, session.id)
        if made is not None:
            rows = [(row.kind_name, row.digest.hex()) for row in session.chunk_table]
            found[made.place.path, made.place.ordinal] = rows
    return found


def calls_of(home: Path) -> Counter[str]:
    """Return how often each call was made."""
    path = home / CALLS
    return Counter(path.read_text().split()) if path.exists() else Counter()


def recorded_results(home: Path) -> set[str]:
    """Return the calls whose result is in a log."""
    store = sessions_of(home)
    known: set[str] = set()
    for session_id in store.stamps():
        session = Session.load(session_id, store=store)
        runs = entries_of(session, ToolRun)
        left = session.core.body.result().unfinished
        runs += [line.run for line in left.results] if left is not None else []
        known |= {str((run.arguments or {})["key"]) for run in runs if run.status == "done"}
    return known


@pytest.mark.parametrize("seed", quick_sample(range(N_KILLS), n_quick=2))
def test_killed_anywhere_it_ends_the_same(seed: int, complete: Whole, tmp_path: Path) -> None:
    chance = random.Random(seed)
    known: dict[str, int] = {}
    for _ in range(chance.randint(1, MAX_KILLS)):
        kill_after = chance.uniform(0, 1.1 * complete.seconds)
        status = complete.zygote.run(tmp_path, seed, kill_after=kill_after)
        assert status in (0, signal.SIGKILL), problem(tmp_path)
        for place, rows in rows_by_place(tmp_path).items():
            assert rows == complete.by_place[place][: len(rows)]
        made = calls_of(tmp_path)
        known |= {key: made[key] for key in recorded_results(tmp_path) - known.keys()}
    assert complete.zygote.run(tmp_path, seed) == 0, problem(tmp_path)
    assert json.loads((tmp_path / ROWS).read_text()) == complete.rows
    assert rows_by_place(tmp_path) == complete.by_place
    made = calls_of(tmp_path)
    assert {key: made[key] for key in known} == known
