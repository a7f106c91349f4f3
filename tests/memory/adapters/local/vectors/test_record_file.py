"""The file of vectors: what is written stays, what is torn is left out."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rath.memory.adapters.local.vectors import RecordFile


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the file is."""
    return tmp_path / "vectors-0.f32"


@pytest.fixture
def file(path: Path) -> Iterator[RecordFile]:
    """An empty file for vectors of two numbers."""
    made = RecordFile.create(path, 2)
    yield made
    made.close()


def record(number: int) -> tuple[bytes, bytes]:
    """A digest and a vector."""
    return number.to_bytes(12, "big"), struct.pack("=2f", number, 1)


@given(counts=st.lists(st.integers(1, 300), min_size=1, max_size=5), lost=st.integers(1, 24))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
def test_whole_records_are_read_again(path: Path, counts: list[int], lost: int) -> None:
    made = RecordFile.create(path, 2)
    n_rows = 0
    for count in counts:
        made.write(n_rows, [record(n_rows + each + 1) for each in range(count)])
        n_rows += count
    expected = [(slot, record(slot + 1)[0]) for slot in range(n_rows)]
    assert list(made.iter_whole()) == expected
    # Then the last record is torn.
    os.ftruncate(made.fd, 64 + n_rows * 24 - lost)
    assert list(made.iter_whole()) == expected[:-1]
    made.close()


def test_a_file_is_opened_again_by_others(path: Path, file: RecordFile) -> None:
    file.write(0, [record(7)])
    other = RecordFile.open(path)
    assert other is not None
    assert (other.token, other.dimension) == (file.token, 2)
    assert other.read(0) == record(7)[1]
    assert other.holds(0, record(7)[0])
    assert other.stands_at(path)
    other.close()


def test_a_flipped_bit_is_noticed(file: RecordFile) -> None:
    file.write(0, [record(1), record(2)])
    os.pwrite(file.fd, b"\xff", 64 + 20)
    assert [slot for slot, _ in file.iter_whole()] == [1]


def test_erased_records_are_zeros(path: Path, file: RecordFile) -> None:
    file.write(0, [record(1), record(2), record(3)])
    room = file.capacity()
    file.erase([0], n_rows=2)
    assert [slot for slot, _ in file.iter_whole()] == [1]
    data = path.read_bytes()
    assert data[64:88] == bytes(24)
    assert not any(data[64 + 48 :])
    assert file.capacity() == room


@pytest.mark.parametrize("content", [b"", b"x" * 100, b"rathvec1" + bytes(56)])
def test_another_file_is_not_opened(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    assert RecordFile.open(path) is None


def test_a_missing_file_and_a_directory_are_not_opened(tmp_path: Path) -> None:
    assert RecordFile.open(tmp_path / "none") is None
    assert RecordFile.open(tmp_path) is None


def test_a_file_without_a_place_is_seen_by_nobody(tmp_path: Path) -> None:
    unseen = RecordFile.create(None, 2)
    unseen.write(0, [record(1)])
    assert unseen.read(0) == record(1)[1]
    assert not unseen.stands_at(tmp_path / "none")
    unseen.close()


def test_a_file_that_cannot_be_put_in_its_place_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "taken" / "inside").mkdir(parents=True)
    with pytest.raises(OSError, match="taken"):
        RecordFile.create(tmp_path / "taken", 2)
    assert [each.name for each in tmp_path.iterdir()] == ["taken"]
