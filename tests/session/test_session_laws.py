"""The laws of forks, detachments and merges, for any sessions; as plain functions too."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath._async.deferred import Deferred
from rath.backend import registry
from rath.session import (
    ChunkKind,
    ChunkRow,
    LineageKind,
    RowId,
    Session,
    create_system_session,
    create_user_session,
    detach_session,
    fork_session,
)
from rath.session.operation import Place, operation_scope
from rath.session.outcome import Completed
from rath.session.record import Operation
from rath.testing import FakeBackend
from tests.support.api import Body
from tests.support.sessions import any_texts, cancelled_session, row_lists, sessions


def grown(session: Session, rows: list[ChunkRow]) -> Session:
    """Return a child of `session` with rows of its own, as a run would make it."""
    child = session.fork()
    table = child.chunk_table.born_in(child.id, rows)
    return Session.from_body(Deferred.of(Body(table)), child.provenance, id=child.id)


@given(root=sessions, left=row_lists, right=row_lists)
def test_merge_writes_the_common_prefix_once(
    root: Session, left: list[ChunkRow], right: list[ChunkRow]
) -> None:
    merged = grown(root, left).merge(grown(root, right))
    assert list(merged.chunk_table) == [*root.chunk_table, *left, *right]


@given(session=sessions)
def test_derivations_have_the_rows_and_their_names(session: Session) -> None:
    fork, detached = session.fork(), session.detach()
    merges = (session.merge(session), session.merge(session.fork()))
    for derived in (fork, detached, *merges):
        assert derived.chunk_table == session.chunk_table
        assert [row.id for row in derived.chunk_table] == [row.id for row in session.chunk_table]
        assert derived.id != session.id
    assert (fork.parent_session_ids, detached.parent_session_ids) == ((session.id,), ())


@given(session=sessions, text=any_texts, rows=row_lists)
def test_saying_adds_one_row_and_shares_the_rest(
    session: Session, text: str, rows: list[ChunkRow]
) -> None:
    before = list(session.chunk_table)
    said = session.say(text)
    other, later = session.say("another thing"), grown(said, rows)
    *front, last = said.chunk_table
    assert [(row, row.id) for row in front] == [(row, row.id) for row in before]
    assert last == Session.from_user_message(text).chunk_table[0]
    assert last.id == RowId(said.id, len(before))
    assert (said.parent_session_ids, said.lineage_kind) == ((session.id,), LineageKind.OP_INPUT)
    # Neither side sees what comes to the other.
    assert list(session.chunk_table) == before
    assert list(said.chunk_table) == [*front, last]
    assert later.chunk_table.common_prefix(said.chunk_table) == len(before) + 1
    assert other.chunk_table.common_prefix(said.chunk_table) == len(before)
    assert list(said.merge(other).chunk_table) == [*before, last, other.chunk_table[-1]]


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
    with pytest.raises(TypeError, match="another Session"):
        Session.from_user_message("a").merge("b")  # type: ignore[arg-type]  # that is tested
    placed, unplaced = Session.from_user_message("a").to("local"), Session.create("user", "b")
    assert placed.merge(unplaced).sandbox_backend == "local"
    assert unplaced.merge(placed).sandbox_backend is None


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


paths = st.lists(st.lists(st.sampled_from("ab"), max_size=3), max_size=10)


def test_a_derivation_notes_its_place() -> None:
    session = Session.from_user_message("hi")
    with operation_scope("Team"):
        session.fork()
        entry = session.fork().record[-1]
    assert isinstance(entry, Operation)
    assert entry.place == Place("Team", 1)
