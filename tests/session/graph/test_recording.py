"""Graph mode, journal and stamps."""

from __future__ import annotations

import contextvars
from dataclasses import dataclass, field
from uuid import UUID, uuid4

import pytest

from rath.session.graph.kind import LineageKind
from rath.session.graph.recording import (
    LineageJournal,
    LineageRecorder,
    LineageStamp,
    lineage_journal_optional,
    lineage_journal_tracking,
    session_graph_mode,
    session_graph_mode_override,
)
from rath.session.graph.traverse import FrozenLineageView, lineage_view_dataclass
from rath.session.session import Session


@dataclass
class Carrier:
    id: UUID = field(default_factory=uuid4)
    stamps: list[LineageStamp] = field(default_factory=list[LineageStamp])

    def stamp_lineage(self, stamp: LineageStamp) -> None:
        self.stamps.append(stamp)


def stamp(session: object) -> None:
    LineageRecorder.stamp_new_session(
        session,
        parent_session_ids=(UUID(int=1),),
        lineage_operator="op",
        lineage_kind=LineageKind.OP_FORK,
        lineage_extras=(("a", 1),),
    )


def test_graph_mode_is_on_by_default() -> None:
    assert session_graph_mode()


def test_override_holds_inside_its_block_only() -> None:
    with session_graph_mode_override(False):
        with session_graph_mode_override(True):
            assert session_graph_mode()
        assert not session_graph_mode()
    assert session_graph_mode()


def test_override_ends_with_an_exception() -> None:
    with pytest.raises(ZeroDivisionError), session_graph_mode_override(False):
        raise ZeroDivisionError
    assert session_graph_mode()


def test_journal_keeps_the_order() -> None:
    ids = [uuid4(), uuid4(), uuid4()]
    journal = LineageJournal()
    journal.record(ids[0])
    assert journal.append(ids[1]).append(ids[2]) is journal
    assert journal.visit_order == ids


def test_no_journal_outside_of_tracking() -> None:
    assert lineage_journal_optional() is None


def test_tracking_yields_a_journal_that_stays_readable() -> None:
    session = Carrier()
    with lineage_journal_tracking() as journal:
        assert lineage_journal_optional() is journal
        stamp(session)
    assert lineage_journal_optional() is None
    assert journal.visit_order == [session.id]


def test_tracking_writes_into_a_given_journal() -> None:
    mine = LineageJournal([UUID(int=5)])
    with lineage_journal_tracking(journal=mine) as journal:
        stamp(session := Carrier())
    assert journal is mine
    assert mine.visit_order == [UUID(int=5), session.id]


def test_inner_tracking_hides_the_outer_one() -> None:
    with lineage_journal_tracking() as outer, lineage_journal_tracking() as inner:
        stamp(session := Carrier())
    assert (outer.visit_order, inner.visit_order) == ([], [session.id])


def test_journal_follows_a_copied_context() -> None:
    with lineage_journal_tracking() as journal:
        context = contextvars.copy_context()
    context.run(stamp, session := Carrier())
    assert journal.visit_order == [session.id]


def test_stamp_says_where_a_session_comes_from() -> None:
    stamp(session := Carrier())
    expected = LineageStamp((UUID(int=1),), "op", LineageKind.OP_FORK, (("a", 1),))
    assert session.stamps == [expected]


def test_session_made_by_hand_takes_its_stamp() -> None:
    session = Session.from_user_message("a")
    stamp(session)
    assert lineage_view_dataclass(session) == FrozenLineageView(
        session.id, (UUID(int=1),), "op", "op_fork", (("a", 1),)
    )


def test_nothing_is_recorded_while_the_graph_mode_is_off() -> None:
    session = Carrier()
    with session_graph_mode_override(False), lineage_journal_tracking() as journal:
        stamp(session)
    assert (session.stamps, journal.visit_order) == ([], [])


@pytest.mark.parametrize("enabled", [True, False], ids=["on", "off"])
def test_stamping_something_else_is_a_type_error(enabled: bool) -> None:
    with session_graph_mode_override(enabled), pytest.raises(TypeError, match="expected a Session"):
        stamp("session")
