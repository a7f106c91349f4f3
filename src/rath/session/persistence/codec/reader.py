"""A session file, read line by line: whole groups that can be believed, and why it ends there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from rath.errors import PersistenceError, SessionDamaged
from rath.session.persistence.chain import checked_sum
from rath.session.persistence.codec.decode import Decoder, bare_blob, decode_record
from rath.session.persistence.codec.shapes import MakeBlob
from rath.session.persistence.lines import (
    SCHEMA_VERSION,
    EntryLine,
    HeaderLine,
    HeadLine,
    Line,
    OutcomeLine,
    PlacementLine,
    ReopenedLine,
    ToolsLine,
    TrailerLine,
)
from rath.session.persistence.migrations import upgrade_chunk, upgrade_header

Json = dict[str, Any]

LOST_END = (
    "the log was finished, and its last line is not the end of its run: what followed was cut off. "
    "Bring the file back from a backup; with recover=True what stands before can be read"
)
"""Why a finished log without a trailer is damaged, and not one of a run that was cut off."""

_LATE = EntryLine | HeadLine | ToolsLine | OutcomeLine | PlacementLine | ReopenedLine
"""What may stand after the trailer: entries that came late, what they name, and the place."""


class LineReader:
    """Takes the bytes of a log as they come and gives its lines, in whole groups.

    Args:
        where: What the log is called in errors.
        make_blob: Makes the blobs that entries name; by default without their bytes.
    """

    def __init__(self, where: str, *, make_blob: MakeBlob = bare_blob) -> None:
        self.where = where
        self.decoder = Decoder(make_blob)
        self.sum = ""
        """The checksum of the last line that counts."""

        self.n_good = 0
        """Bytes up to the end of the last line that counts."""

        self.n_lines = 0
        """Lines that count."""

        self.version = 0
        """Of the schema, as the header says; 0 before it."""

        self.header: Json = {}
        """The first line in the form of the current version."""

        self.trailer: Json | None = None
        """The last trailer as it stands there, None before."""

        self._rest = b""
        self._open: list[Line] = []
        self._n_read = 0
        self._n_bytes = 0
        self._sum = ""
        self._is_over = False

    @property
    def is_over(self) -> bool:
        """Whether the run has ended: there is a trailer, and nothing goes on after it."""
        return self._is_over

    @property
    def known_digests(self) -> frozenset[str]:
        """Digests of the heads and tools that stand in it, in lines that count."""
        lost = {line.digest for line in self._open if isinstance(line, HeadLine | ToolsLine)}
        return (frozenset(self.decoder.heads) | frozenset(self.decoder.tools)) - lost

    def feed(self, data: bytes) -> tuple[Line, ...]:
        """Return the lines that are whole now; what is not is kept for later.

        Raises:
            SessionDamaged: A whole line cannot be believed, or is none. The lines before it were
                given, but for those that came in with the same bytes: see `read_lines`.
        """
        # Other line separators of Unicode may stand inside strings.
        *whole, self._rest = (self._rest + data).split(b"\n")
        return tuple(made for line in whole for made in self.take(line))

    def take(self, line: bytes) -> tuple[Line, ...]:
        """Return what a whole line, without its line feed, completes: nothing, or its group.

        Raises:
            SessionDamaged: It cannot be believed.
        """
        number = self._n_read + 1
        try:
            made, has_more = self._take(line)
        except PersistenceError as exc:
            raise SessionDamaged(str(exc), where=self.where, line=number) from exc
        self._n_read, self._n_bytes = number, self._n_bytes + len(line) + 1
        self._open.append(made)
        if has_more:
            return ()
        group, self._open = tuple(self._open), []
        self.n_lines, self.n_good, self.sum = self._n_read, self._n_bytes, self._sum
        return group

    def _take(self, line: bytes) -> tuple[Line, bool]:
        if not self.version:
            return self._take_header(line), False
        if self.version < SCHEMA_VERSION:
            return self._take_old(decode_record(line)), False
        # Before it is parsed: what cannot be believed may be anything.
        after = checked_sum(line, self._sum)
        record = decode_record(line)
        made = self.decoder.take(record)
        if self._is_over and not isinstance(made, _LATE):
            raise PersistenceError(f"{record['record_type']} after the trailer, which ends a run")
        if isinstance(made, TrailerLine):
            self._is_over, self.trailer = True, record
        elif isinstance(made, ReopenedLine):
            self._is_over = False
        self._sum = after
        return made, record.get("more") == 1

    def _take_header(self, line: bytes) -> Line:
        record = decode_record(line)
        if record.get("record_type") != "header":
            kind = record.get("record_type")
            raise PersistenceError(f"missing header: {kind} before header")
        version = record.get("schema_version")
        if not isinstance(version, int) or isinstance(version, bool):
            raise PersistenceError(
                f"malformed header: schema_version is {version!r}, expected a number"
            )
        if version > SCHEMA_VERSION:
            raise PersistenceError(
                f"schema version {version} is newer than CURRENT_SCHEMA_VERSION "
                f"({SCHEMA_VERSION}); upgrade openrath to read this file"
            )
        if version == SCHEMA_VERSION:
            self._sum = checked_sum(line, "")
        elif "sum" in record:
            raise PersistenceError(f"schema version {version} has no checksums, and this line has")
        self.header = record if version == SCHEMA_VERSION else upgrade_header(record)
        made = self.decoder.take(self.header)
        self.version = version
        return made

    def _take_old(self, record: Json) -> Line:
        """Return the line of a file of version 1: header, rows, and a trailer that ends it."""
        if self._is_over:
            raise PersistenceError("a record stands after the trailer, which ends a file")
        kind = record.get("record_type")
        if kind not in ("header", "chunk", "trailer"):
            raise PersistenceError(
                f"unknown record_type {kind!r}; expected header, chunk or trailer"
            )
        if kind == "chunk":
            n_rows = self._n_read - 1
            # The index of a line of version 1 was never looked at: the order is that of the lines.
            record = {**upgrade_chunk(record, header_version=self.version), "index": n_rows}
        if kind == "trailer":
            self._is_over, self.trailer = True, record
            count = record.get("final_chunk_count")
            is_count = isinstance(count, int)
            record = {**record, "final_chunk_count": count if is_count else self._n_read - 1}
        return self.decoder.take(record)


@dataclass(frozen=True, slots=True)
class LogLines:
    """What a log says, up to where it can be believed."""

    lines: tuple[Line, ...]
    reader: LineReader
    """Where it stands after them; `Encoder.after` goes on there."""

    n_torn: int
    """Bytes at the end that a writer has left which was cut off: no whole line or group."""

    problem: SessionDamaged | None = None
    """What could not be believed; the lines are those before it."""


def read_lines(
    data: bytes,
    where: str,
    *,
    is_finished: bool = False,
    make_blob: MakeBlob = bare_blob,
    recover: bool = False,
) -> LogLines:
    """Return the lines of a log.

    Args:
        data: All of it.
        where: What it is called in errors.
        is_finished: Whether its writer has finished it: then its run has an end.
        make_blob: Makes the blobs that entries name.
        recover: Return the lines before one that cannot be believed, instead of raising.

    Raises:
        SessionDamaged: A whole line cannot be believed, or there is no header, or a log that was
            finished has lost its end.
    """
    reader = LineReader(where, make_blob=make_blob)
    lines: list[Line] = []
    problem: SessionDamaged | None = None
    for line in data.split(b"\n")[:-1]:
        try:
            lines += reader.take(line)
        except SessionDamaged as exc:
            problem = exc
            break
    if not reader.version and problem is None:
        problem = SessionDamaged(
            "missing header: the file has no complete line", where=where, line=1
        )
    # Version 1 has no checksums: its files may be written by hand, and nothing is added to them.
    if is_finished and problem is None and not reader.is_over and reader.version > 1:
        problem = SessionDamaged(LOST_END, where=where, line=reader.n_lines)
    if problem is not None and (not recover or not lines):
        raise problem
    n_torn = 0 if problem is not None else len(data) - reader.n_good
    return LogLines(tuple(lines), reader, n_torn, problem)


def session_in(first: bytes, where: str) -> UUID:
    """Return whose log it is that has this first line.

    Raises:
        SessionDamaged: It is no header that can be believed.
    """
    header = read_lines(first, where).lines[0]
    assert isinstance(header, HeaderLine), "every log begins with one"
    return header.session
