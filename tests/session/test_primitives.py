"""The operations on sessions as plain functions do what the methods do."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rath.session import (
    ChunkKind,
    LineageKind,
    Session,
    create_system_session,
    create_user_session,
    detach_session,
    fork_session,
)


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


def test_fork_session_is_a_child_with_the_same_rows() -> None:
    parent = create_user_session("hello")
    child = fork_session(parent)
    assert child.chunk_table == parent.chunk_table
    assert child.parent_session_ids == (parent.id,)
    assert (child.lineage_operator, child.lineage_kind) == ("Session.fork", LineageKind.OP_FORK)


def test_detach_session_has_the_same_rows_and_no_parent() -> None:
    parent = create_user_session("hello")
    loose = detach_session(parent)
    assert loose.chunk_table == parent.chunk_table
    assert loose.parent_session_ids == ()
    assert loose.lineage_operator == "Session.detach"
    assert loose.lineage_kind is LineageKind.OP_DETACH
