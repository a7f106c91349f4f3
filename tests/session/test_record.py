"""The record: frozen entries, united by id, each once and in order."""

from __future__ import annotations

from datetime import UTC
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath._core.vector import Vector
from rath.session import user_text_chunk
from rath.session.operation import Place
from rath.session.record import (
    Entry,
    ModelCall,
    Operation,
    Record,
    ToolRun,
    evidence_of,
    unite,
)
from rath.testing import tool_call
from tests.support.sessions import FunctionTool, run

counts = st.integers(0, 5)


def entry() -> Entry:
    return Operation(operation=uuid4(), kind="fork", place=Place("", 0), session=uuid4())


def entries(count: int) -> list[Entry]:
    return [entry() for _ in range(count)]


def test_an_entry_has_an_id_of_its_own_and_a_time_in_utc() -> None:
    one, other = entry(), entry()
    assert one.id != other.id
    assert one.at.tzinfo is UTC


def test_an_entry_never_changes() -> None:
    with pytest.raises(AttributeError, match="immutable"):
        entry().rows = ()  # type: ignore[misc]  # that is tested


@given(common=counts, mine=counts, theirs=counts)
def test_what_two_records_share_stands_once(common: int, mine: int, theirs: int) -> None:
    root: Record = Vector(entries(common))
    a, b = root.extend(entries(mine)), root.extend(entries(theirs))
    assert list(unite(a, b)) == [*a, *b.since(common)]


@given(common=counts, mine=counts, theirs=counts)
def test_entries_are_known_by_id_where_records_share_no_memory(
    common: int, mine: int, theirs: int
) -> None:
    shared, own, other = entries(common), entries(mine), entries(theirs)
    a: Record = Vector([*shared, *own])
    b: Record = Vector([*other, *shared])
    assert list(unite(a, b)) == [*shared, *own, *other]


@given(common=counts, mine=counts)
def test_uniting_with_what_is_known_already_gives_the_same_record(common: int, mine: int) -> None:
    root: Record = Vector(entries(common))
    a = root.extend(entries(mine))
    assert unite(a, root) is a
    assert unite(a, a) is a
    assert unite(a, Vector()) is a


def test_the_evidence_of_a_row_is_the_entry_that_made_it() -> None:
    tool = FunctionTool("f", lambda *_: 1)
    out = run([tool_call("f"), "done"], tool).synchronize()
    made_by = [evidence_of(out.record, row) for row in out.chunk_table]
    assert [type(entry) for entry in made_by] == [type(None), ModelCall, ToolRun, ModelCall]
    assert [out.evidence_of(row) for row in out.chunk_table] == made_by


def test_a_row_without_a_name_has_no_evidence() -> None:
    assert evidence_of(run(["done"]).record, user_text_chunk("hi")) is None
