"""The graph of sessions: its order, and the lines between them."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from rath.cli.listing import draw_graph, lineage_of, newest_first
from rath.session.log.index import SessionSummary, StoreIndex
from tests.support.logs import DAY, LogMaker, MemoryStore


def family(*parents: tuple[int, ...]) -> list[SessionSummary]:
    """Sessions that were begun after one another, each with the numbers of its parents."""
    store = MemoryStore()
    for number, made_of in enumerate(parents):
        ids = tuple(UUID(int=parent) for parent in made_of)
        at = DAY + timedelta(minutes=number)
        store.put(LogMaker(UUID(int=number), at=at, parents=ids))
    with StoreIndex(store) as index:
        return newest_first(index.summaries())


def picture(*parents: tuple[int, ...]) -> list[str]:
    """The graph, with the number of each session behind its line."""
    return [
        before if session is None else f"{before} {session.id.int}"
        for before, session in draw_graph(family(*parents))
    ]


def test_a_chain_is_one_lane() -> None:
    assert picture((), (0,), (1,)) == ["● 2", "● 1", "● 0"]


def test_strangers_stand_below_one_another() -> None:
    assert picture((), (), ()) == ["● 2", "● 1", "● 0"]


def test_a_branch() -> None:
    assert picture((), (0,), (0,)) == ["● 2", "│ ● 1", "├─╯", "● 0"]


def test_a_merge() -> None:
    assert picture((), (), (0, 1)) == ["● 2", "├─╮", "│ ● 1", "● 0"]


def test_a_branch_and_a_merge() -> None:
    assert picture((), (0,), (0,), (1, 2)) == ["● 3", "├─╮", "│ ● 2", "● │ 1", "├─╯", "● 0"]


def test_many_branches_meet_at_once() -> None:
    assert picture((), (0,), (0,), (0,)) == ["● 3", "│ ● 2", "│ │ ● 1", "├─┴─╯", "● 0"]


def test_a_lane_that_is_there_is_met() -> None:
    assert picture((), (0,), (1, 0), (0,)) == ["● 3", "│ ● 2", "├─┤", "│ ● 1", "├─╯", "● 0"]


def test_lanes_cross() -> None:
    assert picture((), (), (), (1,), (0, 2)) == [
        "● 4",
        "├─╮",
        "│ │ ● 3",
        "│ ● │ 2",
        "│   ● 1",
        "● 0",
    ]
    assert picture((), (0,), (0,), (0, 1)) == ["● 3", "├─╮", "│ │ ● 2", "│ ● │ 1", "├─┴─╯", "● 0"]


def test_a_lane_to_the_left() -> None:
    assert picture((), (), (1, 0), (0,)) == ["● 3", "│ ● 2", "├─┤", "│ ● 1", "● 0"]


def test_a_parent_that_is_not_among_them_is_left_out() -> None:
    assert picture((7,), (0, 9)) == ["● 1", "● 0"]


def test_one_that_came_from_itself_is_there_all_the_same() -> None:
    assert sorted(picture((1,), (0,), (2,))) != []
    assert {line[-1] for line in picture((1,), (0,), (2,)) if "●" in line} == {"0", "1", "2"}


@given(st.lists(st.lists(st.integers(0, 9), max_size=3), max_size=10))
def test_any_family_can_be_draw_graph(parents: list[list[int]]) -> None:
    made_of = [tuple(p for p in each if p < number) for number, each in enumerate(parents)]
    sessions = family(*made_of)
    lines = list(draw_graph(sessions))
    assert [session for _, session in lines if session is not None] == sessions
    assert all(before.count("●") == (session is not None) for before, session in lines)
    at = {session.id: place for place, session in enumerate(sessions)}
    assert all(at[p] > at[s.id] for s in sessions for p in s.parents)


def test_a_tree_has_each_session_once_however_it_is_made() -> None:
    sessions = family((), (0,), (0, 1), (1,), (5,), (4,))
    branches = lineage_of(sessions)
    assert [session.id.int for _, session in branches] == [0, 1, 3, 2, 5, 4]
    assert [before for before, _ in branches] == ["", "├─ ", "│  ", "└─ ", "", ""]


@given(st.lists(st.lists(st.integers(0, 9), max_size=3), max_size=10))
def test_any_family_is_a_tree(parents: list[list[int]]) -> None:
    sessions = family(*map(tuple, parents))
    told = [session.id for _, session in lineage_of(sessions)]
    assert sorted(told) == sorted(session.id for session in sessions)
