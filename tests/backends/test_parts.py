"""Parts of files: together they are the whole, whatever it holds."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath.backend import BackendToolFilesRead, FileContent, ToolExecutionFailure, ToolResult
from rath.backend.file_tools import (
    MAX_READ_BYTES,
    DiskFile,
    read_content,
    run_now,
    slice_content,
    split_lines,
)

texts = st.text(st.sampled_from("ab\n\r\u2028é€\ufeff\x0b"), max_size=60)
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


@given(text=texts, limit=limits, encoding=st.sampled_from(["utf-8", "utf-16", "utf-8-sig"]))
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
    text=texts,
    offset=st.integers(0, 70),
    limit=st.none() | st.integers(0, 70),
    encoding=st.sampled_from(["utf-8", None]),
)
def test_a_part_is_the_same_cut_from_the_file_or_from_the_whole(
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


def test_as_many_whole_lines_are_read_as_may_be(path: Path) -> None:
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
