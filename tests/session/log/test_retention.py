"""Deleting and pruning: what goes can come back, and what stays loads as before."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from rath.errors import PersistenceError
from rath.session import Session
from rath.session.chunk import ChunkTable
from rath.session.loading import load
from rath.session.log.format import Encoder
from rath.session.log.retention import prunable_sessions
from rath.session.log.verify import verify
from rath.session.persistence import (
    delete_session,
    ensure_sessions_dir,
    list_persisted_sessions,
    load_session,
    prune_sessions,
    session_file,
    session_partial_file,
)
from rath.session.persistence.store import FileStore, SessionStore, StoredLog, default_store
from rath.session.record import Operation
from tests.support.api import own_operation
from tests.support.session_files import operation
from tests.support.sessions import run
from tests.support.stored_lines import header_for, write, write_lines

WEEK = timedelta(days=7)


def days_ago(days: int) -> datetime:
    return datetime.now(UTC) - timedelta(days=days)


@pytest.fixture
def store(home: Path) -> SessionStore:
    return default_store()


def stored(store: SessionStore, text: str = "a", *, days: int = 0) -> Session:
    """Store a session that was written so many days ago."""
    session = Session.from_user_message(text)
    write(store, session, at=days_ago(days))
    return session


def cut_off(store: SessionStore, *, days: int = 0) -> Session:
    """Store a session whose writer was cut off so many days ago."""
    session = Session(ChunkTable())
    write_lines(store, [header_for(session, at=days_ago(days))], is_finished=False)
    return session


def family(store: SessionStore) -> dict[str, Session]:
    """Store a run, two forks of it, what they became, and their merge."""
    user = Session.from_user_message("go")
    root = run(["hi"], user=user).synchronize()
    one, other = root.fork(), root.fork()
    mine, theirs = run(["a"], user=one).synchronize(), run(["b"], user=other).synchronize()
    merged = mine.merge(theirs).synchronize()
    merged.save(store=store)
    return {
        "user": user,
        "root": root,
        "one": one,
        "other": other,
        "mine": mine,
        "theirs": theirs,
        "merged": merged,
    }


# Deleting.


def test_delete_moves_every_file_of_a_session_and_no_other(store: SessionStore) -> None:
    kept, gone = stored(store, "a"), stored(store, "b")
    session_partial_file(gone.id).write_bytes(b"left\n")
    assert delete_session(gone.id)
    files = [file.name for file in ensure_sessions_dir().iterdir() if file.is_file()]
    assert files == [f"{kept.id}.jsonl"]


def test_deleted_session_can_be_brought_back(store: SessionStore) -> None:
    session = stored(store, "b")
    delete_session(session.id)
    assert [meta.id for meta in list_persisted_sessions()] == []
    assert store.restore(session.id)
    assert load_session(session.id).chunk_table == session.chunk_table


def test_delete_again_finds_nothing(store: SessionStore) -> None:
    session = stored(store)
    assert delete_session(str(session.id))
    assert not delete_session(session.id)


def test_delete_of_a_path_leaves_the_store_alone(store: SessionStore, tmp_path: Path) -> None:
    session, path = stored(store), tmp_path / "f.jsonl"
    shutil.copy(session_file(session.id), path)
    assert delete_session(session.id, path=path)
    assert not path.exists()
    assert session_file(session.id).exists()


def test_delete_refuses_what_is_being_written(store: SessionStore) -> None:
    session = stored(store)
    log = store.create(uuid4())
    log.append(b"x\n")
    with pytest.raises(PersistenceError, match="is being written"):
        delete_session(log.session)
    log.abandon()
    assert delete_session(session.id)


@pytest.mark.parametrize("name", ["user", "root", "one", "other", "mine", "theirs"])
def test_what_came_from_a_deleted_session_loads_as_before(store: SessionStore, name: str) -> None:
    made = family(store)
    assert delete_session(made[name].id)
    for other, session in made.items():
        if other == name:
            continue
        loaded = load(store, session.id).session
        assert [(row, row.id) for row in loaded.chunk_table] == [
            (row, row.id) for row in session.chunk_table
        ]
        assert loaded.record == session.record
        assert loaded.cumulative_usage == session.cumulative_usage
        merge, known = (own_operation(each.record, each.id) for each in (loaded, session))
        if other == "merged":
            assert isinstance(merge, Operation)
            assert isinstance(known, Operation)
            assert merge.theirs == known.theirs
        problems = verify(store, session.id).problems
        assert {(each.severity, each.kind) for each in problems} <= {("missing", "parent")}


def test_all_that_a_session_came_from_may_go_one_after_the_other(store: SessionStore) -> None:
    made = family(store)
    merged = made.pop("merged")
    for session in made.values():
        assert delete_session(session.id)
    loaded = load(store, merged.id).session
    assert loaded.chunk_table == merged.chunk_table
    assert loaded.record == merged.record
    assert [edge.body for edge in loaded.provenance.parents] == [None, None]


def test_a_child_that_was_cut_off_stays_one_that_was_cut_off(store: SessionStore) -> None:
    parent = stored(store, "go")
    child = parent.fork()
    write_lines(store, [header_for(child, parent)], is_finished=False)
    assert delete_session(parent.id)
    loaded = load(store, child.id)
    assert (loaded.is_finished, len(loaded.session.chunk_table)) == (False, 1)


def test_a_child_that_is_being_written_keeps_its_parent(store: SessionStore) -> None:
    parent = stored(store, "go")
    child = parent.fork()
    log = store.create(child.id)
    log.append(Encoder(child.id).add(header_for(child, parent)).data)
    with pytest.raises(PersistenceError, match=f"session {child.id} begins with what"):
        delete_session(parent.id)
    log.abandon()
    assert load(store, parent.id).session.id == parent.id


def test_a_child_that_is_begun_meanwhile_keeps_its_parent(store: SessionStore) -> None:
    parent = stored(store, "go")
    child = parent.fork()

    class Busy(FileStore):
        """Somebody stores a child after the children were looked for."""

        def delete(self, session: UUID) -> bool:
            write(store, child, parent)
            return super().delete(session)

    with pytest.raises(PersistenceError, match=f"is kept: session {child.id} was begun meanwhile"):
        delete_session(parent.id, store=Busy())
    assert load(store, child.id).session.chunk_table == parent.chunk_table
    assert delete_session(parent.id)
    assert load(store, child.id).session.chunk_table == parent.chunk_table


def test_entries_that_came_late_to_a_child_stay_late(store: SessionStore) -> None:
    parent = stored(store, "go")
    child = parent.fork()
    child.add_entry(operation(kind="check"))
    write(store, child, parent)
    delete_session(parent.id)
    loaded = load(store, child.id)
    assert loaded.session.record == child.record
    assert loaded.unfinished is None


def test_a_store_without_a_way_to_replace_a_log_at_once_writes_it_anew(home: Path) -> None:
    class Plain(FileStore):
        rewrite = SessionStore.rewrite

    store = Plain()
    parent = stored(store, "go")
    child, other = parent.fork(), parent.fork()
    write(store, child, parent)
    write_lines(store, [header_for(other, parent)], is_finished=False)
    assert delete_session(parent.id, store=store)
    assert [load(store, each.id).is_finished for each in (child, other)] == [True, False]
    assert len(load(store, other.id).session.chunk_table) == 1


def test_what_is_deleted_by_somebody_else_meanwhile_is_no_error(store: SessionStore) -> None:
    parent = stored(store, "go")
    child = parent.fork()
    write(store, child, parent)

    class Late(FileStore):
        """Its listing still names the child, which goes while it is looked at."""

        n_reads = 0

        def read(self, session: UUID) -> StoredLog | None:
            self.n_reads += session == child.id
            return None if self.n_reads > 1 else super().read(session)

    assert delete_session(parent.id, store=Late())


def test_listing_that_names_what_is_gone_is_no_error(store: SessionStore) -> None:
    session = stored(store, days=8)

    class Late(FileStore):
        def stamps(self) -> Mapping[UUID, str]:
            return {**super().stamps(), uuid4(): "gone"}

        def delete(self, session: UUID) -> bool:
            super().delete(session)
            return False

    late = Late()
    assert prunable_sessions(older_than=WEEK, store=late) == [session.id]
    assert delete_session(stored(store).id, store=late) is False
    assert prune_sessions(older_than=WEEK, store=late) == []


# Pruning.


def test_prune_moves_what_was_last_written_long_ago(store: SessionStore) -> None:
    old, new = stored(store, days=8), stored(store, days=6)
    assert prunable_sessions(older_than=WEEK) == [old.id]
    assert prune_sessions(older_than=WEEK) == [old.id]
    assert [meta.id for meta in list_persisted_sessions()] == [new.id]
    assert store.restore(old.id)


def test_a_late_entry_is_a_use(store: SessionStore) -> None:
    session = Session.from_user_message("a")
    session.add_entry(operation(kind="check"))
    write(store, session, at=days_ago(8))
    assert prunable_sessions(older_than=WEEK) == []


def test_time_of_the_directory_and_of_files_says_nothing(store: SessionStore) -> None:
    session = stored(store)
    long_ago = days_ago(100).timestamp()
    for path in (session_file(session.id), session_file(session.id).parent):
        os.utime(path, (long_ago, long_ago))
    assert prunable_sessions(older_than=WEEK) == []


def test_prune_keeps_all_that_what_is_kept_came_from(store: SessionStore) -> None:
    root, unrelated = stored(store, "go", days=30), stored(store, days=30)
    child = root.fork()
    write(store, child, root, at=days_ago(20))
    grandchild = child.fork()
    write(store, grandchild, child, at=days_ago(1))
    assert prune_sessions(older_than=WEEK) == [unrelated.id]
    assert load(store, grandchild.id).session.chunk_table == root.chunk_table


def test_prune_moves_children_before_their_parents(store: SessionStore) -> None:
    root = stored(store, "go", days=30)
    child = Session(ChunkTable(), parent_session_ids=(root.id,))
    write(store, child, at=days_ago(20))
    assert prune_sessions(older_than=WEEK) == [child.id, root.id]


def test_prune_keeps_what_is_being_written_and_what_it_came_from(store: SessionStore) -> None:
    root = stored(store, days=30)
    child = cut_off(store, days=20)
    log = store.reopen(child.id, len(store.read(child.id).data))  # type: ignore[union-attr]
    assert prune_sessions(older_than=WEEK) == [root.id]
    log.abandon()
    assert prune_sessions(older_than=WEEK) == [child.id]


def test_prune_keeps_what_it_cannot_believe_and_says_so(
    store: SessionStore, caplog: pytest.LogCaptureFixture
) -> None:
    damaged, child = stored(store, "go", days=30), stored(store, days=30)
    path = session_file(damaged.id)
    path.write_bytes(path.read_bytes().replace(b"go", b"no"))
    (ensure_sessions_dir() / f"{uuid4()}.jsonl").write_bytes(b"x\n")
    with caplog.at_level(logging.WARNING):
        assert prune_sessions(older_than=timedelta()) == [child.id]
    assert "kept" in caplog.text


def test_what_was_in_the_trash_goes_with_the_next_prune(store: SessionStore) -> None:
    old = stored(store, days=8)
    prune_sessions(older_than=WEEK)
    prune_sessions(older_than=WEEK)
    assert not store.restore(old.id)


def test_a_session_that_cannot_be_moved_is_kept_and_told(
    store: SessionStore, caplog: pytest.LogCaptureFixture
) -> None:
    class Stubborn(FileStore):
        def delete(self, session: UUID) -> bool:
            raise PersistenceError("read-only")

    stored(store, days=8)
    assert prune_sessions(older_than=WEEK, store=Stubborn()) == []
    assert "is kept: read-only" in caplog.text


def test_a_session_that_comes_from_an_old_one_meanwhile_keeps_it(store: SessionStore) -> None:
    root = stored(store, "go", days=30)

    class Busy(FileStore):
        """Somebody stores a child while the logs are looked at."""

        is_done = False

        def stamps(self) -> Mapping[UUID, str]:
            found = super().stamps()
            if not self.is_done:
                self.is_done = True
                write(store, root.fork(), root)
            return found

    assert prune_sessions(older_than=WEEK, store=Busy()) == []


def test_prune_of_a_home_without_sessions_makes_nothing(home: Path) -> None:
    assert prune_sessions(older_than=timedelta()) == []
    assert not home.exists()
