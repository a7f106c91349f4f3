"""The store in memory, and how it fails."""

from __future__ import annotations

from uuid import UUID

import pytest

from rath.errors import PersistenceError
from rath.testing import FakeSessionStore

ID = UUID(int=7)


def test_the_write_that_was_named_fails_and_ends_its_log() -> None:
    store = FakeSessionStore(fail_at=2)
    log, other = store.create(ID), store.create(UUID(int=8))
    log.append(b"1\n")
    with pytest.raises(PersistenceError, match="No space left on device"):
        log.append(b"2\n")
    with pytest.raises(PersistenceError, match="an earlier write failed"):
        log.append(b"3\n")
    with pytest.raises(PersistenceError, match="stays unfinished"):
        log.finish()
    assert log.closed
    other.append(b"1\n")
    other.finish()
    found = store.read(ID)
    assert found is not None
    assert (found.data, found.is_finished) == (b"1\n", False)
    assert store.n_writes == 3


def test_durable_writes_are_counted() -> None:
    store = FakeSessionStore()
    log = store.create(ID)
    log.append(b"1\n", durable=True)
    log.append(b"2\n")
    log.finish()
    store.append_to_finished(ID, 4, b"3\n")
    assert (store.n_writes, store.n_durable) == (3, 2)


def test_what_was_cut_off_is_kept() -> None:
    store = FakeSessionStore()
    log = store.create(ID)
    log.append(b"1\n2\n")
    log.finish()
    store.reopen(ID, 2).abandon()
    assert store.asides == [b"2\n"]


def test_following_waits_and_sees_a_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    store = FakeSessionStore()
    log = store.create(ID)
    log.append(b"1\n")

    def wait(_seconds: float) -> None:
        log.append(b"2\n")
        log.finish()

    monkeypatch.setattr("time.sleep", wait)
    assert list(store.follow(ID, 0)) == [b"1\n", b"2\n"]
    lines = store.follow(ID, 4)
    store.reopen(ID, 2).abandon()
    with pytest.raises(PersistenceError, match="was cut"):
        next(lines)
