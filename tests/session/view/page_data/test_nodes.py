from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import replace
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath._async.deferred import Deferred
from rath.session import ChunkTable, Session, user_text_chunk
from rath.session.view import PageLimits
from rath.session.view.page_data import (
    Catalogue,
    PageNode,
    Range,
    cut_text,
    harmless,
    nodes_of,
    own_entries,
    totals,
)
from tests.support.api import Body
from tests.support.sessions import row_lists, run
from tests.support.waiting import PATIENCE


def node_of(session: Session) -> PageNode:
    return nodes_of([session.as_parent()])[-1]


def test_a_long_line_of_forks_has_all_its_sessions() -> None:
    session = Session.from_user_message("hello")
    for _ in range(2000):
        session = session.fork()
    assert len(nodes_of([session.as_parent()])) == 2001


def test_the_later_one_of_two_moments_of_a_session_counts() -> None:
    asked = run(["hello"]).synchronize()
    fork = asked.fork()
    operation = asked.record[0]
    asked.add_entry(operation)
    made = nodes_of([fork.as_parent(), asked.as_parent()])
    body = next(node.body for node in made if node.id == asked.id)
    assert body is not None
    assert len(body.record) == len(fork.record)


def test_a_parent_that_is_known_by_its_id_alone_is_absent() -> None:
    parent = uuid4()
    session = Session(Session.from_user_message("x").chunk_table, parent_session_ids=(parent,))
    absent, _ = nodes_of([session.as_parent()])
    assert (absent.id, absent.state, absent.body) == (parent, "absent", None)
    assert own_entries(absent) == ()
    assert totals(absent)["title"] == ""


def test_a_run_that_goes_on_is_running_and_then_completed() -> None:
    may_end = threading.Event()

    def wait(_: object) -> str:
        may_end.wait(PATIENCE)
        return "done"

    session = run([wait])
    running = node_of(session)
    may_end.set()
    session.synchronize()
    assert (running.state, node_of(session).state) == ("running", "completed")


def test_a_failed_run_says_why() -> None:
    session = run([ValueError("no such luck")])
    with pytest.raises(ValueError, match="luck"):
        session.synchronize()
    assert (node_of(session).state, "no such luck" in node_of(session).problem) == ("failed", True)


def test_a_parent_known_by_its_id_is_told_whole_where_it_is_given_too() -> None:
    parent = Session.from_user_message("hello")
    child = Session(parent.chunk_table, parent_session_ids=(parent.id,))
    first, second = nodes_of([child.as_parent(), parent.as_parent()])
    assert (first.id, first.state, second.id) == (parent.id, "completed", child.id)


def expanded(ranges: Sequence[Range]) -> list[int]:
    return [number for first, n in ranges for number in range(first, first + n)]


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


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_chars", 0),
        ("max_diff_chars", -1),
        ("max_image_bytes", -1),
        ("max_all_images_bytes", -1),
    ],
)
def test_a_limit_that_means_nothing_is_refused(name: str, value: int) -> None:
    with pytest.raises(ValueError, match=name):
        PageLimits(**{name: value})


@given(st.text(), st.integers(1, 20))
def test_a_long_text_keeps_its_ends_and_says_what_is_missing(text: str, max_chars: int) -> None:
    made = cut_text(text, max_chars)
    if len(text) <= max_chars:
        assert made == text
        return
    assert isinstance(made, list)
    head, n_left, tail = made
    assert isinstance(head, str)
    assert isinstance(tail, str)
    assert len(head) + len(tail) == max_chars
    assert n_left == len(text) - max_chars
    assert text.startswith(head)
    assert text.endswith(tail)


texts = st.text() | st.sampled_from(["</script>", "<!--<script>", "\u2028", "&lt;", "]]>"])


@given(st.lists(texts) | st.dictionaries(texts, texts))
def test_harmless_json_says_the_same_and_ends_no_script(value: object) -> None:
    made = harmless(json.dumps(value, ensure_ascii=False))
    assert json.loads(made) == value
    assert not set(made) & set("<>&\u2028\u2029")
