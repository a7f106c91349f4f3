"""What a stored session came from is stored, once, whoever stores it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from hypothesis import given

from rath._async.deferred import Deferred
from rath.session import ChunkRow, ChunkTable, Session, session_graph_mode_override
from rath.session.graph.recording import Edge, Provenance
from rath.session.log.ancestors import AncestorWriter
from rath.session.log.verify import verify
from rath.session.persistence.store import FileStore, SessionLog
from tests.support.api import (
    RangeSource,
    count_in_ranges,
    partial_path_of,
    row_parts,
    rows_digest,
)
from tests.support.images import picture
from tests.support.journal_store import JournalStore
from tests.support.sessions import cancelled_session, row_lists, run, verdict


def stored() -> set[UUID]:
    return set(FileStore().stamps())


def log_of(session: UUID) -> Path:
    return FileStore().path(session)


def test_a_long_chain_needs_no_recursion() -> None:
    session = Session.from_user_message("hi")
    for _ in range(2000):
        parent = Edge(session.id, session.core.body, session.provenance)
        session = Session.from_body(session.core.body, Provenance(parents=(parent,)))
    AncestorWriter(FileStore()).keep_ancestors((session.core.as_parent(),))
    assert session.id in stored()


def test_what_is_stored_is_not_written_again_unless_it_was_deleted() -> None:
    leaf = Session.from_user_message("look", images=[picture(b"x")])
    first = run(["one"], user=leaf, persist=True).synchronize()
    before = log_of(leaf.id).stat()
    run(["two"], user=leaf, persist=True).synchronize()
    after = log_of(leaf.id).stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
    loaded = Session.load(first.id)
    FileStore().delete(leaf.id)
    for user in (leaf, loaded):
        out = run(["three"], user=user, persist=True).synchronize()
        again = Session.load(out.id)
        assert again.chunk_table == out.chunk_table
        assert again.chunk_table[0].images[0].blob.data == picture(b"x")
    assert list(FileStore().directory.glob("*.__partial__*")) == []


class Losing(JournalStore):
    """Loses a session as soon as the log of any other one is opened."""

    lost: UUID | None = None

    def create(self, session: UUID) -> SessionLog:
        if self.lost not in (None, session):
            self.delete(self.lost)
        return super().create(session)


def test_what_is_deleted_meanwhile_stands_in_its_child(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Losing()
    monkeypatch.setenv("OPENRATH_STORE", store.url)
    first = run(["one"], persist=True).synchronize()
    store.lost = first.id
    out = run(["two"], user=first, persist=True).synchronize()
    assert not store.holds(first.id)
    assert Session.load(out.id).chunk_table == out.chunk_table


def test_parents_that_are_not_known_are_named_or_left_out() -> None:
    parent = UUID(int=7)
    child = Session(Session.from_user_message("hi").chunk_table, parent_session_ids=(parent,))
    child.save()
    alone = run(["one"]).detach()
    alone.save()
    with session_graph_mode_override(False):
        out = run(["two"], user=run(["one"]), persist=True).synchronize()
    assert stored() == {child.id, alone.id, out.id}
    header = log_of(child.id).read_bytes().split(b"\n")[0]
    assert str(parent).encode() in header
    for each in (alone, out):
        loaded = Session.load(each.id)
        assert (loaded.chunk_table, list(loaded.record)) == (each.chunk_table, list(each.record))


def twin_of(session: Session) -> Session:
    """The same session as another process knows it, which has not stored it."""
    body = Deferred.of(session.core.body.result())
    return Session.from_body(body, session.provenance, id=session.id)


def without_its_last_line(data: bytes) -> bytes:
    return data[: data.rindex(b"\n", 0, len(data) - 1) + 1]


@pytest.mark.parametrize("cut", [without_its_last_line, bytes], ids=["line", "name"])
def test_an_ancestor_that_was_left_half_written_is_completed(cut: Callable[[bytes], bytes]) -> None:
    leaf = run(["one"]).synchronize()
    leaf.save()
    twin = twin_of(leaf)
    data = log_of(leaf.id).read_bytes()
    FileStore().delete(leaf.id)
    left = partial_path_of(log_of(leaf.id))
    left.write_bytes(cut(data))
    twin.fork().save()
    assert list(Session.load(leaf.id).record) == list(leaf.record)
    assert Session.load(leaf.id).outcome == leaf.outcome
    assert verify(FileStore(), leaf.id).problems == ()
    assert not left.exists()


def longer() -> tuple[Session, Session]:
    """A session, and one of the same id that has more rows."""
    short = Session.from_user_message("hi")
    table = short.chunk_table.born_in(short.id, run(["more"]).chunk_table)
    return short, Session(table, id=short.id)


def other_entries() -> tuple[Session, Session]:
    """A session, and one of the same id with another entry."""
    fork = Session.from_user_message("hi").fork()
    body = twin_of(fork).fork().core.body
    return Session.from_body(body, fork.provenance, id=fork.id), fork


@pytest.mark.parametrize("make", [longer, other_entries])
def test_another_log_of_the_same_id_is_replaced(
    make: Callable[[], tuple[Session, Session]],
) -> None:
    session, other = make()
    other.save()
    data = log_of(other.id).read_bytes()
    FileStore().delete(other.id)
    partial_path_of(log_of(other.id)).write_bytes(without_its_last_line(data))
    session.fork().save()
    loaded = Session.load(session.id)
    assert (loaded.chunk_table, list(loaded.record)) == (session.chunk_table, list(session.record))


@pytest.mark.parametrize("make", [cancelled_session, partial(Session.from_user_message, "hi")])
@pytest.mark.parametrize("left", [b"", b'{"record_type": "hea', b"no json\n"])
def test_an_unreadable_ancestor_is_written_anew(left: bytes, make: Callable[[], Session]) -> None:
    leaf = make()
    FileStore().directory.mkdir(parents=True)
    partial_path_of(log_of(leaf.id)).write_bytes(left)
    leaf.fork().save()
    loaded = Session.load(leaf.id)
    assert (loaded.chunk_table, loaded.outcome) == (leaf.chunk_table, leaf.outcome)


def test_who_comes_second_takes_what_the_other_process_stored() -> None:
    class Overtaken(FileStore):
        """Another process stores a session just before this one does."""

        def create(self, session: UUID) -> SessionLog:  # type: ignore[override]  # wider is enough
            if session == leaf.id and not log_of(leaf.id).exists():
                Session.from_body(leaf.core.body, leaf.provenance, id=leaf.id).save(
                    store=FileStore()
                )
            return super().create(session)

    leaf = Session.from_user_message("hi")
    store = Overtaken()
    store.name = "overtaken"
    leaf.fork().save(store=store)
    assert Session.load(leaf.id).chunk_table == leaf.chunk_table


@pytest.mark.parametrize("persist", [False, True])
def test_late_entries_of_a_parent_are_stored_before_its_child(persist: bool) -> None:
    parent = run(["one"], persist=persist).synchronize()
    early = parent.fork()
    parent.add_entry(verdict("first"))
    middle = parent.fork()
    parent.add_entry(verdict("second"))
    late = parent.fork()
    for child in (early, middle, late):
        child.save()
        assert list(Session.load(child.id).record) == list(child.record)
    assert list(Session.load(parent.id).record) == list(parent.record)


def test_late_entries_of_a_parent_that_was_stored_elsewhere_are_added() -> None:
    parent = run(["one"], persist=True).synchronize()
    loaded = Session.load(parent.id)
    again = Session.from_body(
        Deferred.of(loaded.core.body.result()), loaded.provenance, id=loaded.id
    )
    again.add_entry(verdict())
    child = again.fork()
    child.save()
    assert list(Session.load(child.id).record) == list(child.record)


@given(base=row_lists, ours=row_lists, theirs=row_lists)
def test_rows_of_a_merge_are_ranges_of_its_parents(
    base: list[ChunkRow], ours: list[ChunkRow], theirs: list[ChunkRow]
) -> None:
    root = Session(ChunkTable(base))
    mine, other = (Session(root.chunk_table.born_in(uuid4(), rows)) for rows in (ours, theirs))
    merged = mine.merge(other)
    tables = {each.id: each.chunk_table.vector for each in (mine, other)}
    parts = row_parts(merged.chunk_table.vector, [RangeSource(*each) for each in tables.items()])
    ranges = [tables[part.session].prefix(part.stop).since(part.start) for part in parts]
    assert [part.digest for part in parts] == [rows_digest(rows) for rows in ranges]
    assert [row for rows in ranges for row in rows] == list(merged.chunk_table)
    assert count_in_ranges(parts) == len(merged.chunk_table)
