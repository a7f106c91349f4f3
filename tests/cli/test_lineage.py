"""Lineage as lines: trees, graphs, and what shares a line."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath.cli.lineage import (
    Branch,
    branches_of,
    draw_graph,
    fold_conversations,
    fold_siblings,
    lineage_of,
    newest_first,
)
from rath.session.graph.kind import LineageKind
from rath.session.log.index import StoreIndex
from tests.support.logs import DAY, LogMaker, MemoryStore


def family(*parents: tuple[int, ...], inputs: Collection[int] = ()) -> list[Branch]:
    """Lines of sessions by age, each with the numbers of its parents."""
    store = MemoryStore()
    for number, made_of in enumerate(parents):
        ids = tuple(UUID(int=parent) for parent in made_of)
        at = DAY + timedelta(minutes=number)
        kind = LineageKind.OP_INPUT if number in inputs else LineageKind.OP_SESSION_LOOP
        store.put(LogMaker(UUID(int=number), at=at, parents=ids, kind=kind))
    with StoreIndex(store) as index:
        return newest_first(branches_of(index.summaries()))


def picture(*parents: tuple[int, ...], is_narrow: bool = False) -> list[str]:
    """The graph, with the number of each session behind its line."""
    return [
        before if session is None else f"{before} {session.id.int}"
        for before, session in draw_graph(family(*parents), is_narrow=is_narrow)
    ]


@pytest.mark.parametrize(
    ("parents", "lines"),
    [
        pytest.param(((), (0,), (1,)), "● 2/● 1/● 0", id="a chain"),
        pytest.param(((), (), ()), "● 2/● 1/● 0", id="strangers"),
        pytest.param(((), (0,), (0,)), "● 2/│ ● 1/├─╯/● 0", id="a branch"),
        pytest.param(((), (), (0, 1)), "● 2/├─╮/│ ● 1/● 0", id="a merge"),
        pytest.param(
            ((), (0,), (0,), (1, 2)), "● 3/├─╮/│ ● 2/● │ 1/├─╯/● 0", id="a branch and a merge"
        ),
        pytest.param(((), (0,), (0,), (0,)), "● 3/│ ● 2/│ │ ● 1/├─┴─╯/● 0", id="many branches"),
        pytest.param(
            ((), (0,), (1, 0), (0,)), "● 3/│ ● 2/├─┤/│ ● 1/├─╯/● 0", id="a lane that is there"
        ),
        pytest.param(
            ((), (), (), (1,), (0, 2)), "● 4/├─╮/│ │ ● 3/│ ● │ 2/│   ● 1/● 0", id="lanes cross"
        ),
        pytest.param(
            ((), (0,), (0,), (0, 1)), "● 3/├─╮/│ │ ● 2/│ ● │ 1/├─┴─╯/● 0", id="lanes join"
        ),
        pytest.param(((), (), (1, 0), (0,)), "● 3/│ ● 2/├─┤/│ ● 1/● 0", id="a lane to the left"),
        pytest.param(((7,), (0, 9)), "● 1/● 0", id="unknown parents"),
    ],
)
def test_a_graph_is_drawn(parents: tuple[tuple[int, ...], ...], lines: str) -> None:
    assert picture(*parents) == lines.split("/")


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


def numbers(lines: list[Branch]) -> list[int]:
    return [line.id.int for line in lines]


CHAT = ((), (0,), (1,), (2,), (3,), (4,))
"""A user, an answer, two more turns: what each was made from."""

SAID = {2, 4}


def test_a_conversation_is_its_last_session() -> None:
    (line,) = fold_conversations(family(*CHAT, inputs=SAID))
    assert (line.id.int, line.n_sessions, line.parents) == (5, 6, ())
    assert sorted(each.id.int for each in line.turns) == [0, 1, 2, 3, 4]


def test_a_turn_of_which_more_was_made_keeps_its_line() -> None:
    lines = fold_conversations(family(*CHAT, (1,), inputs=SAID))
    assert numbers(lines) == [6, 5, 1, 0]
    assert [line.parents for line in lines[:2]] == [(UUID(int=1),), (UUID(int=1),)]


def test_words_that_nobody_has_answered_yet_end_a_conversation() -> None:
    (line,) = fold_conversations(family(*CHAT[:3], inputs=SAID))
    assert (line.id.int, line.n_sessions) == (2, 3)


def test_what_is_no_conversation_stays() -> None:
    lines = family((), (0,), (0,), (1, 2))
    assert fold_conversations(lines) == lines


def test_a_conversation_that_came_from_itself_keeps_a_line() -> None:
    lines = fold_conversations(family((1,), (0,), inputs={0, 1}))
    assert sum(line.n_sessions for line in lines) == 2


@given(st.lists(st.lists(st.integers(0, 9), max_size=2), max_size=10), st.sets(st.integers(0, 9)))
def test_no_session_is_lost_in_conversations(parents: list[list[int]], inputs: set[int]) -> None:
    lines = family(*map(tuple, parents), inputs=inputs)
    folded = fold_conversations(lines)
    assert sum(line.n_sessions for line in folded) == len(parents)
    assert {line.id for line in folded} <= {line.id for line in lines}


def test_many_branches_of_one_shape_share_a_line() -> None:
    # A start, five branches of two sessions, and what was made from all of them.
    branches = [(), *[(0,)] * 5, *[(number,) for number in range(1, 6)], tuple(range(6, 11))]
    lines = fold_siblings(family(*branches))
    assert numbers(lines) == [11, 10, 0]
    assert [line.n_sessions for line in lines] == [1, 10, 1]
    assert [each.id.int for each in lines[1].siblings] == [10, 9, 8, 7, 6]
    assert lines[0].parents == (UUID(int=10),)
    assert lines[1].parents == (UUID(int=0),)


def test_few_branches_and_those_of_another_shape_are_drawn_each() -> None:
    few = family((), (0,), (0,), (0,))
    assert fold_siblings(few) == few
    mixed = fold_siblings(family((), *[(0,)] * 4, (4,), (0,)))
    assert numbers(mixed) == [6, 5, 4, 0]  # number 4 goes on, and the four others end


@given(st.lists(st.lists(st.integers(0, 9), max_size=3), max_size=10))
def test_no_session_is_lost_in_branches(parents: list[list[int]]) -> None:
    folded = fold_siblings(family(*map(tuple, parents)), least=2)
    assert sum(line.n_sessions for line in folded) == len(parents)


def test_thirty_lanes_fit_into_thirty_columns() -> None:
    lines = picture((), *[(0,)] * 30, is_narrow=True)
    assert max(len(line.partition(" ")[0]) for line in lines) == 30
    assert lines[0] == "● 30"
    assert lines[30] == f"├{'┴' * 28}╯"


def test_a_lane_is_used_again_when_its_branch_has_ended() -> None:
    lines = picture((), (0,), (0,), (), (3,), (3,))
    assert lines == ["● 5", "│ ● 4", "├─╯", "● 3", "● 2", "│ ● 1", "├─╯", "● 0"]
