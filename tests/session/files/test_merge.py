"""What becomes of each file in a three-way merge."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import strategies as st

from rath._async.runtime import runtime
from rath._core.blobs import MAX_BLOB_BYTES, Blob
from rath.backend.changes import FileState, Manifest
from rath.backend.snapshots import FrozenWorkspace, NewFile
from rath.session.files.merge import FileConflict, FileMerge, FileVersion, merge_texts, merge_trees

FILE, SCRIPT, LINK = stat.S_IFREG | 0o644, stat.S_IFREG | 0o755, stat.S_IFLNK | 0o777
LARGE = b"x\n" * (MAX_BLOB_BYTES // 2 + 1)


class Tree(FrozenWorkspace):
    """Files with any mode, given as content or as content and mode."""

    def __init__(self, files: Mapping[str, Any]) -> None:
        self._files: dict[str, tuple[bytes, int]] = {
            path: file if isinstance(file, tuple) else (file, FILE) for path, file in files.items()
        }

    async def amanifest(self) -> Manifest:
        return {
            path: FileState(Blob.from_bytes(data).digest, len(data), mode)
            for path, (data, mode) in self._files.items()
        }

    async def aread(self, path: str) -> bytes:
        return self._files[path][0]

    def base_with(self, other: FrozenWorkspace) -> None:
        return None


def merge(base: Mapping[str, Any], ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> FileMerge:
    trees = (Tree(base), Tree(ours), Tree(theirs))
    return runtime().run(lambda: merge_trees(*trees), label="a merge")


TEXT = b"1\n2\n3\n4\n"
KEPT = object()


@pytest.mark.parametrize(
    ("base", "ours", "theirs", "expected"),
    [
        pytest.param(TEXT, b"0\n2\n3\n4\n", b"1\n2\n3\n5\n", (b"0\n2\n3\n5\n", FILE), id="lines"),
        pytest.param(b"a", (b"a", SCRIPT), b"b", (b"b", SCRIPT), id="mode and content"),
        pytest.param(b"a", b"b", (b"a", SCRIPT), (b"b", SCRIPT), id="content and mode"),
        pytest.param(b"a", b"b", (b"b", SCRIPT), (b"b", SCRIPT), id="the same and a mode"),
        pytest.param(
            TEXT, (b"0\n2\n3\n4\n", SCRIPT), b"1\n2\n3\n5\n", (b"0\n2\n3\n5\n", SCRIPT),
            id="lines and mode",
        ),
        pytest.param(b"a", None, b"a", KEPT, id="deleted by us"),
        pytest.param(b"a", b"a", None, None, id="deleted by them"),
        pytest.param(None, None, (b"l", LINK), (b"l", LINK), id="a link of theirs"),
        pytest.param(LARGE, LARGE, b"a", (b"a", FILE), id="a large one that they changed"),
    ],
)  # fmt: skip
def test_what_only_one_side_changed_is_taken(
    base: Any, ours: Any, theirs: Any, expected: Any
) -> None:
    trees = [{} if file is None else {"a": file} for file in (base, ours, theirs)]
    made = merge(*trees)
    assert made.conflicts == ()
    if expected is KEPT:
        assert made.changes == {}
    else:
        assert made.changes == {"a": None if expected is None else NewFile(*expected)}


@pytest.mark.parametrize(
    ("base", "ours", "theirs", "kind"),
    [
        pytest.param(b"1\n", b"2\n", b"3\n", "content", id="the same line"),
        pytest.param(b"1", b"\0", b"3", "binary", id="bytes"),
        pytest.param(b"1", LARGE, b"3", "too_large", id="large"),
        pytest.param((b"1", LINK), (b"2", LINK), (b"3", LINK), "link", id="links"),
        pytest.param(b"1", (b"1", SCRIPT), (b"1", FILE | 0o20), "mode", id="modes"),
        pytest.param(b"1", (b"2", LINK), b"3", "type", id="a file that became a link"),
        pytest.param(b"1", (b"1", SCRIPT), (b"3", LINK), "type", id="a mode and a link"),
        pytest.param((b"1", LINK), b"2", (b"3", LINK), "type", id="a link that became a file"),
        pytest.param((b"1", LINK), b"2", b"3", "type", id="a link that became two files"),
        pytest.param(b"1", (b"2", LINK), (b"3", LINK), "link", id="a file that became two links"),
        pytest.param(b"1", None, b"3", "deleted", id="deleted by us"),
        pytest.param(b"1", b"2", None, "deleted", id="deleted by them"),
        pytest.param(None, b"2", b"3", "added", id="added by both"),
    ],
)
def test_what_both_sides_changed_differently_is_a_conflict(
    base: Any, ours: Any, theirs: Any, kind: str
) -> None:
    trees = [{} if file is None else {"a": file} for file in (base, ours, theirs)]
    made = merge(*trees)
    assert made.changes == {}
    assert [(each.path, each.kind) for each in made.conflicts] == [("a", kind)]


def test_a_conflict_holds_what_the_three_have() -> None:
    (conflict,) = merge({"a": b"1"}, {"a": (LARGE, SCRIPT)}, {}).conflicts
    large = Blob.from_bytes(LARGE)
    assert conflict == FileConflict(
        "a", "deleted", FileVersion(Blob.from_bytes(b"1"), FILE), FileVersion(large, SCRIPT), None
    )
    assert conflict.ours is not None
    assert conflict.ours.content.data is None


def test_a_file_where_the_other_side_has_a_directory_is_a_conflict() -> None:
    made = merge({}, {"a": b"file", "ab": b""}, {"a/b/c": b"below", "c": b""})
    assert [(each.path, each.kind) for each in made.conflicts] == [
        ("a", "directory"), ("a/b/c", "directory"),
    ]  # fmt: skip
    assert list(made.changes) == ["c"]


lines = st.lists(st.sampled_from(["a\n", "b\n", "c\n", "\n"]), max_size=8)


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        pytest.param("1\nb\nc\nd\n", "a\nb\nc\n4\n", "1\nb\nc\n4\n", id="far apart"),
        pytest.param("a\nb\nc\nd\ne", "0\na\nb\nc\nd\n", "0\na\nb\nc\nd\ne", id="at both ends"),
        pytest.param("a\nc\nd\n", "a\nb\nc\nd\nd\n", "a\nc\nd\nd\n", id="taken away and added"),
        pytest.param("a\n2\nc\nd\n", "a\nzwei\nc\nd\n", None, id="the same line"),
        pytest.param("a\n2\nc\nd\n", "a\nb\n3\nd\n", None, id="lines that touch"),
        pytest.param("a\nb\nc\nd\ne\n", "a\nb\nc\nd\nf\n", None, id="at the same place"),
    ],
)
def test_what_two_sides_come_to(ours: str, theirs: str, expected: str | None) -> None:
    assert merge_texts("a\nb\nc\nd\n", ours, theirs) == expected
