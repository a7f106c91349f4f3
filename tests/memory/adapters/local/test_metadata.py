"""The metadata of a note: its sources, its end, and the file that holds them."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath import memory
from rath.memory.adapters.local import notes
from rath.memory.adapters.local.catalog import Catalog
from rath.memory.adapters.local.metadata import (
    MetadataRecord,
    read_metadata,
    replacing_text,
    write_metadata,
)
from rath.memory.adapters.local.store import Expiry, LocalStore
from rath.memory.notes import EXPIRES_AT, MODEL, NO_METADATA, ROWS, SESSION_ID, Metadata, note_op
from tests.support.memories import Clock, forget, found, listed, opened, read, write

NOW = 1_000_000.0

times = st.integers(0, 100_000).map(float)
sources = st.builds(
    memory.MemorySource,
    st.sampled_from(["s", "t", "u"]),
    st.sets(st.integers(0, 9)).map(lambda rows: tuple(sorted(rows))),
    st.none() | st.just("m"),
    st.none() | times,
)
metadata_values = st.builds(
    Metadata,
    st.none() | times,
    st.lists(sources, max_size=3, unique_by=lambda source: source.session_id).map(tuple),
).flatmap(
    lambda value: st.booleans().map(
        lambda flag: Metadata(value.expires_at, value.sources, flag and bool(value.sources))
    )
)


def names(value: Metadata) -> set[str]:
    """The sessions that a note comes from."""
    return {source.session_id for source in value.sources}


@given(value=metadata_values)
def test_telling_the_same_twice_tells_no_more(value: Metadata) -> None:
    assert value.union(value) == value


@given(old=metadata_values, new=metadata_values)
def test_all_sources_count_and_the_later_end(old: Metadata, new: Metadata) -> None:
    both = old.union(new)
    assert names(both) == names(old) | names(new)
    for now in (0.0, 1000.0, 50_000.0, 100_000.0):
        assert both.is_expired(now) == (old.is_expired(now) and new.is_expired(now))
    is_by_itself = any(each.is_remembered or not each.sources for each in (old, new))
    assert both.is_remembered == (is_by_itself and bool(both.sources))


@given(old=metadata_values, new=metadata_values)
def test_rows_of_a_session_are_united(old: Metadata, new: Metadata) -> None:
    rows: dict[str, set[int]] = {}
    for source in (*old.sources, *new.sources):
        rows.setdefault(source.session_id, set()).update(source.rows)
    assert {each.session_id: set(each.rows) for each in old.union(new).sources} == rows


@given(value=metadata_values)
def test_a_note_goes_with_its_last_session_unless_it_was_remembered(
    value: Metadata,
) -> None:
    left: Metadata | None = value
    for session in sorted(names(value)):
        assert left is not None
        assert left.comes_from(session)
        left = left.without(session)
        assert left is None or not left.comes_from(session)
    if value.sources:
        assert left == (Metadata(value.expires_at) if value.is_remembered else None)


def test_metadata_tell_the_end_and_the_source() -> None:
    metadata = {
        EXPIRES_AT: "1970-01-01T01:00:09+01:00",
        SESSION_ID: "s",
        ROWS: "4,3,4",
        MODEL: "m",
        "else": "x",
    }
    value = Metadata.from_write(metadata, now=NOW)
    assert value == Metadata(9.0, (memory.MemorySource("s", (3, 4), "m", NOW),))
    assert Metadata.from_write({"on_conflict": "keep_both"}, now=NOW) == NO_METADATA
    assert Metadata.from_write({SESSION_ID: "s"}, now=NOW).sources == (
        memory.MemorySource("s", (), None, NOW),
    )


@pytest.mark.parametrize(
    "metadata",
    [
        {EXPIRES_AT: "tomorrow"},
        {EXPIRES_AT: "2030-01-01T00:00:00"},
        {EXPIRES_AT: ""},
        {EXPIRES_AT: 5},
        {SESSION_ID: ""},
        {SESSION_ID: "a/b"},
        {SESSION_ID: 5},
        {SESSION_ID: "s", ROWS: "1;2"},
        {SESSION_ID: "s", ROWS: "-1"},
        {SESSION_ID: "s", ROWS: "1,,2"},
        {SESSION_ID: "s", ROWS: "\u00b2"},
        {SESSION_ID: "s", ROWS: 3},
        {ROWS: "1"},
        {MODEL: "m"},
    ],
)
def test_what_cannot_be_preserved_is_refused(metadata: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"expected|give both"):
        Metadata.from_write(metadata, now=NOW)


moments = st.datetimes().map(lambda moment: (moment - moment.min).total_seconds() - 62_135_596_800)
texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
rows = st.lists(st.integers(0, 10**9), max_size=4).map(tuple)
any_sources = st.builds(memory.MemorySource, texts, rows, st.none() | texts, st.none() | moments)
sourced = st.builds(Metadata, st.none() | moments, st.lists(any_sources, max_size=3).map(tuple))
remembered_too = st.builds(Metadata, st.none(), st.tuples(any_sources), st.just(value=True))
any_metadata = sourced | remembered_too
records = st.builds(MetadataRecord, any_metadata) | st.builds(
    MetadataRecord, any_metadata, texts, any_metadata
)


@given(record=records)
def test_what_is_written_is_read(record: MetadataRecord) -> None:
    again = MetadataRecord.from_json(record.to_json())
    assert MetadataRecord.from_json(again.to_json()) == again
    assert again.next_digest == record.next_digest
    for metadata, before in (
        (again.metadata, record.metadata),
        (again.next_metadata, record.next_metadata),
    ):
        assert metadata.expires_at == pytest.approx(before.expires_at, abs=1e-3)
        assert [each.session_id for each in metadata.sources] == [
            each.session_id for each in before.sources
        ]
        assert metadata.is_remembered == before.is_remembered


def test_the_file_has_the_documented_form() -> None:
    metadata = Metadata(60.0, (memory.MemorySource("s", (1, 2), "m", 0.5),))
    assert json.loads(MetadataRecord(metadata).to_json()) == {
        "schema_version": 1,
        "expires_at": "1970-01-01T00:01:00+00:00",
        "sources": [
            {
                "session_id": "s",
                "rows": [1, 2],
                "model": "m",
                "learned_at": "1970-01-01T00:00:00.500000+00:00",
            }
        ],
    }
    assert MetadataRecord.from_json(MetadataRecord(metadata).to_json()) == MetadataRecord(metadata)
    assert MetadataRecord.from_json(MetadataRecord().to_json()) == MetadataRecord(NO_METADATA)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[",
        "[]",
        "{}",
        '{"schema_version": 2, "expires_at": null, "sources": []}',
        '{"schema_version": 1, "expires_at": null}',
        '{"schema_version": 1, "expires_at": 5, "sources": []}',
        '{"schema_version": 1, "expires_at": "2030-01-01", "sources": []}',
        '{"schema_version": 1, "expires_at": "soon", "sources": []}',
        '{"schema_version": 1, "expires_at": null, "sources": [1]}',
        '{"schema_version": 1, "expires_at": null, "sources": [{"rows": []}]}',
        '{"schema_version": 1, "expires_at": null, "sources": [{"session_id": "s"}]}',
        '{"schema_version": 1, "expires_at": null, "sources": [], "next": {}}',
        "[" * 100_000,
    ],
)
def test_a_foreign_file_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        MetadataRecord.from_json(text.encode())


@pytest.mark.parametrize(
    "data",
    [
        b'\xef\xbb\xbf{"schema_version": 1, "expires_at": null, "sources": []}',
        b'{"schema_version": 1, "expires_at": null, "sources": [], "remembered": null}',
        b'{"schema_version": 1, "sources": [], "more": {}}',
    ],
)
def test_a_file_that_an_editor_wrote_counts(data: bytes) -> None:
    assert MetadataRecord.from_json(data) == MetadataRecord()


A = "memory://user/a"
SOON, LATER = Metadata(10.0), Metadata(20.0)


def beside(root: Path) -> Path:
    """The file that tells about the note."""
    return root / "user/a.meta.json"


def test_there_is_no_file_to_say_nothing(store: memory.MemoryStore, root: Path) -> None:
    write(store, A, "x")
    assert not beside(root).exists()


def test_a_note_tells_where_it_comes_from(store: memory.MemoryStore, clock: Clock) -> None:
    write(store, A, "x", until=clock.after(9), session="s", rows=(3, 1))
    note = read(store, A)
    assert note is not None
    [source] = note.sources
    assert (source.session_id, source.rows) == ("s", (1, 3))
    assert source.learned_at == clock.now.timestamp()
    assert note.expires_at == clock.now.timestamp() + 9


def test_the_place_of_an_expired_note_is_free(store: memory.MemoryStore, clock: Clock) -> None:
    op = note_op("x")
    write(store, op.uri, "other", until=clock.after(1))
    clock.turn(1)
    assert store.dispatch(op) == memory.MemoryWriteResult(op.uri, 1)
    note = read(store, op.uri)
    assert note is not None
    assert (note.data, note.expires_at) == ("x", None)


def test_a_note_that_came_just_before_is_seen(root: Path) -> None:
    root.mkdir()
    catalog = Catalog(root)
    store = LocalStore(root, catalog)
    op = note_op("x")
    notes.write(store, memory.MemoryOpWrite(op.uri, "other"))

    def wait_for_turn() -> bool:
        return True

    for _ in range(2):
        result = notes.write(store, op, only_if=wait_for_turn)
        assert isinstance(result, memory.MemoryWriteResult)
        assert result.uri.startswith(op.uri)
        assert result.uri != op.uri
    catalog.close()


def test_bad_metadata_are_refused_and_nothing_is_written(
    store: memory.MemoryStore, root: Path
) -> None:
    result = store.dispatch(memory.MemoryOpWrite(A, "x", metadata={EXPIRES_AT: "soon"}))
    assert isinstance(result, memory.MemoryExecutionFailure)
    assert result.kind == "unsupported"
    assert "ISO 8601" in result.message
    assert not (root / "user").exists()


@pytest.mark.parametrize("text", ["[", "{}", '{"name": "other"}', "x" * 1_100_000])
def test_a_foreign_file_hides_nothing_and_stays(
    store: memory.MemoryStore, root: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    (root / "user").mkdir()
    beside(root).write_text(text)
    with caplog.at_level(logging.INFO, "rath.memory.local"):
        write(store, A, "x")
        (root / "user/a.md").write_text("zebra")
        assert found(store, "zebra") == [A]
    told = [record.message for record in caplog.records if record.name == "rath.memory.local"]
    assert [message.count("tells nothing") for message in told] == [1]
    assert listed(store) == [A]
    assert read(store, A) is not None
    assert beside(root).read_text() == text


def test_a_directory_or_a_link_in_its_place_tells_nothing(
    store: memory.MemoryStore, root: Path, tmp_path: Path, clock: Clock
) -> None:
    write(store, A, "x")
    beside(root).mkdir()
    assert listed(store) == [A]
    beside(root).rmdir()
    outside = tmp_path / "outside.json"
    outside.write_text("mine")
    beside(root).symlink_to(outside)
    assert read(store, A) is not None
    write(store, A, "x", session="s")
    assert outside.read_text() == "mine"
    assert forget(store, session="s") == ()
    assert read(store, A) is not None


def test_a_change_by_hand_counts(store: memory.MemoryStore, root: Path, clock: Clock) -> None:
    write(store, A, "zebra", until=clock.after(9))
    beside(root).write_text(beside(root).read_text().replace("2030", "2029"))
    assert read(store, A) is None
    assert listed(store) == []
    assert found(store, "zebra") == []
    beside(root).unlink()
    assert found(store, "zebra") == [A]


def test_a_text_edited_by_hand_keeps_its_end_and_its_source(
    store: memory.MemoryStore, root: Path, clock: Clock
) -> None:
    write(store, A, "x", until=clock.after(9), session="s")
    (root / "user/a.md").write_text("x, mended")
    assert forget(store, session="s") == (A,)


def test_while_a_text_is_replaced_each_has_its_own(tmp_path: Path) -> None:
    note = tmp_path / "a.md"
    note.write_bytes(b"old")
    write_metadata(note, SOON)
    with replacing_text(note, b"new", LATER):
        assert read_metadata(note).metadata == SOON
        note.write_bytes(b"new")
        assert read_metadata(note).metadata == LATER
    assert read_metadata(note).metadata == LATER
    with replacing_text(note, b"newer", Metadata()):
        assert read_metadata(note).metadata == LATER
        note.write_bytes(b"newer")
        assert read_metadata(note).metadata == Metadata()
    assert not (tmp_path / "a.meta.json").exists()


class Killed(BaseException):
    """The process ended here."""


@contextmanager
def killed_after(n_changes: int) -> Generator[None]:
    """Let the process do so many renames and removals in the block, and no more."""
    left = iter(range(n_changes))

    def counted(change: Callable[..., None]) -> Callable[..., None]:
        def act(*args: object, **options: object) -> None:
            if next(left, None) is None:
                raise Killed
            change(*args, **options)

        return act

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "replace", counted(os.replace))
        patch.setattr(os, "unlink", counted(os.unlink))
        with suppress(Killed):
            yield


@pytest.mark.parametrize("is_timed", [False, True], ids=["permanent", "timed"])
@pytest.mark.parametrize("n_changes", range(5))
def test_a_process_killed_between_steps_leaves_each_text_with_its_own_end(
    root: Path, n_changes: int, is_timed: bool
) -> None:
    clock = Clock()
    timed = {EXPIRES_AT: clock.after(9)}
    told = {"old": timed if is_timed else {}, "new": {} if is_timed else timed}
    root.mkdir()
    catalog = Catalog(root)
    store = LocalStore(root, catalog, expiry=Expiry(clock))
    notes.write(store, memory.MemoryOpWrite(A, "old", metadata=told["old"]))
    with killed_after(n_changes):
        notes.write(store, memory.MemoryOpWrite(A, "new", metadata=told["new"]))
    catalog.close()
    with opened(root, clock) as again:
        note = read(again, A)
        assert note is not None
        assert (note.expires_at is not None) == bool(told[str(note.data)])
        assert found(again, str(note.data)) == [A]


@pytest.mark.parametrize("n_changes", range(3))
def test_what_a_killed_process_reported_of_a_note_it_never_wrote_says_nothing(
    root: Path, n_changes: int
) -> None:
    clock = Clock()
    root.mkdir()
    catalog = Catalog(root)
    store = LocalStore(root, catalog, expiry=Expiry(clock))
    with killed_after(n_changes):
        notes.write(store, memory.MemoryOpWrite(A, "x", metadata={EXPIRES_AT: clock.after(9)}))
    notes.write(store, memory.MemoryOpWrite(A, "x"))
    catalog.close()
    with opened(root, clock) as again:
        note = read(again, A)
        assert note is not None
        assert note.expires_at is None
