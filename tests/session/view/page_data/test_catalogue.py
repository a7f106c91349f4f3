from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from rath._async.lazy import Deferred
from rath.session import ChunkTable, Session, user_text_chunk
from rath.session.view.page_data import Catalogue, Numbered, Range
from tests.support.api import Body, nodes_of
from tests.support.sessions import row_lists, run


def expanded(ranges: Sequence[Range]) -> list[int]:
    return [number for first, n in ranges for number in range(first, first + n)]


@given(st.lists(st.integers(0, 5)))
def test_a_key_keeps_its_number(keys: list[int]) -> None:
    numbered: Numbered[str] = Numbered()
    numbers = [numbered.number(key, f"thing {key}") for key in keys]
    assert numbered.fresh() == [f"thing {key}" for key in dict.fromkeys(keys)]
    assert numbers == [numbered.find(key) for key in keys]
    assert numbered.fresh() == []


@given(row_lists, row_lists)
def test_sessions_share_their_common_rows(first: list[object], more: list[object]) -> None:
    start = Session(ChunkTable(first))  # type: ignore[arg-type]  # a list of rows
    longer = start.merge(Session(ChunkTable(more)))  # type: ignore[arg-type]  # as above
    catalogue = Catalogue()
    made = {node.id: catalogue.row_ranges(node) for node in nodes_of([longer.as_parent()])}
    rows = catalogue.rows.fresh()
    assert len(rows) == len(longer.chunk_table)
    for session in (start, longer):
        numbers = expanded(made[session.id])
        assert tuple(rows[number] for number in numbers) == session.chunk_table.rows


def test_the_entries_of_a_record_are_ranges() -> None:
    asked = run(["one"]).synchronize()
    fork = asked.fork()
    catalogue = Catalogue()
    nodes = nodes_of([fork.as_parent()])
    ranges = [catalogue.entry_ranges(node) for node in nodes]
    assert ranges[-1] == [(0, len(fork.record))]
    assert catalogue.entry(fork.record[1].id) == 1
    assert catalogue.entry(None) is None


def test_a_name_that_two_rows_have_counts_for_each() -> None:
    said = Session.from_user_message("one")
    other = user_text_chunk("two").with_id(said.chunk_table[0].id)  # type: ignore[arg-type]  # it has one
    twin = Session.from_body(Deferred.of(Body(ChunkTable([other]))), said.provenance)
    catalogue = Catalogue()
    nodes = [nodes_of([each.as_parent()])[0] for each in (said, twin)]
    assert [catalogue.row_ranges(node) for node in nodes] == [[(0, 1)], [(1, 1)]]


def test_a_session_without_content_has_no_ranges() -> None:
    node = nodes_of([Session.from_user_message("x").as_parent()])[0]
    empty = replace(node, body=None)
    assert Catalogue().row_ranges(empty) == Catalogue().entry_ranges(empty) == []
