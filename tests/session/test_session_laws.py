"""The laws of forks, detachments and merges, for any sessions; as plain functions too."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath._async.deferred import Deferred
from rath.backend import registry
from rath.session import (
    ChunkKind,
    ChunkRow,
    ChunkTable,
    LineageKind,
    Session,
    ancestors_bfs,
    create_system_session,
    create_user_session,
    detach_session,
    fork_session,
    lineage_journal_tracking,
    user_text_chunk,
)
from rath.session.outcome import Completed
from rath.testing import FakeBackend
from tests.support.api import Body
from tests.support.sessions import cancelled_session, row_lists, sessions


def grown(session: Session, rows: list[ChunkRow]) -> Session:
    """Return a child of `session` with rows of its own, as a run would make it."""
    child = session.fork()
    table = child.chunk_table.born_in(child.id, rows)
    return Session.from_body(Deferred.of(Body(table)), child.provenance, id=child.id)


@given(session=sessions)
def test_fork_has_equal_rows_and_one_parent(session: Session) -> None:
    fork = session.fork()
    assert fork.chunk_table == session.chunk_table
    assert fork.parent_session_ids == (session.id,)
    assert fork.id != session.id


@given(session=sessions, rows=row_lists)
def test_what_one_side_gains_is_not_visible_in_the_other(
    session: Session, rows: list[ChunkRow]
) -> None:
    before = session.chunk_table.rows
    fork = session.fork()
    grown(fork, rows)
    assert fork.chunk_table.rows == before
    assert session.chunk_table.rows == before


@given(session=sessions)
def test_detach_has_the_same_rows_and_no_parents(session: Session) -> None:
    detached = session.detach()
    assert detached.chunk_table == session.chunk_table
    assert detached.parent_session_ids == ()


@given(root=sessions, left=row_lists, right=row_lists)
def test_merge_writes_the_common_prefix_once(
    root: Session, left: list[ChunkRow], right: list[ChunkRow]
) -> None:
    merged = grown(root, left).merge(grown(root, right))
    assert list(merged.chunk_table) == [*root.chunk_table, *left, *right]


@given(one=sessions, other=sessions)
def test_unrelated_sessions_are_joined(one: Session, other: Session) -> None:
    merged = one.merge(other)
    assert list(merged.chunk_table) == [*one.chunk_table, *other.chunk_table]
    assert merged.parent_session_ids == (one.id, other.id)


@given(session=sessions)
def test_merge_with_itself_or_its_fork_changes_no_row(session: Session) -> None:
    assert session.merge(session).chunk_table == session.chunk_table
    assert session.merge(session.fork()).chunk_table == session.chunk_table


@given(root=sessions, n_left=st.integers(0, 3), n_right=st.integers(0, 3))
def test_ancestors_of_a_merge(root: Session, n_left: int, n_right: int) -> None:
    known: dict[UUID, Session] = {root.id: root}

    def line(length: int) -> Session:
        session = root
        for _ in range(length):
            session = session.fork()
            known[session.id] = session
        return session

    left, right = line(n_left), line(n_right)
    merged = left.merge(right)
    known[merged.id] = merged
    expected = {*ancestors_bfs(known, left.id), *ancestors_bfs(known, right.id), left.id, right.id}
    assert set(ancestors_bfs(known, merged.id)) == expected


@given(session=sessions)
def test_rows_keep_their_names_over_derivations(session: Session) -> None:
    names = [row.id for row in session.chunk_table]
    assert [row.id for row in session.fork().chunk_table] == names
    assert [row.id for row in session.detach().chunk_table] == names
    assert [row.id for row in session.merge(session.fork()).chunk_table] == names


def test_an_edge_remembers_the_row_count_of_that_moment() -> None:
    session = Session(ChunkTable((user_text_chunk("a"), user_text_chunk("b"))))
    (edge,) = session.fork().provenance.parents
    assert (edge.id, edge.n_rows) == (session.id, 2)


def test_derivations_are_noted_in_the_journal() -> None:
    session = Session.from_user_message("a")
    with lineage_journal_tracking() as journal:
        fork = session.fork()
        merged = fork.merge(session)
    assert journal.visit_order == [fork.id, merged.id]


def test_merge_refuses_different_backends() -> None:
    registry.register("elsewhere")(type("Elsewhere", (FakeBackend,), {}))
    try:
        here = Session.from_user_message("a").to("local")
        there = Session.from_user_message("b").to("elsewhere")
        with pytest.raises(ValueError, match="different backends"):
            here.merge(there)
    finally:
        registry.unregister("elsewhere")


def test_merge_with_an_unplaced_session_keeps_the_own_place() -> None:
    placed, unplaced = Session.from_user_message("a").to("local"), Session.create("user", "b")
    assert placed.merge(unplaced).sandbox_backend == "local"
    assert unplaced.merge(placed).sandbox_backend is None


def test_merge_needs_a_session() -> None:
    with pytest.raises(TypeError, match="another Session"):
        Session.from_user_message("a").merge("b")  # type: ignore[arg-type]  # that is tested


def test_a_merge_passes_on_the_first_outcome_that_stops_what_follows() -> None:
    done = Session.from_user_message("done")
    one, other = cancelled_session(), cancelled_session()
    assert done.merge(one).outcome == one.merge(done).outcome == one.outcome
    assert one.merge(other).outcome == one.outcome
    assert done.merge(done.fork()).outcome == Completed()


@pytest.mark.parametrize(
    ("create", "row_kind", "lineage_kind"),
    [
        (create_user_session, ChunkKind.USER, LineageKind.LEAF_USER),
        (create_system_session, ChunkKind.SYSTEM, LineageKind.LEAF_SYSTEM),
    ],
)
def test_a_created_session_is_a_leaf_that_names_its_maker(
    create: Callable[[str], Session], row_kind: ChunkKind, lineage_kind: LineageKind
) -> None:
    session = create("hello")
    (row,) = session.chunk_table
    assert (row.kind, row.payload["content"]) == (row_kind, "hello")
    assert (session.lineage_kind, session.lineage_operator) == (lineage_kind, create.__name__)
    assert session.lineage_extras == (("source", create.__name__),)
    assert session.parent_session_ids == ()


def test_fork_and_detach_do_what_the_methods_do() -> None:
    parent = create_user_session("hello")
    child, loose = fork_session(parent), detach_session(parent)
    assert child.chunk_table == loose.chunk_table == parent.chunk_table
    assert (child.parent_session_ids, loose.parent_session_ids) == ((parent.id,), ())
    assert (child.lineage_operator, loose.lineage_operator) == ("Session.fork", "Session.detach")
