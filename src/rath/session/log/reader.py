"""A log, read line by line: whole groups that can be believed, and why it ends there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Any, TypeVar, cast
from uuid import UUID

import msgspec

from rath._core.blobs import is_digest
from rath._core.dataclasses import dataclass
from rath.backend.persistence.spec_json import spec_from_jsonable
from rath.backend.workspace import StoredWorkspace
from rath.errors import PersistenceError, SessionDamaged
from rath.llm.chat_response import RathLLMTokenUsage
from rath.session.events import (
    AgentRows,
    AncestorRange,
    CallSetup,
    Event,
    Finished,
    GivenUsage,
    Header,
    OutcomeChange,
    PlacementChange,
    Reopened,
    Row,
    ToolSchemas,
)
from rath.session.graph.kind import LineageKind
from rath.session.log.format import Decoder, Encoder, MakeBlob, bare_blob
from rath.session.log.json_lines import (
    CURRENT_SCHEMA_VERSION,
    SUM_BYTES,
    Json,
    checked_sum,
    decode_record,
)
from rath.session.record import (
    RecordEntry,
)

__all__ = ["LOST_END", "LineReader", "LogLines", "read_lines", "session_in"]

T = TypeVar("T")

FIRST_CHAINED = 2
"""The first version with checksums, whose logs take more lines."""

LOST_END = (
    "the log was finished, and its last line is not the end of its run: what followed was cut off. "
    "Bring the file back from a backup; with recover=True what stands before can be read"
)
"""Why a finished log without an end is damaged, and not one of a run that was cut off."""


_LATE = (RecordEntry, AgentRows, ToolSchemas, CallSetup, OutcomeChange, PlacementChange, Reopened)
"""What may stand after the end: entries that came late, what they name, and the place."""

_MORE = b',"more":1'
"""Stands right before the checksum: elsewhere the brace of an inner object comes between."""
_NEW = b'{"event":"'


class LineReader:
    """Takes the bytes of a log as they come and gives its events, in whole groups.

    Args:
        where: What the log is called in errors.
        make_blob: Makes the blobs that entries name; by default without their bytes.
    """

    def __init__(self, where: str, *, make_blob: MakeBlob = bare_blob) -> None:
        self.where = where
        self.decoder: Decoder = Decoder(make_blob)
        self.sum: str = ""
        """The checksum of the last line that counts."""

        self.n_good: int = 0
        """Bytes up to the end of the last line that counts."""

        self.n_lines: int = 0
        """Lines that count."""

        self.version: int = 0
        """Of the schema, as the header says; 0 before it."""

        self._rest = self._end = b""
        self._open: list[Event] = []
        self._n_read = 0
        self._n_bytes = 0
        self._sum = ""
        self._is_over = False
        self._created_at: datetime | None = None

    @property
    def is_over(self) -> bool:
        """Whether the run has ended, and nothing goes on after its end."""
        return self._is_over

    @property
    def takes_more(self) -> bool:
        """Whether lines may be added to such a log: it has checksums."""
        return self.version >= FIRST_CHAINED

    @property
    def created_at(self) -> datetime:
        """Time at which the session began, as the header says."""
        assert self._created_at is not None, "known after the header"
        return self._created_at

    @property
    def known_digests(self) -> frozenset[str]:
        """Digests of what is said once in it, in lines that count."""
        lost = {
            event.digest
            for event in self._open
            if isinstance(event, AgentRows | ToolSchemas | CallSetup)
        }
        decoder = self.decoder
        return frozenset({*decoder.heads, *decoder.tools, *decoder.setups} - lost)

    def encoder(self) -> Encoder:
        """Return the encoder of the lines that go on with the log."""
        assert self.decoder.session is not None, "known after the header"
        return Encoder(self.decoder.session, after=self.sum, known=self.known_digests)

    def feed(self, data: bytes) -> tuple[Event, ...]:
        """Return the events whose lines are whole now; what is not is kept for later.

        Raises:
            SessionDamaged: A whole line cannot be believed, or is none. The events before it were
                given, but for those that came in with the same bytes: see `read_lines`.
        """
        # Other line separators of Unicode may stand inside strings.
        *complete, self._rest = (self._rest + data).split(b"\n")
        events: list[Event] = []
        self._take(complete, events)
        return tuple(events)

    @property
    def trailer(self) -> Json | None:
        """The last line that ends a run as it stands there, None before."""
        return decode_record(self._end) if self._end else None

    def take(self, line: bytes) -> tuple[Event, ...]:
        """Take a whole line, without its line feed, and return the group it completes, if any.

        Raises:
            SessionDamaged: It cannot be believed.
        """
        events: list[Event] = []
        self._take((line,), events)
        return tuple(events)

    def _take(self, lines: Iterable[bytes], events: list[Event]) -> None:
        """Take whole lines, without their line feeds, and add the groups they complete to `events`.

        Raises:
            SessionDamaged: One cannot be believed; the groups before it were added.
        """
        n_read, n_bytes, after, waiting = self._n_read, self._n_bytes, self._sum, self._open
        take, add = self.decoder.take, events.append
        try:
            for line in lines:
                number = n_read + 1
                if self.version > FIRST_CHAINED:
                    # Before it is parsed: what cannot be believed may be anything.
                    last = checked_sum(line, after, is_compact=True)
                    event, has_more = take(line), line.endswith(_MORE, 0, -SUM_BYTES)
                else:
                    event, has_more, last = self._take_older(line, after, number)
                if type(event) is not Row or self._is_over:
                    self._watch_end(event, line)
                n_read, n_bytes, after = number, n_bytes + len(line) + 1, last
                if has_more:
                    waiting.append(event)
                    continue
                if waiting:
                    events += waiting
                    waiting.clear()
                add(event)
                self.n_lines, self.n_good, self.sum = n_read, n_bytes, after
        except PersistenceError as exc:
            raise SessionDamaged(str(exc), where=self.where, line=n_read + 1) from exc
        finally:
            self._n_read, self._n_bytes, self._sum = n_read, n_bytes, after

    def _watch_end(self, event: Event, line: bytes) -> None:
        """Note the end of a run, and that it goes on.

        Raises:
            PersistenceError: The event cannot stand after the end.
        """
        if self._is_over and not isinstance(event, _LATE) and self.takes_more:
            tag = type(event).__struct_config__.tag
            raise PersistenceError(f"{tag} after the end, with which a run is over")
        if type(event) is Finished:
            self._is_over, self._end = True, line
        elif type(event) is Reopened:
            self._is_over = False

    def _take_older(self, line: bytes, after: str, number: int) -> tuple[Event, bool, str]:
        """Return a header, or the event on a line of version 1 or 2, and the sum after it.

        Args:
            line: The line.
            after: The sum of the line before.
            number: Of the line.
        """
        if not self.version:
            return self._take_header(line)
        if self.version < FIRST_CHAINED:
            return self._take_unchained(line, number), False, after
        # A log of version 2 goes on in lines of version 3.
        is_new = line.startswith(_NEW)
        after = checked_sum(line, after, is_compact=is_new)
        if is_new:
            return self.decoder.take(line), line.endswith(_MORE, 0, -SUM_BYTES), after
        record = decode_record(line)
        return self._upgraded(record), record.get("more") == 1, after

    def _take_header(self, line: bytes) -> tuple[Header, bool, str]:
        record = decode_record(line)
        if record.get("record_type") != "header":
            kind = record.get("event") or record.get("record_type")
            raise PersistenceError(f"missing header: {kind} before header")
        version = record.get("schema_version")
        if not isinstance(version, int) or isinstance(version, bool):
            raise PersistenceError(
                f"malformed header: schema_version is {version!r}, expected a number"
            )
        if version > CURRENT_SCHEMA_VERSION:
            raise PersistenceError(
                f"schema version {version} is newer than CURRENT_SCHEMA_VERSION "
                f"({CURRENT_SCHEMA_VERSION}); upgrade openrath to read this file"
            )
        after = ""
        if version >= FIRST_CHAINED:
            after = checked_sum(line, after, is_compact=version > FIRST_CHAINED)
        elif "sum" in record:
            raise PersistenceError(f"schema version {version} has no checksums, and this line has")
        header = decode_header(upgrade_header(record))
        self.decoder.session = header.session
        self.version, self._created_at = version, header.created_at
        return header, False, after

    def _upgraded(self, record: Json) -> Event:
        """Return the event that a line of version 1 or 2 says."""
        if record.get("record_type") == "header":
            raise PersistenceError("duplicate header")
        try:
            upgraded = upgrade_line(record, header_version=self.version)
        except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError) as exc:
            kind = record.get("record_type")
            raise PersistenceError(f"malformed {kind}: {type(exc).__name__}: {exc}") from exc
        return self.decoder.take_record(upgraded)

    def _take_unchained(self, line: bytes, number: int) -> Event:
        """Return the event on a line of version 1: header, rows, and a trailer that ends it."""
        record = decode_record(line)
        if self._is_over:
            raise PersistenceError("a record stands after the trailer, which ends a file")
        kind, n_rows = record.get("record_type"), number - 2
        if kind not in ("header", "chunk", "trailer"):
            raise PersistenceError(
                f"unknown record_type {kind!r}; expected header, chunk or trailer"
            )
        if kind == "chunk":
            # The index of a line of version 1 was never looked at: the order is that of the lines.
            record = {**record, "index": n_rows}
        if kind == "trailer":
            self._is_over, self._end = True, line
            count = record.get("final_chunk_count")
            record = {**record, "final_chunk_count": count if isinstance(count, int) else n_rows}
        return self._upgraded(record)


class _WholeLogReader(LineReader):
    """Reads a log that is there as a whole, up to where it can be believed."""

    def read(self, data: bytes) -> tuple[list[Event], SessionDamaged | None]:
        """Return the events, and what could not be believed."""
        events: list[Event] = []
        try:
            self._take(data.split(b"\n")[:-1], events)
        except SessionDamaged as exc:
            return events, exc
        return events, None


@dataclass(frozen=True, slots=True)
class LogLines:
    """The lines of a log, up to where it can be believed."""

    lines: tuple[Event, ...]
    """One event for each line."""

    reader: LineReader
    """Where it stands after them; `encoder` goes on there."""

    n_torn: int
    """Bytes at the end that a writer has left which was cut off: no whole line or group."""

    problem: SessionDamaged | None = None
    """What could not be believed; the lines are those before it."""

    @property
    def header(self) -> Header:
        """The first event."""
        header = self.lines[0]
        assert isinstance(header, Header), "every log begins with one"
        return header


def read_lines(
    data: bytes,
    where: str,
    *,
    is_finished: bool = False,
    make_blob: MakeBlob = bare_blob,
    recover: bool = False,
) -> LogLines:
    """Return the events of a log.

    Args:
        data: All of it.
        where: What it is called in errors.
        is_finished: Whether its writer has finished it: then its run has an end.
        make_blob: Makes the blobs that entries name.
        recover: Return the events before a line that cannot be believed, instead of raising.

    Raises:
        SessionDamaged: A whole line cannot be believed, or there is no header, or a log that was
            finished has lost its end.
    """
    reader = _WholeLogReader(where, make_blob=make_blob)
    events, problem = reader.read(data)
    if not reader.version and problem is None:
        problem = SessionDamaged(
            "missing header: the file has no complete line", where=where, line=1
        )
    # Version 1 has no checksums: its files may be written by hand, and nothing is added to them.
    if is_finished and problem is None and not reader.is_over and reader.takes_more:
        problem = SessionDamaged(LOST_END, where=where, line=reader.n_lines)
    if problem is not None and (not recover or not events):
        raise problem
    n_torn = 0 if problem is not None else len(data) - reader.n_good
    return LogLines(tuple(events), reader, n_torn, problem)


def session_in(first: bytes, where: str) -> UUID:
    """Return whose log it is that has this first line.

    Raises:
        SessionDamaged: It is no header that can be believed.
    """
    return read_lines(first, where).header.session


def decode_header(record: Json) -> Header:
    """Return the header that a record of version 3 says.

    An unknown lineage kind becomes UNKNOWN, and parents that are no UUIDs are left out: neither
    keeps the rows from being read.

    Raises:
        PersistenceError: Id, time or sandbox spec are missing or malformed, or another member is.
    """
    workspace, lineage = record.get("sandbox_workspace"), record.get("lineage")
    try:
        return Header(
            session=UUID(record["id"]),
            created_at=datetime.fromisoformat(utc(record["created_at"])),
            operator=str(record.get("lineage_operator") or "implicit"),
            kind=_kind(record.get("lineage_kind")),
            parents=tuple(_uuids(record.get("parent_session_ids") or ())),
            extras=_pairs(record.get("lineage_extras")),
            sandbox_backend=_convert(record.get("sandbox_backend"), str),
            sandbox_spec=spec_from_jsonable(record.get("sandbox_spec")),
            sandbox_handle_id=_convert(record.get("sandbox_handle_id"), str),
            workspace=_convert(workspace, StoredWorkspace),
            rows=_ranges(record.get("rows")),
            entries=_ranges(record.get("entries")),
            given=tuple(_prior_usage(each) for each in record.get("given") or ()),
            lineage=None if lineage is None else (UUID(lineage[0]), UUID(lineage[1]), lineage[2]),
            provider=record.get("provider"),
        )
    except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError) as exc:
        raise PersistenceError(f"malformed header: {type(exc).__name__}: {exc}") from exc


def _convert(value: object, kind: type[T]) -> T | None:
    return None if value is None else msgspec.convert(value, kind)


def _kind(value: object) -> LineageKind:
    try:
        return LineageKind(value)
    except ValueError:
        return LineageKind.UNKNOWN


def _uuids(raw: Iterable[object]) -> Iterator[UUID]:
    for item in raw:
        try:
            yield UUID(str(item))
        except ValueError:
            continue


def _pairs(raw: object) -> tuple[tuple[str, Any], ...]:
    items = cast("list[object]", raw) if isinstance(raw, list) else []
    pairs = [cast("list[object]", item) for item in items if isinstance(item, list)]
    return tuple((str(pair[0]), pair[1]) for pair in pairs if len(pair) == 2)


def _ranges(value: object) -> tuple[AncestorRange, ...]:
    ranges: list[AncestorRange] = []
    for session, start, stop, digest in cast("list[list[Any]]", value or []):
        is_range = type(start) is int and type(stop) is int and 0 <= start <= stop
        if not is_range or not is_digest(digest):
            raise ValueError(f"bad part {session!r}, {start!r} to {stop!r}, {digest!r}")
        ranges.append(AncestorRange(UUID(session), start, stop, digest))
    return tuple(ranges)


def _prior_usage(fields: Json) -> GivenUsage:
    usage = usage_from_jsonable(fields["usage"])
    if usage is None:
        raise ValueError("given usage without token counts")
    return GivenUsage(UUID(fields["session"]), RathLLMTokenUsage(**usage))


HeaderMigration = Callable[[Json], Json]
"""Turns a header of one version into one of the next."""

ChunkMigration = Callable[[Json], Json]
"""Turns a chunk line of one version into one of the next."""

_NEW_IN_2 = frozenset({"rows", "entries", "given", "lineage", "provider", "sum"})


def _header_from_1(record: Json) -> Json:
    """Return a header of version 1, in which these members meant nothing."""
    return {name: value for name, value in record.items() if name not in _NEW_IN_2}


def _chunk_from_1(record: Json) -> Json:
    return {name: value for name, value in record.items() if name != "born"}


_headers: dict[int, HeaderMigration] = {1: _header_from_1, 2: dict}
_chunks: dict[int, ChunkMigration] = {1: _chunk_from_1}


def register_header_migration(from_version: int, fn: HeaderMigration) -> None:
    """Say how a header of `from_version` becomes one of the next version.

    Raises:
        ValueError: `from_version` is not below the current version.
    """
    _require_older(from_version)
    _headers[from_version] = fn


def register_chunk_migration(from_version: int, fn: ChunkMigration) -> None:
    """Say how a chunk line of `from_version` becomes one of the next version.

    Versions whose chunk lines did not change need none.

    Raises:
        ValueError: `from_version` is not below the current version.
    """
    _require_older(from_version)
    _chunks[from_version] = fn


def upgrade_header(record: Json) -> Json:
    """Return a header record in the current form.

    Raises:
        PersistenceError: A step on the way is missing.
    """
    version = record["schema_version"]
    for step in range(version, CURRENT_SCHEMA_VERSION):
        if step not in _headers:
            raise PersistenceError(
                f"no header migration from schema version {step}; register one with "
                "register_header_migration"
            )
        record = {**_headers[step](record), "schema_version": step + 1}
    return record


def upgrade_chunk(record: Json, *, header_version: int) -> Json:
    """Return a chunk record of a file whose header has `header_version` in the current form."""
    for step in range(header_version, CURRENT_SCHEMA_VERSION):
        if step in _chunks:
            record = _chunks[step](record)
    return record


def _require_older(from_version: int) -> None:
    if from_version >= CURRENT_SCHEMA_VERSION:
        raise ValueError(
            f"refusing to register a migration from schema version {from_version}: files of "
            f"version {CURRENT_SCHEMA_VERSION} are current, so only older ones are migrated"
        )


def upgrade_line(record: Json, *, header_version: int) -> Json:
    """Return a line of version 1 or 2, but for the header, as one of version 3.

    Raises:
        PersistenceError: It is of no kind that version 2 knows.
        ValueError, TypeError, LookupError, AttributeError: It is malformed.
    """
    kind: object = record.get("record_type")
    upgrade = _LINES.get(kind) if isinstance(kind, str) else None
    if upgrade is None:
        kinds = ", ".join(("header", *_LINES))
        raise PersistenceError(f"unknown record_type {kind!r}; expected one of {kinds}")
    if kind == "chunk":
        record = upgrade_chunk(record, header_version=header_version)
    return upgrade(record)


def utc(text: str) -> str:
    """Return a time in ISO form with its zone; text without one is UTC."""
    time = datetime.fromisoformat(text)
    time = time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    return time.isoformat()


def _row(record: Json) -> Json:
    fields = {"kind": record.get("kind"), "payload": record.get("payload")}
    born: object = record.get("born")
    return fields if born is None else {**fields, "id": _row_id(born)}


def _row_id(text: object) -> list[Any]:
    session, _, index = str(text).rpartition(":")
    return [session, int(index)]


def _chunk(record: Json) -> Json:
    return {"event": "row", "index": record["index"], **_row(record)}


def _head(record: Json) -> Json:
    rows = [_row(row) for row in record["rows"]]
    return {"event": "agent_rows", "digest": record["digest"], "rows": rows}


def _entry(record: Json) -> Json:
    kind = record["entry"]
    if kind not in _ENTRIES:
        raise PersistenceError(f"unknown entry {kind!r}; expected one of {', '.join(_ENTRIES)}")
    fields = {**record, "event": kind, "at": utc(record["at"])}
    for name in ("rows", "replaced"):
        if name in fields:
            fields[name] = [_row_id(row) for row in fields[name]]
    if kind == "model_call":
        evidence = cast("Json", fields["evidence"])
        fields["evidence"] = {**evidence, "started": utc(evidence["started"])}
    return fields


_ENTRIES = (
    *("operation", "model_call", "tool_run", "summary"),
    *("verdict", "interrupt", "decision", "change"),
)


def _result(record: Json) -> Json:
    run, row_fields = record["run"], record["shown"]
    if run["entry"] != "tool_run":
        raise TypeError(f"the entry of a result is a {run['entry']!r}, expected a tool_run")
    row = None if row_fields is None else _row(row_fields)
    return {**record, "event": "result", "run": _entry(run), "shown": row}


def _outcome(outcome: Json) -> Json:
    if outcome.get("is") != "Completed":
        return outcome
    if "output" in outcome:
        return {"is": "Completed", "output": {"is": "value", "value": outcome["output"]}}
    problem = outcome.get("output_problem")
    if problem is None:
        return {"is": "Completed"}
    return {"is": "Completed", "output": {"is": "missing", "problem": str(problem)}}


def _trailer(record: Json) -> Json:
    usage: object = record.get("cumulative_usage")
    return {
        "event": "finished",
        "closed_at": utc(record["closed_at"]),
        "final_chunk_count": int(record["final_chunk_count"]),
        "final_entry_count": int(record.get("final_entry_count", 0)),
        "cumulative_usage": usage_from_jsonable(usage),
        "outcome": _outcome(record.get("outcome") or {"is": "Completed"}),
    }


def usage_from_jsonable(raw: object) -> Json | None:
    """Return token counts, None where there are none; a missing count is 0."""
    if not isinstance(raw, dict):
        return None
    fields = cast("Json", raw)
    names = ("prompt_tokens", "completion_tokens", "total_tokens")
    counts = {name: fields.get(name) for name in names}
    details = ("completion_tokens_details", "prompt_tokens_details")
    return {
        **{name: count if isinstance(count, int) else 0 for name, count in counts.items()},
        **{name: fields[name] for name in details if name in fields},
    }


def _renamed(event: str) -> Callable[[Json], Json]:
    def upgrade(record: Json) -> Json:
        fields = {**record, "event": event}
        return {**fields, "at": utc(record["at"])} if "at" in record else fields

    return upgrade


_LINES: dict[str, Callable[[Json], Json]] = {
    "head": _head,
    "tools": _renamed("tool_schemas"),
    "chunk": _chunk,
    "entry": _entry,
    "intent": _renamed("intent"),
    "result": _result,
    "round": _renamed("round"),
    "partial": _renamed("partial"),
    "failure": _renamed("failed"),
    "reopened": _renamed("reopened"),
    "outcome": lambda record: {"event": "outcome", "outcome": _outcome(record["outcome"])},
    "placement": _renamed("placement"),
    "trailer": _trailer,
}
