"""Writing, reading and listing notes in a local store."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rath.memory import (
    MemoryEntry,
    MemoryListResult,
    MemoryOpList,
    MemoryOpRead,
    MemoryOpResource,
    MemoryOpTree,
    MemoryOpWrite,
    MemoryReadResult,
    MemoryStore,
    MemoryWriteResult,
)
from rath.memory.notes import note_op
from rath.memory.uri import content_digest
from tests.support.memories import failed, text_at

A = "memory://user/memories/facts/a"

segments = st.text(
    st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=20
).filter(lambda text: text not in {".", ".."})


def entries(store: MemoryStore, op: MemoryOpList | MemoryOpTree) -> tuple[MemoryEntry, ...]:
    """What a listing holds."""
    result = store.dispatch(op)
    assert isinstance(result, MemoryListResult), result
    return result.entries


@given(name=segments, text=st.text(st.characters(codec="utf-8"), max_size=50))
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_under_any_name_comes_back(store: MemoryStore, name: str, text: str) -> None:
    uri = f"memory://user/{name}"
    assert store.dispatch(MemoryOpWrite(uri, text)) == MemoryWriteResult(uri, len(text.encode()))
    assert text_at(store, uri) == text
    assert uri.removesuffix(".md") in [
        each.uri for each in entries(store, MemoryOpList("memory://user"))
    ]


def test_a_note_is_a_markdown_file_with_its_exact_text(store: MemoryStore, root: Path) -> None:
    store.dispatch(MemoryOpWrite(A, "one\r\ntwo\n"))
    assert (root / "user/memories/facts/a.md").read_bytes() == b"one\r\ntwo\n"


def test_a_write_replaces_the_note_and_vectors_made_of_it(store: MemoryStore, root: Path) -> None:
    store.dispatch(MemoryOpWrite(A, "one"))
    vector = root / "user/memories/facts/a.vec"
    vector.write_text("{}")
    store.dispatch(MemoryOpWrite(A, "two", mode="write"))
    assert text_at(store, A) == "two"
    assert not vector.exists()


def test_writing_the_same_text_again_leaves_the_file_alone(store: MemoryStore, root: Path) -> None:
    store.dispatch(MemoryOpWrite(A, "one"))
    before = (root / "user/memories/facts/a.md").stat()
    store.dispatch(MemoryOpWrite(A, "one"))
    after = (root / "user/memories/facts/a.md").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_other_modes_of_writing_are_not_supported(store: MemoryStore) -> None:
    assert failed(store, MemoryOpWrite(A, "x", mode="append")) == "unsupported"


def test_a_lone_surrogate_is_replaced(store: MemoryStore) -> None:
    store.dispatch(MemoryOpWrite(A, "a\ud800b"))
    assert text_at(store, A) == "a\ufffdb"


@pytest.mark.parametrize(
    "uri", ["", "file:///user/a", "memory://user/a\0b", "memory://user/\ud800"]
)
def test_what_names_no_place_is_refused_by_every_operation(store: MemoryStore, uri: str) -> None:
    ops = [MemoryOpWrite(uri, "x"), MemoryOpRead(uri), MemoryOpList(uri), MemoryOpTree(uri)]
    assert [failed(store, op) for op in ops] == ["invalid_uri"] * 4


def test_a_link_out_of_the_store_is_not_followed(
    store: MemoryStore, root: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "a.md").write_text("secret")
    (root / "user").mkdir()
    (root / "user/link").symlink_to(outside)
    (root / "user/a.md").symlink_to(outside / "a.md")
    for uri in ("memory://user/link/a", "memory://user/a"):
        assert failed(store, MemoryOpRead(uri)) == "invalid_uri"
        assert failed(store, MemoryOpWrite(uri, "x")) == "invalid_uri"
    assert (outside / "a.md").read_text() == "secret"


def test_the_legacy_scheme_names_the_same_notes(store: MemoryStore) -> None:
    store.dispatch(MemoryOpWrite("viking://user/a", "x"))
    assert text_at(store, "memory://user/a") == "x"
    assert entries(store, MemoryOpList("viking://user"))[0].uri == "memory://user/a"


def test_reading_as_bytes_and_in_an_encoding(store: MemoryStore, root: Path) -> None:
    store.dispatch(MemoryOpWrite(A, "ä"))
    (root / "user/memories/facts/raw.md").write_bytes(b"\xe4")
    raw = "memory://user/memories/facts/raw"
    assert store.dispatch(MemoryOpRead(A, encoding=None)) == MemoryReadResult(
        A, "ä".encode(), "detail"
    )
    assert store.dispatch(MemoryOpRead(raw, "overview", "latin-1")) == MemoryReadResult(
        raw, "ä", "overview"
    )
    assert failed(store, MemoryOpRead(raw)) == "internal"
    assert failed(store, MemoryOpRead(raw, encoding="no-such")) == "unsupported"


def test_a_file_that_is_no_note_is_read_by_its_complete_name(
    store: MemoryStore, root: Path
) -> None:
    (root / "resources/x").mkdir(parents=True)
    (root / "resources/x/source.txt").write_text("text")
    assert text_at(store, "memory://resources/x/source.txt") == "text"


def test_what_is_missing_or_a_directory_is_not_found(store: MemoryStore, root: Path) -> None:
    (root / "user/d.md").mkdir(parents=True)
    for uri in ("memory://user/none", "memory://user/d", "memory://user/d.md", "memory://user"):
        assert failed(store, MemoryOpRead(uri)) == "not_found"


def test_a_directory_in_place_of_a_note_is_a_failure_of_writing(
    store: MemoryStore, root: Path
) -> None:
    (root / "user/d.md").mkdir(parents=True)
    assert failed(store, MemoryOpWrite("memory://user/d", "x")) == "internal"
    assert [each.name for each in entries(store, MemoryOpList("memory://user"))] == ["d.md"]


def test_a_listing_is_sorted_and_hides_what_the_store_keeps_for_itself(
    store: MemoryStore, root: Path
) -> None:
    for name in ("b", "a"):
        store.dispatch(MemoryOpWrite(f"memory://user/{name}", "xyz"))
    (root / "user/dir").mkdir()
    for name in ("a.vec", "meta.json", "a.meta.json", ".atomic_0.tmp"):
        (root / "user" / name).write_text("{}")
    (root / "user/data.json").write_text("{}")
    assert entries(store, MemoryOpList("memory://user")) == (
        MemoryEntry("a", "memory://user/a", False, 3),
        MemoryEntry("b", "memory://user/b", False, 3),
        MemoryEntry("data.json", "memory://user/data.json", False, 2),
        MemoryEntry("dir", "memory://user/dir", True, None),
    )


def test_nothing_is_listed_below_what_is_missing_or_a_note(store: MemoryStore) -> None:
    store.dispatch(MemoryOpWrite(A, "x"))
    for uri in ("memory://agent/none", A, f"{A}.md"):
        assert entries(store, MemoryOpList(uri)) == ()
        assert entries(store, MemoryOpTree(uri)) == ()


def test_a_name_that_is_no_text_is_left_out_of_a_listing(store: MemoryStore, root: Path) -> None:
    store.dispatch(MemoryOpWrite("memory://user/a", "x"))
    Path(os.fsdecode(os.fsencode(root / "user") + b"/\xff.md")).write_text("x")
    assert [each.name for each in entries(store, MemoryOpList("memory://user"))] == ["a"]


@pytest.mark.parametrize(
    ("depth", "expected"),
    [(0, ["a", "z"]), (1, ["a", "a/b", "a/x", "z"]), (2, ["a", "a/b", "a/b/c", "a/x", "z"])],
)
def test_a_tree_goes_as_deep_as_it_is_asked_to(
    store: MemoryStore, depth: int, expected: list[str]
) -> None:
    for name in ("a/b/c", "a/x", "z"):
        store.dispatch(MemoryOpWrite(f"memory://agent/{name}", "x"))
    found = entries(store, MemoryOpTree("memory://agent", depth))
    assert [each.uri.removeprefix("memory://agent/") for each in found] == expected


def test_another_note_of_the_same_name_gets_a_longer_one(store: MemoryStore) -> None:
    op = note_op("new", scope="agent", category="facts")
    store.dispatch(MemoryOpWrite(op.uri, "old"))
    longer = f"memory://agent/memories/facts/{content_digest('new')[:16]}"
    assert store.dispatch(op) == store.dispatch(op) == MemoryWriteResult(longer, 3)
    assert (text_at(store, op.uri), text_at(store, longer)) == ("old", "new")
    store.dispatch(MemoryOpWrite(longer, "old too"))
    assert store.dispatch(op) == MemoryWriteResult(
        f"memory://agent/memories/facts/{content_digest('new')}", 3
    )


def test_a_store_without_write_permission_is_reported_apart(store: MemoryStore, root: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    store.dispatch(MemoryOpWrite("memory://user/a", "x"))
    (root / "user").chmod(0o500)
    try:
        assert failed(store, MemoryOpWrite("memory://user/b", "x")) == "unauthorized"
    finally:
        (root / "user").chmod(0o700)


def test_a_resource_needs_a_place(store: MemoryStore) -> None:
    assert failed(store, MemoryOpResource("x", "memory://nowhere/a")) == "invalid_uri"


def test_what_has_no_name_is_no_note(store: MemoryStore) -> None:
    for uri in ("memory://user", "memory://user/.md", "memory://user/a/.md"):
        assert failed(store, MemoryOpWrite(uri, "x")) == "invalid_uri"
    assert entries(store, MemoryOpTree("memory://user")) == ()
