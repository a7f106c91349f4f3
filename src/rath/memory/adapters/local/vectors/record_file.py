"""A file of vectors that several processes read in place; numpy is not needed here.

    header   64 bytes: "rathvec1", 16 random bytes, dimension as uint32, zeros
    record   12 bytes digest of the text, CRC-32 of the vector, the vector as float32
    ...      records of zeros are unused; the file is longer than what is used

Numbers are in the byte order of the machine. Which records count is told by the index; where
the index is new, the records with a right check sum do.
"""

from __future__ import annotations

import os
import struct
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Self

HEADER_BYTES = 64
KEY_BYTES = 16

_MAGIC = b"rathvec1"
_HEADER = struct.Struct("=8s16sI")
_CRC = struct.Struct("=I")
_FIRST_ROWS = 256
_READ_BYTES = 1_048_576


class RecordFile:
    """An open file of vectors; made by `create` or `open`.

    Args:
        fd: The descriptor, which is closed with this object.
        token: Tells this file from every other one.
        dimension: Numbers of a vector.
    """

    def __init__(self, fd: int, token: bytes, dimension: int) -> None:
        self.fd = fd
        self.token = token
        self.dimension = dimension
        self.record_bytes = KEY_BYTES + 4 * dimension

    @classmethod
    def create(cls, path: Path | None, dimension: int) -> Self:
        """Make an empty file over whatever stands there; None keeps it where nobody sees it."""
        token = os.urandom(16)
        header = _HEADER.pack(_MAGIC, token, dimension).ljust(HEADER_BYTES, b"\0")
        if path is None:
            with tempfile.TemporaryFile() as unseen:
                fd = os.dup(unseen.fileno())
            os.pwrite(fd, header, 0)
            return cls(fd, token, dimension)
        draft = path.with_name(f".atomic_{os.urandom(8).hex()}.tmp")
        fd = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            os.pwrite(fd, header, 0)
            draft.replace(path)
        except BaseException:
            os.close(fd)
            draft.unlink(missing_ok=True)
            raise
        return cls(fd, token, dimension)

    @classmethod
    def open(cls, path: Path, *, may_write: bool = True) -> Self | None:
        """Open a file; None when there is none, or something else."""
        try:
            fd = os.open(path, os.O_RDWR if may_write else os.O_RDONLY)
        except (FileNotFoundError, IsADirectoryError):
            return None
        header = os.pread(fd, _HEADER.size, 0)
        if len(header) == _HEADER.size:
            magic, token, dimension = _HEADER.unpack(header)
            if magic == _MAGIC and 0 < dimension < 1_000_000:
                return cls(fd, token, dimension)
        os.close(fd)
        return None

    def close(self) -> None:
        """Close the descriptor; mapped memory stays."""
        os.close(self.fd)

    def stands_at(self, path: Path) -> bool:
        """Return whether this file is the one at a path."""
        try:
            there = path.stat()
        except OSError:
            return False
        return os.path.samestat(there, os.fstat(self.fd))

    def capacity(self) -> int:
        """Return for how many records there is room."""
        return max(0, os.fstat(self.fd).st_size - HEADER_BYTES) // self.record_bytes

    def write(self, slot: int, records: Sequence[tuple[bytes, bytes]]) -> None:
        """Write digests with their vectors from a slot on."""
        end = slot + len(records)
        if end > self.capacity():
            # Room for more, so that readers map the file again only now and then.
            rows = max(_FIRST_ROWS, end + end // 2)
            os.ftruncate(self.fd, HEADER_BYTES + rows * self.record_bytes)
        data = b"".join(
            digest + _CRC.pack(zlib.crc32(vector)) + vector for digest, vector in records
        )
        _write_all(self.fd, data, self._offset(slot))

    def sync(self) -> None:
        """Force what was written to disk."""
        os.fsync(self.fd)

    def holds(self, slot: int, digest: bytes) -> bool:
        """Return whether the vector of a text is in a slot."""
        return os.pread(self.fd, len(digest), self._offset(slot)) == digest

    def read(self, slot: int) -> bytes:
        """Return the vector in a slot."""
        return os.pread(self.fd, 4 * self.dimension, self._offset(slot) + KEY_BYTES)

    def erase(self, slots: Iterable[int], *, n_rows: int) -> None:
        """Fill slots, and all from `n_rows` on, with zeros, and force that to disk."""
        zeros = bytes(self.record_bytes)
        for slot in slots:
            _write_all(self.fd, zeros, self._offset(slot))
        size = os.fstat(self.fd).st_size
        os.ftruncate(self.fd, self._offset(n_rows))
        os.ftruncate(self.fd, size)
        self.sync()

    def iter_whole(self) -> Iterator[tuple[int, bytes]]:
        """Give slot and digest of every record that is used and whole."""
        size = self.record_bytes
        step = max(1, _READ_BYTES // size)
        for first in range(0, self.capacity(), step):
            block = os.pread(self.fd, step * size, self._offset(first))
            for start in range(0, len(block) - size + 1, size):
                record = block[start : start + size]
                digest, vector = record[:12], record[KEY_BYTES:]
                if any(digest) and _CRC.pack(zlib.crc32(vector)) == record[12:KEY_BYTES]:
                    yield first + start // size, digest

    def _offset(self, slot: int) -> int:
        return HEADER_BYTES + slot * self.record_bytes


def _write_all(fd: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        n_written = os.pwrite(fd, view, offset)
        view = view[n_written:]
        offset += n_written
