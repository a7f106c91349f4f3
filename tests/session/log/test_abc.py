"""What a store need not write itself, and the store of the tests that fails."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from rath.errors import PersistenceError
from rath.session.persistence.store import FileStore
from tests.support.failing_store import FailingStore

ID = UUID(int=7)


@pytest.fixture
def store(tmp_path: Path) -> FailingStore:
    return FailingStore(FileStore(tmp_path))


def write(store: FailingStore, *, is_finished: bool) -> None:
    log = store.create(ID)
    log.append(b"1\n2\n")
    if is_finished:
        log.finish()
    log.abandon()


@pytest.mark.parametrize("is_finished", [True, False])
def test_a_log_is_written_anew_and_stands_as_before(store: FailingStore, is_finished: bool) -> None:
    write(store, is_finished=is_finished)
    store.rewrite(ID, b"3\n", size=4)
    found = store.read(ID)
    assert found is not None
    assert (found.data, found.is_finished) == (b"3\n", is_finished)
    assert not store.is_being_written(ID)
    assert store.holds(ID)


def test_a_write_that_fails_keeps_what_was_there_aside(store: FailingStore, tmp_path: Path) -> None:
    write(store, is_finished=True)
    store.fail_at = store.n_writes + 2
    with pytest.raises(PersistenceError, match="No space left"):
        store.rewrite(ID, b"3\n", size=4)
    assert (tmp_path / f"{ID}.jsonl.__partial__.1").read_bytes() == b"1\n2\n"
    assert not store.holds(ID)
    assert not store.is_being_written(ID)
    store.close()


def test_a_disk_stays_full_or_is_freed(store: FailingStore) -> None:
    store.fail_at, store.torn = 2, 1
    log = store.create(ID)
    with pytest.raises(PersistenceError, match="No space left"):
        log.append(b"1\n")
    with pytest.raises(PersistenceError, match="No space left"):
        log.finish()
    found = store.read(ID)
    assert found is not None
    assert found.data == b"1"
    store.reopen(ID, 0).abandon()
    store.heals = False
    with pytest.raises(PersistenceError, match="No space left"):
        store.create(ID)
