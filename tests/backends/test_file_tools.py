"""Edits, parts and lines of files, written once for every driver."""

from __future__ import annotations

import io
import os
import re
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from rath.backend import (
    BackendSandbox,
    BackendToolFilesEdit,
    BackendToolFilesRead,
    FileContent,
    FileEditResult,
    ToolExecutionFailure,
    ToolResult,
)
from rath.backend.file_tools import (
    MAX_READ_BYTES,
    DiskFile,
    EditedContent,
    apply_edit,
    read_content,
    run_now,
    slice_content,
    split_lines,
)

pieces = st.text(st.sampled_from("ab\n €"), min_size=1, max_size=6)
texts = st.text(st.sampled_from("ab\n €"), max_size=60)


def edit(text: str, old: str, new: str, *, replace_all: bool = False) -> EditedContent:
    done = apply_edit(text.encode(), BackendToolFilesEdit("f", old, new, replace_all=replace_all))
    assert isinstance(done, EditedContent)
    return done


def refused(data: bytes, old: str, new: str = "new") -> ToolExecutionFailure:
    failure = apply_edit(data, BackendToolFilesEdit("f.txt", old, new))
    assert isinstance(failure, ToolExecutionFailure)
    return failure


def patched(text: str, diff: str) -> str:
    """What `patch` makes of `text`: hunks are applied where they say, and must fit."""
    lines = split_lines(text)
    made: list[str] = []
    at = 0
    for hunk in re.split(r"(?m)^(?=@@)", diff)[1:]:
        head, _, body = hunk.partition("\n")
        start, length = re.match(r"@@ -(\d+)(?:,(\d+))? \+", head).groups()  # type: ignore[union-attr]  # a hunk
        first = int(start) - (length != "0")
        made += lines[at:first]
        at = first
        for shown in re.findall(r"(?m)^[ +-].*\n(?:\\ No newline at end of file\n)?", body):
            entry = re.sub(r"\n\\ No newline.*\n", "", shown)
            if entry[0] != "+":
                assert lines[at] == entry[1:]
                at += 1
            if entry[0] != "-":
                made.append(entry[1:])
        new_start, new_length = re.search(r"\+(\d+)(?:,(\d+))? @@", head).groups()  # type: ignore[union-attr]  # a hunk
        n_new = 1 if new_length is None else int(new_length)
        assert len(made) == int(new_start) - (n_new > 0) + n_new
    return "".join([*made, *lines[at:]])


@given(before=texts, old=pieces, new=texts, after=texts)
def test_an_edit_and_its_inverse_leave_the_text_as_it_was(
    before: str, old: str, new: str, after: str
) -> None:
    text = before + old + after
    assume(text.find(old) == text.rfind(old))
    changed = before + new + after
    assert edit(text, old, new).data == changed.encode()
    assume(new and changed.find(new) == changed.rfind(new))
    assert edit(changed, new, old).data == text.encode()


@given(others=st.lists(texts, min_size=2, max_size=4), old=pieces, new=texts)
def test_all_occurrences_are_replaced_as_python_does_and_the_diff_says_so(
    others: list[str], old: str, new: str
) -> None:
    text = old.join(others)
    done = edit(text, old, new, replace_all=True)
    assert done.data == text.replace(old, new).encode()
    assert done.n_replaced == text.count(old)
    assert patched(text, done.diff) == text.replace(old, new)
    assert (done.diff == "") == (done.data == text.encode())


def test_a_diff_has_three_lines_around_each_change() -> None:
    text = "".join(f"line {n}\n" for n in range(1, 31))
    done = edit(text, "line 5\n", "five\n5\n")
    assert done.diff == (
        "--- a/f\n+++ b/f\n@@ -2,7 +2,8 @@\n line 2\n line 3\n line 4\n-line 5\n+five\n+5\n"
        " line 6\n line 7\n line 8\n"
    )
    assert edit(text, "2\n", "two\n", replace_all=True).diff.count("\n@@ ") == 3


def test_a_diff_says_where_the_last_line_has_no_end() -> None:
    assert edit("a\nb", "b", "c\n").diff.endswith(" a\n-b\n\\ No newline at end of file\n+c\n")


@given(lines=st.lists(st.sampled_from(["a", "b", "c d"]), min_size=2, max_size=6))
def test_line_ends_of_the_file_are_preserved(lines: list[str]) -> None:
    text = "".join(f"{line}\r\n" for line in ["start", *lines])
    done = edit(text, "start\n", "one\ntwo\n")
    assert done.data == ("one\r\ntwo\r\n" + text.removeprefix("start\r\n")).encode()


def test_mixed_line_ends_are_taken_as_they_are() -> None:
    assert edit("a\r\nb\nc\n", "b\n", "x\ny\n").data == b"a\r\nx\ny\nc\n"


def test_a_byte_order_mark_stays() -> None:
    assert edit("\ufeffa\n", "a", "b").data == "\ufeffb\n".encode()


def test_a_text_that_is_not_there_is_refused_with_the_nearest_lines() -> None:
    failure = refused(
        b"def first():\n    return 1\n\ndef second():\n    return  2\n", "    return 2"
    )
    assert failure.kind == "text_not_found"
    assert "5:     return  2" in (failure.detail or "")


def test_a_text_like_nothing_there_is_refused_without_lines() -> None:
    assert refused(b"abc\n", "zzzzzz").detail is None


@pytest.mark.parametrize(
    ("text", "old", "lines"), [("x\ny\nx\n", "x", "1, 3"), ("aaa", "aa", "1, 1")]
)
def test_a_text_that_is_not_unique_is_refused_with_its_lines(
    text: str, old: str, lines: str
) -> None:
    failure = refused(text.encode(), old)
    assert (failure.kind, failure.detail) == ("text_not_unique", f"lines {lines}")


def test_of_many_places_the_first_are_named() -> None:
    assert (refused(b"x\n" * 100, "x").detail or "").endswith("19, 20, and more")


@pytest.mark.parametrize(
    ("data", "old", "new", "kind"),
    [
        (b"abc", "", "x", "empty_old"),
        (b"a\xff", "a", "x", "decode_error"),
        (b"abc", "a", "\ud800", "encode_error"),
    ],
)
def test_what_is_no_text_is_refused(data: bytes, old: str, new: str, kind: str) -> None:
    assert refused(data, old, new).kind == kind


def test_many_replacements_in_a_long_file_take_no_time() -> None:
    text = "".join(f"value_{n} = old\n" for n in range(50_000))
    assert edit(text, "old", "new", replace_all=True).n_replaced == 50_000


def test_a_file_is_edited_in_place_with_its_mode(sandbox: BackendSandbox, workspace: Path) -> None:
    (workspace / "run.sh").write_text("echo one\n")
    (workspace / "run.sh").chmod(0o750)
    (workspace / "link.sh").symlink_to("run.sh")
    result = sandbox.dispatch(BackendToolFilesEdit("link.sh", "one", "two"))
    assert isinstance(result, FileEditResult)
    assert (workspace / "link.sh").is_symlink()
    assert (workspace / "run.sh").read_text() == "echo two\n"
    assert (workspace / "run.sh").stat().st_mode & 0o7777 == 0o750
    assert sorted(entry.name for entry in workspace.iterdir()) == ["link.sh", "run.sh"]


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("missing.txt", "file_not_found"),
        ("../outside.txt", "path_outside_workspace"),
        (".", "os_error"),
        ("huge.txt", "file_too_large"),
        ("a\0b", "os_error"),
    ],
)
def test_what_cannot_be_edited_is_a_failure(
    sandbox: BackendSandbox, workspace: Path, path: str, kind: str
) -> None:
    with (workspace / "huge.txt").open("wb") as file:
        file.truncate(9 << 20)
    failure = sandbox.dispatch(BackendToolFilesEdit(path, "old", "new"))
    assert isinstance(failure, ToolExecutionFailure)
    assert failure.kind == kind


part_texts = st.text(st.sampled_from("ab\n\r\u2028é€\ufeff\x0b"), max_size=60)
limits = st.integers(1, 7)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("parts") / "file"


def read(path: Path, op: BackendToolFilesRead) -> ToolResult:
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        return run_now(read_content(DiskFile(file, size), op))


def parts(path: Path, encoding: str | None, limit: int) -> list[FileContent]:
    """All parts, as whoever follows `next_offset` gets them."""
    found: list[FileContent] = []
    offset: int | None = 0
    while offset is not None:
        part = read(path, BackendToolFilesRead("file", encoding, offset, limit))
        assert isinstance(part, FileContent)
        found.append(part)
        offset = part.next_offset
    return found


@given(text=part_texts, limit=limits, encoding=st.sampled_from(["utf-8", "utf-16", "utf-8-sig"]))
def test_parts_of_a_text_are_the_text(path: Path, text: str, limit: int, encoding: str) -> None:
    path.write_bytes(text.encode(encoding))
    found = parts(path, encoding, limit)
    assert "".join(str(part.data) for part in found) == text
    assert {part.total for part in found} == {len(split_lines(text))}
    assert all(str(part.data).count("\n") == limit for part in found[:-1])


@given(data=st.binary(max_size=60), limit=limits)
def test_parts_of_bytes_are_the_bytes(path: Path, data: bytes, limit: int) -> None:
    path.write_bytes(data)
    found = parts(path, None, limit)
    assert b"".join(bytes(part.data) for part in found if isinstance(part.data, bytes)) == data
    assert {part.total for part in found} == {len(data)}


@given(
    text=part_texts,
    offset=st.integers(0, 70),
    limit=st.none() | st.integers(0, 70),
    encoding=st.sampled_from(["utf-8", None]),
)
def test_a_part_is_the_same_cut_from_the_file_or_from_its_content(
    path: Path, text: str, offset: int, limit: int | None, encoding: str | None
) -> None:
    path.write_bytes(text.encode())
    op = BackendToolFilesRead("file", encoding, offset, limit)
    whole = FileContent(text.encode() if encoding is None else text)
    expected = whole if (offset, limit) == (0, None) else slice_content(whole, op)
    assert read(path, op) == expected


def test_lines_are_found_beyond_the_first_chunk(path: Path) -> None:
    path.write_bytes(b"".join(b"line %d\n" % n for n in range(300_000)))
    part = read(path, BackendToolFilesRead("file", offset=250_000, limit=2))
    assert part == FileContent("line 250000\nline 250001\n", 250_002, 300_000)


def test_a_huge_file_is_read_in_parts(path: Path) -> None:
    with path.open("wb") as file:
        file.write(b"first\n")
        file.truncate(3 * MAX_READ_BYTES)
        file.seek(0, io.SEEK_END)
        file.write(b"\nlast")
    size = 3 * MAX_READ_BYTES + 5
    assert read(path, BackendToolFilesRead("file", limit=1)) == FileContent("first\n", 1, 3)
    assert read(path, BackendToolFilesRead("file", offset=2)) == FileContent("last", None, 3)
    tail = read(path, BackendToolFilesRead("file", None, size - 4, 100))
    assert tail == FileContent(b"last", None, size)
    rest = read(path, BackendToolFilesRead("file", None, 1))
    assert isinstance(rest, FileContent)
    assert (len(rest.data), rest.next_offset) == (MAX_READ_BYTES, MAX_READ_BYTES + 1)


def test_as_many_complete_lines_are_read_as_may_be(path: Path) -> None:
    line = b"x" * (MAX_READ_BYTES // 3) + b"\n"
    path.write_bytes(line * 5)
    first = read(path, BackendToolFilesRead("file", limit=5))
    assert isinstance(first, FileContent)
    assert (len(first.data), first.next_offset, first.total) == (2 * len(line), 2, 5)


@pytest.mark.parametrize(
    ("op", "kind", "said"),
    [
        (BackendToolFilesRead("file"), "file_too_large", "offset and limit"),
        (BackendToolFilesRead("file", limit=1), "file_too_large", "encoding null"),
        (BackendToolFilesRead("file", "utf-16", limit=1), "file_too_large", "offset and limit"),
        (BackendToolFilesRead("file", offset=-1), "bad_range", "negative"),
        (BackendToolFilesRead("file", limit=-1), "bad_range", "negative"),
        (BackendToolFilesRead("file", "no-such", limit=1), "file_too_large", "limit"),
    ],
)
def test_what_cannot_be_read_says_how_it_can(
    path: Path, op: BackendToolFilesRead, kind: str, said: str
) -> None:
    with path.open("wb") as file:
        file.truncate(MAX_READ_BYTES + 1)
    failure = read(path, op)
    assert isinstance(failure, ToolExecutionFailure)
    assert (failure.kind, said in failure.message) == (kind, True)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "base64", "no-such"])
def test_a_part_that_is_no_text_is_a_failure(path: Path, encoding: str) -> None:
    path.write_bytes(b"fine\n\xff\xff\xff\n")
    failure = read(path, BackendToolFilesRead("file", encoding, offset=1))
    assert isinstance(failure, ToolExecutionFailure)
    assert (failure.kind, failure.detail) == ("decode_error", encoding)


def test_a_part_that_is_text_is_read_though_the_rest_is_none(path: Path) -> None:
    path.write_bytes(b"fine\n\xff\xff\xff\n")
    assert read(path, BackendToolFilesRead("file", limit=1)) == FileContent("fine\n", 1, 2)


def test_what_has_no_size_is_read_in_parts() -> None:
    with open("/proc/self/status", "rb") as file:
        assert os.fstat(file.fileno()).st_size == 0
        part = run_now(read_content(DiskFile(file, 0), BackendToolFilesRead("status", None, 0, 5)))
    assert part == FileContent(b"Name:", None, 5)
