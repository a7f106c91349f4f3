"""Deleting and pruning, and checking what is stored."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from msgspec import structs

from rath._core.blobs import Blob
from rath.errors import PersistenceError, SessionBusy
from rath.llm.chat_response import RathLLMTokenUsage
from rath.session import Session
from rath.session.chunk import ChunkTable
from rath.session.events import Finished, PendingResult
from rath.session.loading import load
from rath.session.log.format import Encoder
from rath.session.log.verify import Verification, verify
from rath.session.persistence import (
    delete_session,
    ensure_sessions_dir,
    prune_sessions,
    session_file,
)
from rath.session.persistence.store import FileStore, SessionStore, StoredLog, default_store
from rath.session.record import Operation
from tests.support.api import own_operation
from tests.support.images import picture
from tests.support.session_files import created, operation, tool_run, with_record
from tests.support.sessions import run
from tests.support.store_lines import header_for, lines_for, write, write_lines

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


def test_delete_of_a_path_leaves_the_store_alone(store: SessionStore, tmp_path: Path) -> None:
    session, path = stored(store), tmp_path / "f.jsonl"
    shutil.copy(session_file(session.id), path)
    assert delete_session(session.id, path=path)
    assert not path.exists()
    assert session_file(session.id).exists()
    log = store.reopen(session.id, 0)
    log.append(b"x\n")
    with pytest.raises(SessionBusy, match=r"is being written by .*; wait for its run to end"):
        delete_session(session.id)
    log.abandon()
    assert delete_session(str(session.id))
    assert not delete_session(session.id)


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


class Plain(FileStore):
    """A store without a way to replace a log at once."""

    rewrite = SessionStore.rewrite


@pytest.mark.parametrize("make", [FileStore, Plain])
def test_children_of_a_deleted_session_stand_as_before(
    home: Path, make: Callable[[], SessionStore]
) -> None:
    store = make()
    parent = stored(store, "go")
    finished, cut, late = parent.fork(), parent.fork(), parent.fork()
    late.add_entry(operation(kind="check"))
    write(store, finished, parent)
    write(store, late, parent)
    write_lines(store, [header_for(cut, parent)], is_finished=False)
    assert delete_session(parent.id, store=store)
    found = [load(store, each.id) for each in (finished, late, cut)]
    assert [each.is_finished for each in found] == [True, True, False]
    assert [len(each.session.chunk_table) for each in found] == [1, 1, 1]
    assert (found[1].session.record, found[1].unfinished) == (late.record, None)


def test_a_child_that_is_being_written_keeps_its_parent(store: SessionStore) -> None:
    parent = stored(store, "go")
    child = parent.fork()
    log = store.create(child.id)
    log.append(Encoder(child.id).add(header_for(child, parent)).data)
    with pytest.raises(SessionBusy, match=f"session {child.id} .* begins with what"):
        delete_session(parent.id)
    log.abandon()
    assert load(store, parent.id).session.id == parent.id


def test_a_child_that_is_started_meanwhile_keeps_its_parent(store: SessionStore) -> None:
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


# Pruning.


def test_prune_keeps_the_ancestors_of_a_session_that_stays(store: SessionStore) -> None:
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


def test_prune_keeps_what_is_damaged(store: SessionStore, caplog: pytest.LogCaptureFixture) -> None:
    damaged, child = stored(store, "go", days=30), stored(store, days=30)
    path = session_file(damaged.id)
    path.write_bytes(path.read_bytes().replace(b"go", b"no"))
    (ensure_sessions_dir() / f"{uuid4()}.jsonl").write_bytes(b"x\n")
    with caplog.at_level(logging.WARNING):
        assert prune_sessions(older_than=timedelta()) == [child.id]
    assert "kept" in caplog.text


def test_prune_keeps_a_session_that_cannot_be_moved(
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


@pytest.fixture
def verify_store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "sessions")


def found(verified: Verification) -> list[tuple[str, str]]:
    return [(problem.severity, problem.kind) for problem in verified.problems]


def test_what_was_stored_is_sound(verify_store: FileStore) -> None:
    session = run(["hi"], user=Session.from_user_message("go", images=[picture(b"cat")]))
    session.save(store=verify_store)
    verified = verify(verify_store, session.id)
    assert (verified.problems, verified.is_sound, verified.worst) == ((), True, None)
    assert (verified.n_sessions, verified.n_blobs) == (3, 1)
    assert verified.n_lines == sum(
        path.read_bytes().count(b"\n") for path in verify_store.directory.glob("*.jsonl")
    )


def test_content_that_is_gone_or_another_is_missing(verify_store: FileStore) -> None:
    blobs = [Blob.from_bytes(bytes([number]) * 10) for number in range(3)]
    entries = [tool_run(shown=blob) for blob in blobs]
    entries.append(tool_run(shown=Blob.from_bytes(b"not kept", keep=0)))
    session = with_record(*entries)
    write(verify_store, session)
    (verify_store.directory / "blobs" / blobs[0].digest).unlink()
    (verify_store.directory / "blobs" / blobs[1].digest).write_bytes(b"other")
    verified = verify(verify_store, session.id)
    assert found(verified) == [("missing", "blob"), ("missing", "blob")]
    assert blobs[0].digest in verified.problems[0].text
    assert (verified.is_sound, verified.worst, verified.n_blobs) == (False, "missing", 3)


def test_content_of_a_result_that_is_no_row_yet_is_checked_once(verify_store: FileStore) -> None:
    session = Session.from_user_message("go")
    effect = created("a", b"content")
    run = tool_run(effect, shown=Blob.from_bytes(b"content"))
    result = PendingResult(row=0, call=0, run=run, shown=None)
    write_lines(verify_store, [*lines_for(session)[:-1], result], is_finished=False)
    verified = verify(verify_store, session.id)
    assert (found(verified), verified.n_blobs) == ([("note", "unfinished")], 1)
    (verify_store.directory / "blobs" / run.shown.digest).unlink()
    assert ("missing", "blob") in found(verify(verify_store, session.id))


def test_usage_of_the_trailer_is_checked(verify_store: FileStore) -> None:
    session = run(["hi"]).synchronize()
    *lines, last = lines_for(session)
    assert isinstance(last, Finished)
    write_lines(verify_store, [*lines, structs.replace(last, usage=RathLLMTokenUsage(1, 1, 2))])
    verified = verify(verify_store, session.id)
    assert ("damaged", "usage") in found(verified)
    assert "(1, 1, 2)" in verified.problems[0].text


def test_session_that_builds_on_itself_is_damage(verify_store: FileStore) -> None:
    one, two = Session.from_user_message("go"), Session.from_user_message("go")
    for session, parent in ((one, two), (two, one)):
        write_lines(verify_store, [structs.replace(header_for(session), parents=(parent.id,))])
    assert ("damaged", "range") in found(verify(verify_store, one.id))


def test_content_that_cannot_be_read_is_missing(verify_store: FileStore) -> None:
    with pytest.raises(PersistenceError, match="not found"):
        verify(verify_store, uuid4())

    class Broken(FileStore):
        def blob(self, digest: str) -> bytes | None:
            raise PersistenceError("disk is gone")

    session = with_record(tool_run(shown=Blob.from_bytes(b"x")))
    write(verify_store, session)
    (problem,) = verify(Broken(verify_store.directory), session.id).problems
    assert "disk is gone" in problem.text


def test_size_of_content_is_checked(verify_store: FileStore) -> None:
    session = with_record(tool_run(shown=Blob(Blob.from_bytes(b"content").digest, 3, b"content")))
    write(verify_store, session)
    (problem,) = verify(verify_store, session.id).problems
    assert "is another one" in problem.text
