"""What a stored session came from is stored, once, whoever stores it."""

from __future__ import annotations

import threading
from pathlib import Path
from uuid import UUID

import pytest

from rath._async.lazy import Deferred
from rath.errors import PersistenceError
from rath.session import Session, session_graph_mode_override
from rath.session.graph.recording import Edge, Provenance
from rath.session.log.ancestors import AncestorWriter
from rath.session.log.verify import verify
from rath.session.persistence.store import FileStore, SessionLog
from rath.session.record import Verdict
from rath.testing import tool_call
from tests.support.api import open_logs_of, partial_beside
from tests.support.images import picture
from tests.support.journal_store import JournalStore
from tests.support.sessions import FunctionTool, cancelled_session, run
from tests.support.waiting import PATIENCE


def stored() -> set[UUID]:
    return set(FileStore().stamps())


def log_of(session: UUID) -> Path:
    return FileStore().path(session)


def verdict(name: str = "good") -> Verdict:
    return Verdict(
        operation=UUID(int=1),
        name=name,
        judge="me",
        passed=True,
        score=None,
        report="",
        workspace_digest=None,
    )


def test_all_that_a_run_came_from_is_stored() -> None:
    leaf = Session.from_user_message("hi")
    one = run(["one"], user=leaf)
    left, right = one.fork(), run(["two"], user=one.fork())
    merged = left.merge(right)
    out = run(["three"], user=merged, persist=True).synchronize()
    assert {leaf.id, one.id, left.id, right.id, merged.id, out.id} <= stored()
    loaded = Session.load(out.id)
    assert list(loaded.record) == list(out.record)
    assert loaded.chunk_table == out.chunk_table
    assert verify(FileStore(), out.id).problems == ()
    assert Session.load(merged.id).outcome == merged.outcome


def test_a_long_chain_needs_no_recursion() -> None:
    session = Session.from_user_message("hi")
    for _ in range(2000):
        parent = Edge(session.id, session.body, session.provenance)
        session = Session.from_body(session.body, Provenance(parents=(parent,)))
    keeper = AncestorWriter(FileStore())
    keeper.keep_ancestors((session.as_parent(),))
    assert session.id in stored()


def test_what_is_stored_is_not_written_again() -> None:
    leaf = Session.from_user_message("hi")
    run(["one"], user=leaf, persist=True).synchronize()
    before = log_of(leaf.id).stat()
    run(["two"], user=leaf, persist=True).synchronize()
    after = log_of(leaf.id).stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


class Losing(JournalStore):
    """Loses a session as soon as the log of any other one is opened."""

    lost: UUID | None = None

    def create(self, session: UUID) -> SessionLog:
        if self.lost not in (None, session):
            self.delete(self.lost)
        return super().create(session)


def test_what_is_deleted_just_before_its_child_is_begun_stands_in_the_child(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = Losing()
    monkeypatch.setenv("OPENRATH_STORE", store.url)
    first = run(["one"], persist=True).synchronize()
    store.lost = first.id
    out = run(["two"], user=first, persist=True).synchronize()
    assert not store.holds(first.id)
    assert Session.load(out.id).chunk_table == out.chunk_table


def test_what_was_deleted_is_written_again() -> None:
    leaf = Session.from_user_message("hi")
    run(["one"], user=leaf, persist=True).synchronize()
    FileStore().delete(leaf.id)
    out = run(["two"], user=leaf, persist=True).synchronize()
    assert Session.load(out.id).chunk_table == out.chunk_table


def test_a_parent_that_is_loaded_is_not_written_again() -> None:
    first = run(["one"], persist=True).synchronize()
    loaded = Session.load(first.id)
    out = run(["two"], user=loaded, persist=True).synchronize()
    assert Session.load(out.id).chunk_table == out.chunk_table
    assert list(FileStore().directory.glob("*.__partial__*")) == []


def test_images_of_ancestors_are_stored_with_them() -> None:
    leaf = Session.from_user_message("look", images=[picture(b"x")])
    out = run(["nice"], user=leaf, persist=True).synchronize()
    (image,) = Session.load(out.id).chunk_table[0].images
    assert image.blob.data == picture(b"x")


def test_parents_known_by_their_ids_alone_are_named() -> None:
    parent = UUID(int=7)
    child = Session(Session.from_user_message("hi").chunk_table, parent_session_ids=(parent,))
    child.save()
    assert stored() == {child.id}
    header = log_of(child.id).read_bytes().split(b"\n")[0]
    assert str(parent).encode() in header


def test_without_a_graph_a_session_is_stored_whole() -> None:
    with session_graph_mode_override(False):
        first = run(["one"])
        out = run(["two"], user=first, persist=True).synchronize()
    assert stored() == {out.id}
    assert Session.load(out.id).chunk_table == out.chunk_table


def test_a_detached_session_is_stored_without_its_origin() -> None:
    out = run(["one"]).detach()
    out.save()
    assert stored() == {out.id}
    assert list(Session.load(out.id).record) == list(out.record)


def test_an_ancestor_that_another_process_left_half_written_is_completed() -> None:
    leaf = run(["one"]).synchronize()
    leaf.save()
    # As another process knows it, which has not stored it.
    twin = Session.from_body(Deferred.of(leaf.body.result()), leaf.provenance, id=leaf.id)
    whole = twin.fork()
    data = log_of(leaf.id).read_bytes()
    FileStore().delete(leaf.id)
    cut = data.rindex(b"\n", 0, len(data) - 1) + 1
    partial = partial_beside(log_of(leaf.id))
    partial.write_bytes(data[:cut])
    whole.save()
    assert list(Session.load(leaf.id).record) == list(leaf.record)
    assert Session.load(leaf.id).outcome == leaf.outcome
    assert not partial.exists()


def test_an_ancestor_whose_log_only_lacks_its_name_gets_it() -> None:
    leaf = run(["one"]).synchronize()
    leaf.save()
    twin = Session.from_body(Deferred.of(leaf.body.result()), leaf.provenance, id=leaf.id)
    log_of(leaf.id).rename(partial_beside(log_of(leaf.id)))
    twin.fork().save()
    assert list(Session.load(leaf.id).record) == list(leaf.record)
    assert verify(FileStore(), leaf.id).problems == ()
    assert log_of(leaf.id).exists()


@pytest.mark.parametrize("left", [b"", b'{"record_type": "hea', b"no json\n"])
def test_an_ancestor_of_which_nothing_can_be_read_is_written_anew(left: bytes) -> None:
    leaf = Session.from_user_message("hi")
    FileStore().directory.mkdir(parents=True)
    partial_beside(log_of(leaf.id)).write_bytes(left)
    leaf.fork().save()
    assert Session.load(leaf.id).chunk_table == leaf.chunk_table


def test_a_log_of_the_same_id_that_holds_other_entries_is_written_anew() -> None:
    leaf = Session.from_user_message("hi")
    fork = leaf.fork()
    fork.save()
    data = log_of(fork.id).read_bytes()
    other = Session.from_body(fork.body, fork.provenance, id=fork.id).fork()
    body = other.body.result()
    FileStore().delete(fork.id)
    cut = data.rindex(b"\n", 0, len(data) - 1) + 1
    partial_beside(log_of(fork.id)).write_bytes(data[:cut])
    strange = Session.from_body(Deferred.of(body), fork.provenance, id=fork.id)
    strange.save()
    assert list(Session.load(fork.id).record) == list(strange.record)


def test_who_comes_second_takes_what_the_other_process_stored() -> None:
    class Overtaken(FileStore):
        """Another process stores a session just before this one does."""

        def create(self, session: UUID) -> SessionLog:  # type: ignore[override]  # wider is enough
            if session == leaf.id and not log_of(leaf.id).exists():
                Session.from_body(leaf.body, leaf.provenance, id=leaf.id).save(store=FileStore())
            return super().create(session)

    leaf = Session.from_user_message("hi")
    store = Overtaken()
    store.name = "overtaken"
    leaf.fork().save(store=store)
    assert Session.load(leaf.id).chunk_table == leaf.chunk_table


def test_an_ancestor_that_cannot_be_stored_fails_the_run() -> None:
    FileStore().directory.parent.mkdir(parents=True)
    FileStore().directory.write_text("no directory")
    out = run(["never asked"], persist=True)
    with pytest.raises(PersistenceError, match="cannot be"):
        out.synchronize()
    assert len(out.partial_record) == 0


def test_late_entries_of_a_parent_are_stored_before_its_child() -> None:
    parent = run(["one"], persist=True).synchronize()
    child = parent.fork()
    child.save()
    parent.add_entry(verdict())
    late_child = parent.fork()
    late_child.save()
    assert list(Session.load(late_child.id).record) == list(late_child.record)
    assert list(Session.load(child.id).record) == list(child.record)


def test_late_entries_that_came_before_the_parent_was_stored_are_stored_with_it() -> None:
    parent = run(["one"]).synchronize()
    early = parent.fork()
    parent.add_entry(verdict("first"))
    middle = parent.fork()
    parent.add_entry(verdict("second"))
    late = parent.fork()
    for child in (early, middle, late):
        child.save()
        assert list(Session.load(child.id).record) == list(child.record)
    assert list(Session.load(parent.id).record) == list(parent.record)


def test_late_entries_of_a_parent_that_was_never_stored_are_stored_with_it() -> None:
    parent = run(["one"]).synchronize()
    parent.add_entry(verdict())
    child = parent.fork()
    child.save()
    assert list(Session.load(child.id).record) == list(child.record)
    assert list(Session.load(parent.id).record) == list(parent.record)


def test_a_log_that_holds_more_than_the_session_is_written_anew() -> None:
    short = Session.from_user_message("hi")
    table = short.chunk_table.born_in(short.id, run(["more"]).chunk_table)
    longer = Session(table, id=short.id)
    longer.save()
    data = log_of(short.id).read_bytes()
    FileStore().delete(short.id)
    cut = data.rindex(b"\n", 0, len(data) - 1) + 1
    partial_beside(log_of(short.id)).write_bytes(data[:cut])
    short.fork().save()
    assert Session.load(short.id).chunk_table == short.chunk_table


def test_what_cannot_be_read_of_a_session_that_waits_is_written_anew() -> None:
    waiting = cancelled_session()
    FileStore().directory.mkdir(parents=True)
    partial_beside(log_of(waiting.id)).write_bytes(b"no json\n")
    waiting.save()
    assert Session.load(waiting.id).outcome == waiting.outcome


def test_late_entries_of_a_parent_that_was_stored_elsewhere_are_added() -> None:
    parent = run(["one"], persist=True).synchronize()
    loaded = Session.load(parent.id)
    again = Session.from_body(Deferred.of(loaded.body.result()), loaded.provenance, id=loaded.id)
    again.add_entry(verdict())
    child = again.fork()
    child.save()
    assert list(Session.load(child.id).record) == list(child.record)


def test_a_child_of_a_cancelled_run_waits_for_what_that_one_still_writes() -> None:
    begun, go = threading.Event(), threading.Event()

    def hold(*_: object) -> None:
        begun.set()
        go.wait(PATIENCE)

    out = run([tool_call("hold"), "never"], FunctionTool("hold", hold), persist=True)
    begun.wait(PATIENCE)
    child = out.cancel().fork()
    child.save()
    go.set()
    assert list(Session.load(child.id).record) == list(child.record)


def test_a_failed_parent_is_left_out() -> None:
    failed = run([ValueError("no")])
    with pytest.raises(ValueError, match="no"):
        failed.synchronize()
    keeper = AncestorWriter(FileStore())
    keeper.keep_ancestors((failed.as_parent(), Edge(UUID(int=1))))
    assert stored() == set()


def test_what_is_known_to_be_stored_is_forgotten_with_the_session() -> None:
    session = Session.from_user_message("hi")
    session.save()
    shelf = open_logs_of(FileStore())
    assert shelf.of_session(session.id) is not None
    known = session.id
    del session
    assert shelf.of_session(known) is None
