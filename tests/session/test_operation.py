"""Every operation has a place: the path of the modules around it, and its count at that path."""

from __future__ import annotations

import contextvars

from hypothesis import given
from hypothesis import strategies as st

from rath.session import Session
from rath.session.operation import Place, next_place, operation_scope
from rath.session.record import Operation

paths = st.lists(st.lists(st.sampled_from("ab"), max_size=3), max_size=10)


def place_under(path: list[str]) -> Place:
    if not path:
        return next_place()
    with operation_scope(path[0]):
        return place_under(path[1:])


@given(visits=paths)
def test_within_one_outermost_call_places_count_up_path_by_path(visits: list[list[str]]) -> None:
    with operation_scope("root"):
        places = [place_under(path) for path in visits]
    expected: list[Place] = []
    for path in visits:
        dotted = ".".join(["root", *path])
        expected.append(Place(dotted, sum(place.path == dotted for place in expected)))
    assert places == expected


@given(visits=paths)
def test_each_outermost_call_counts_from_the_beginning(visits: list[list[str]]) -> None:
    runs: list[list[Place]] = []
    for _ in range(2):
        with operation_scope("root"):
            runs.append([place_under(path) for path in visits])
    assert runs[0] == runs[1]


def test_a_copied_context_counts_on_where_its_origin_does() -> None:
    with operation_scope("a"):
        here = contextvars.copy_context()
        assert [next_place(), here.run(next_place), next_place()] == [
            Place("a", count) for count in range(3)
        ]


def test_a_derivation_notes_its_place() -> None:
    session = Session.from_user_message("hi")
    with operation_scope("Team"):
        session.fork()
        entry = session.fork().record[-1]
    assert isinstance(entry, Operation)
    assert entry.place == Place("Team", 1)
