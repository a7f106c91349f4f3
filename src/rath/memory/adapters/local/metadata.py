"""The metadata of a note: where it comes from and when it expires, in `<leaf>.meta.json` beside it.

{"schema_version": 1, "expires_at": ISO 8601 time with zone or null,
 "sources": [{"session_id": str, "rows": [int], "model": str or null, "learned_at": time or null}],
 "remembered": true, where it was also written without a session,
 "next": {"sha256": of the text that it is true of, and the same keys}, while a text is replaced}

While a text is replaced, the file holds the metadata of both texts, so that a process that dies in
between leaves neither with those of the other.
"""

from __future__ import annotations

import codecs
import hashlib
import os
import stat
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import msgspec

from rath._core.dataclasses import dataclass
from rath._core.files import StrPath, atomic_write_bytes
from rath.memory.adapters.local.files import mark_as_ours, read_content, read_file
from rath.memory.adapters.local.layout import METADATA_SUFFIX, NOTE_SUFFIX
from rath.memory.driver import OperationFailed
from rath.memory.notes import NO_METADATA, Metadata
from rath.memory.results import MemorySource

MAX_METADATA_BYTES = 1_048_576
"""A longer file is none of ours."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class _SourceFields(msgspec.Struct):
    session_id: str
    rows: list[Any]
    model: str | None = None
    learned_at: str | None = None


class _TextFields(msgspec.Struct, kw_only=True):
    expires_at: str | None = None
    sources: list[_SourceFields]
    remembered: Any = msgspec.UNSET

    @classmethod
    def of(cls, metadata: Metadata, **others: Any) -> Self:
        sources = [
            _SourceFields(each.session_id, list(each.rows), each.model, _iso(each.learned_at))
            for each in metadata.sources
        ]
        if metadata.is_remembered:
            others["remembered"] = True
        return cls(expires_at=_iso(metadata.expires_at), sources=sources, **others)

    def metadata(self) -> Metadata:
        sources = tuple(
            MemorySource(
                each.session_id,
                tuple(row for row in each.rows if isinstance(row, int)),
                each.model,
                _seconds(each.learned_at),
            )
            for each in self.sources
        )
        is_remembered = self.remembered is True and bool(sources)
        return Metadata(_seconds(self.expires_at), sources, is_remembered)


class _NextFields(_TextFields):
    sha256: str


class _FileFields(_TextFields):
    schema_version: Literal[1]
    next: _NextFields | msgspec.UnsetType = msgspec.UNSET


_decode_fields = msgspec.json.Decoder(_FileFields).decode


@dataclass(frozen=True, slots=True)
class MetadataRecord:
    """The content of a metadata file: of the note, and of the text that is about to replace it."""

    metadata: Metadata = NO_METADATA
    next_digest: str | None = None
    """SHA-256 of that text."""
    next_metadata: Metadata = NO_METADATA

    def to_json(self) -> bytes:
        """Return the bytes of the file."""
        fields = _FileFields.of(self.metadata, schema_version=1)
        if self.next_digest is not None:
            fields.next = _NextFields.of(self.next_metadata, sha256=self.next_digest)
        return msgspec.json.format(msgspec.json.encode(fields), indent=2) + b"\n"

    @classmethod
    def from_json(cls, data: bytes) -> MetadataRecord:
        """Return the content of a file.

        Raises:
            ValueError: It is no such file.
        """
        try:
            fields = _decode_fields(data.removeprefix(codecs.BOM_UTF8))
            if isinstance(fields.next, msgspec.UnsetType):
                return cls(fields.metadata())
            return cls(fields.metadata(), fields.next.sha256, fields.next.metadata())
        except (msgspec.DecodeError, RecursionError, OverflowError) as exc:
            raise ValueError(str(exc)) from exc


class MetadataFile(NamedTuple):
    """A metadata file as it was read."""

    metadata: Metadata = NO_METADATA
    mtime_ns: int = 0
    """When the file changed; 0 when there is none."""
    problem: str | None = None
    """Why it does not count; None when it does, or there is none."""


NO_METADATA_FILE = MetadataFile()


def metadata_path(note: StrPath) -> str:
    """Return the place of the metadata file of a note."""
    return os.fspath(note).removesuffix(NOTE_SUFFIX) + METADATA_SUFFIX


def read_metadata(note: StrPath) -> MetadataFile:
    """Read the metadata of the text that stands in a note now.

    A file that cannot be read, or that is none of ours, counts as none.
    """
    place = metadata_path(note)
    try:
        status = os.lstat(place)
    except OSError:
        return NO_METADATA_FILE
    if stat.S_ISDIR(status.st_mode):
        return NO_METADATA_FILE
    try:
        found = read_file(place, MAX_METADATA_BYTES + 1)
        data = b"" if found is None else found[0]
        if len(data) > MAX_METADATA_BYTES:
            raise ValueError(f"it is longer than {MAX_METADATA_BYTES} bytes")
        record = MetadataRecord.from_json(data)
        metadata = record.metadata
        if record.next_digest is not None:
            text = read_content(note)
            if text is not None and record.next_digest == hashlib.sha256(text).hexdigest():
                metadata = record.next_metadata
        return MetadataFile(metadata, status.st_mtime_ns)
    except (OSError, ValueError, OperationFailed) as exc:
        return MetadataFile(mtime_ns=status.st_mtime_ns, problem=f"{place} tells nothing: {exc}")


def write_metadata(note: Path, metadata: Metadata) -> None:
    """Write the metadata of a note, whatever its text is.

    A note without metadata has no such file, except one of another program.

    Raises:
        OSError: It cannot be written.
    """
    if metadata != NO_METADATA:
        _write(note, MetadataRecord(metadata))
        return
    there = read_metadata(note)
    if there.mtime_ns and there.problem is None:
        Path(metadata_path(note)).unlink(missing_ok=True)


@contextmanager
def replacing_text(note: Path, data: bytes, metadata: Metadata) -> Generator[None]:
    """Write the metadata of another text of a note, which is put in its place in the block.

    Raises:
        OSError: They cannot be written.
    """
    before = read_metadata(note).metadata
    if before != metadata:
        _write(note, MetadataRecord(before, hashlib.sha256(data).hexdigest(), metadata))
    yield
    write_metadata(note, metadata)


def _write(note: Path, record: MetadataRecord) -> None:
    path = Path(metadata_path(note))
    # Writing goes through a link, which may lead anywhere.
    if path.is_symlink():
        path.unlink()
    atomic_write_bytes(path, record.to_json())
    mark_as_ours(path)


def _iso(seconds: float | None) -> str | None:
    # Not `fromtimestamp`, which is narrower than `datetime` on some systems.
    return None if seconds is None else (_EPOCH + timedelta(seconds=seconds)).isoformat()


def _seconds(value: str | None) -> float | None:
    if value is None:
        return None
    moment = datetime.fromisoformat(value)
    if moment.tzinfo is None:
        raise ValueError(f"{value!r} is a time without a zone")
    return (moment - _EPOCH).total_seconds()
