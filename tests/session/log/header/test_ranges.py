"""What a session begins with is told as ranges of its parents, whatever they share."""

from __future__ import annotations

from uuid import uuid4

from hypothesis import given

from rath._core.vector import Vector
from rath.session import ChunkRow, ChunkTable, Session
from rath.session.events import AncestorRange
from rath.session.log.header import RangeSource, count_in_ranges, entry_parts, row_parts
from tests.support.api import rows_digest
from tests.support.sessions import row_lists


def rows_of(session: Session) -> RangeSource[ChunkRow]:
    return RangeSource(session.id, session.chunk_table.vector)


def told(parts: tuple[AncestorRange, ...], *sources: RangeSource[ChunkRow]) -> list[ChunkRow]:
    items = {source.session: source.items for source in sources}
    found: list[ChunkRow] = []
    for part in parts:
        rows = items[part.session].prefix(part.stop).since(part.start)
        assert rows_digest(rows) == part.digest
        found += rows
    return found


def grown(session: Session, rows: list[ChunkRow]) -> Session:
    made = session.fork()
    table = made.chunk_table.born_in(made.id, rows)
    return Session(table, id=made.id)


@given(base=row_lists, ours=row_lists, theirs=row_lists)
def test_parts_of_a_merge_tell_all_of_its_rows(
    base: list[ChunkRow], ours: list[ChunkRow], theirs: list[ChunkRow]
) -> None:
    root = Session(ChunkTable(base))
    mine = Session(root.chunk_table.born_in(uuid4(), ours))
    other = Session(root.chunk_table.born_in(uuid4(), theirs))
    merged = mine.merge(other)
    sources = (rows_of(mine), rows_of(other))
    parts = row_parts(merged.chunk_table.vector, sources)
    assert count_in_ranges(parts) == len(merged.chunk_table)
    assert told(parts, *sources) == list(merged.chunk_table)


@given(base=row_lists, new=row_lists)
def test_new_rows_are_in_no_part(base: list[ChunkRow], new: list[ChunkRow]) -> None:
    root = Session(ChunkTable(base))
    table = root.chunk_table.born_in(uuid4(), new)
    parts = row_parts(table.vector, [rows_of(root)])
    assert count_in_ranges(parts) == len(base)


def test_without_parents_nothing_is_told() -> None:
    table = ChunkTable(Session.from_user_message("hi").chunk_table)
    assert row_parts(table.vector, []) == ()


def test_the_parts_end_where_something_is_in_no_parent() -> None:
    one, two = (Session.from_user_message(text) for text in ("a", "b"))
    stranger = Session.from_user_message("c").chunk_table[0]
    rows = [*one.chunk_table, *two.chunk_table, stranger, *two.chunk_table]
    parts = row_parts(Vector(rows), [rows_of(one), rows_of(two)])
    assert [(part.session, part.start, part.stop) for part in parts] == [
        (one.id, 0, 1),
        (two.id, 0, 1),
    ]


def test_ranges_that_are_not_next_to_each_other_are_parts_of_their_own() -> None:
    rows = [Session.create(text=text).chunk_table[0] for text in ("a", "b", "c")]
    parent = RangeSource(uuid4(), Vector(rows))
    parts = row_parts(Vector([rows[0], rows[2]]), [parent])
    assert [(part.start, part.stop) for part in parts] == [(0, 1), (2, 3)]


def test_entries_are_told_by_their_ids() -> None:
    root = Session.from_user_message("hi")
    fork = root.fork()
    child = fork.fork()
    (part,) = entry_parts(child.record, [RangeSource(fork.id, fork.record)])
    assert (part.session, part.start, part.stop) == (fork.id, 0, 1)
