"""Items whose logs other workers write."""

from __future__ import annotations

import asyncio
import shutil
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from rath._async.runtime import runtime
from rath.errors import SessionChanged
from rath.jobs.engine import ItemEvent, JobSpec, WorkItem, job_id
from rath.jobs.worker import ItemRunner
from rath.session.persistence.store import FileStore
from tests.support.job_program import count, counted_items, repeated_calls, team


class Overtaken(FileStore):
    """Has what another worker wrote from the moment on in which a log is created."""

    def __init__(self, folder: Path, written: Path) -> None:
        super().__init__(folder)
        self._folder = folder
        self._written = written

    def create(self, session: UUID) -> Any:
        shutil.copytree(self._written, self._folder, dirs_exist_ok=True)
        return super().create(session)


class NeverFree(FileStore):
    """Says of each log that it was changed meanwhile."""

    def create(self, session: UUID) -> Any:
        raise SessionChanged(session, "changed meanwhile")


def item_in(tmp_path: Path) -> WorkItem:
    (item,) = counted_items(1, tmp_path)
    return WorkItem(uuid4(), 1, item.session())


def spec_of(store: FileStore) -> JobSpec:
    return JobSpec(job=job_id("j"), name="j", workflow=team(), store=store)


def test_what_another_worker_wrote_since_the_last_look_is_served(tmp_path: Path) -> None:
    item = item_in(tmp_path)
    elsewhere = FileStore(tmp_path / "elsewhere")
    team().run(item.session, run=item.run, store=elsewhere).synchronize()
    runner = ItemRunner(spec_of(Overtaken(tmp_path / "store", tmp_path / "elsewhere")))
    event = runtime().run(partial(runner.run, item), label="a test")
    assert (event.status, event.error) == ("done", None)
    assert (count(tmp_path, "effects"), repeated_calls(tmp_path)) == ({"i0": 1}, {})


def test_a_log_that_is_never_free_is_an_error_in_the_end(tmp_path: Path) -> None:
    store = NeverFree(tmp_path / "store")
    item = item_in(tmp_path)
    event = runtime().run(partial(ItemRunner(spec_of(store)).run, item), label="a test")
    assert (event.status, event.error) == ("failed", "SessionChanged: changed meanwhile")


def test_an_input_that_is_not_stored_fails_its_item(tmp_path: Path) -> None:
    runner = ItemRunner(spec_of(FileStore(tmp_path / "store")))
    event = runtime().run(partial(runner.run_stored, uuid4(), 1, uuid4()), label="a test")
    assert event.status == "failed"
    assert "not found" in str(event.error)


def test_an_item_that_is_cancelled_before_it_is_loaded_does_not_run(tmp_path: Path) -> None:
    item, store = item_in(tmp_path), FileStore(tmp_path / "store")
    item.session.save(store=store)
    runner = ItemRunner(spec_of(store))

    async def cancelled() -> ItemEvent:
        attempt = asyncio.ensure_future(runner.run_stored(item.run, 1, item.session.id))
        await asyncio.sleep(0)
        runner.cancel(item.run)
        return await attempt

    event = runtime().run(cancelled, label="a test")
    assert (event.status, event.session, count(tmp_path, "effects")) == ("cancelled", None, {})
