"""Typed lines to the bytes of a session file."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, assert_never, cast
from uuid import UUID

from rath._core.blobs import Blob
from rath.backend.persistence.spec_json import spec_to_jsonable
from rath.llm.chat_request import RathLLMFunctionTool
from rath.llm.chat_response import RathLLMTokenUsage
from rath.session.chunk import ChunkRow, RowId
from rath.session.content import rows_digest
from rath.session.graph.export import lineage_extras_to_jsonable
from rath.session.outcome import Completed, Outcome, OutputMissing, OutputValue
from rath.session.persistence.chain import chained
from rath.session.persistence.codec.kinds import ENTRY_KINDS, shape_for
from rath.session.persistence.codec.reader import LineReader
from rath.session.persistence.lines import (
    SCHEMA_VERSION,
    EntryLine,
    FailureLine,
    HeaderLine,
    HeadLine,
    IntentLine,
    Line,
    OutcomeLine,
    Part,
    PartialLine,
    PlacementLine,
    ReopenedLine,
    ResultLine,
    RoundLine,
    RowLine,
    ToolsLine,
    TrailerLine,
)
from rath.session.record import Entry, ModelCall, Operation

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Batch:
    """A group of lines, to be appended as a whole."""

    data: bytes
    blobs: tuple[Blob, ...]
    """Contents that the lines name; those that have bytes are to be kept before the lines are."""


class Encoder:
    """Makes the lines of one log; knows what stands in it already.

    Args:
        session: Whose log it is: rows born elsewhere say so.
        names_theirs: Whether a merge names the entries that its second parent had, where their
            number will not do because that parent goes.
    """

    def __init__(self, session: UUID, *, names_theirs: bool = False) -> None:
        self._session = session
        self._names_theirs = names_theirs
        self._known: set[str] = set()
        self.sum = ""
        """The checksum of the last line, "" before the first."""

    @classmethod
    def after(cls, session: UUID, reader: LineReader) -> Encoder:
        """Return one that goes on with a log that was read."""
        made = cls(session)
        made.sum = reader.sum
        made._known |= reader.known_digests  # a constructor of the same class
        return made

    def add(self, *lines: Line) -> Batch:
        """Return lines as one group, which is read as a whole or not at all.

        Raises:
            TypeError: A line holds something that JSON has no form for.
        """
        blobs: list[Blob] = []
        said = [record for line in lines for record in self._records(line, blobs)]
        for record in said[:-1]:
            record["more"] = 1
        data, self.sum = chained(map(_to_bytes, said), self.sum)
        return Batch(data, tuple(blobs))

    def _records(self, line: Line, blobs: list[Blob]) -> Iterator[Json]:
        match line:
            case EntryLine(Operation() as entry):
                yield from self._named_before(entry, blobs)
                yield {"record_type": "entry", **self._operation(entry, blobs)}
            case HeaderLine():
                # What begins with nothing of others has all of it in itself.
                self._names_theirs = self._names_theirs or not line.entries
                yield encode_line(line, blobs)
            case RowLine(index, row):
                blobs += [image.blob for image in row.images]
                yield {"record_type": "chunk", "index": index, **encode_row(row, self._at(index))}
            case _:
                yield encode_line(line, blobs)

    def _operation(self, entry: Operation, blobs: list[Blob]) -> Json:
        said = encode_entry(entry, blobs)
        if entry.theirs and (self._names_theirs or entry.session != self._session):
            # Whose number it was is not told here, but all of them stand in the record.
            del said["n_theirs"]
            said["theirs"] = [str(each.id) for each in entry.theirs]
        return said

    def _named_before(self, entry: Operation, blobs: list[Blob]) -> Iterator[Json]:
        """Yield the agent's rows and the tools of an operation, unless they stand there already."""
        if entry.head:
            digest = rows_digest(entry.head)
            if digest not in self._known:
                self._known.add(digest)
                yield encode_line(HeadLine(digest, entry.head), blobs)
        if entry.tools:
            digest = tools_digest(entry.tools)
            if digest not in self._known:
                self._known.add(digest)
                yield encode_line(ToolsLine(digest, entry.tools), [])

    def _at(self, index: int) -> RowId:
        return RowId(self._session, index)


def encode_line(line: Line, blobs: list[Blob]) -> Json:
    """Return a line as JSON, and add the blobs in it to `blobs`."""
    match line:
        case HeaderLine():
            return _header(line)
        case HeadLine(digest, rows):
            blobs += [image.blob for row in rows for image in row.images]
            listed = [encode_row(row, None) for row in rows]
            return {"record_type": "head", "digest": digest, "rows": listed}
        case ToolsLine(digest, tools):
            return {"record_type": "tools", "digest": digest, "tools": _tools(tools)}
        case RowLine(index, row):
            return {"record_type": "chunk", "index": index, **encode_row(row, None)}
        case EntryLine(entry):
            return {"record_type": "entry", **encode_entry(entry, blobs)}
        case IntentLine():
            return {"record_type": "intent", **_by_shape(line, blobs)}
        case ResultLine(row=row, call=call, run=run, shown=shown):
            blobs += [] if shown is None else [image.blob for image in shown.images]
            said = None if shown is None else encode_row(shown, None)
            place = {"record_type": "result", "row": row, "call": call}
            return {**place, "run": encode_entry(run, blobs), "shown": said}
        case RoundLine(row, results):
            ids = [str(each) for each in results]
            return {"record_type": "round", "row": row, "results": ids}
        case PartialLine() | FailureLine() | ReopenedLine():
            kinds = {PartialLine: "partial", FailureLine: "failure", ReopenedLine: "reopened"}
            return {"record_type": kinds[type(line)], **_by_shape(line, blobs)}
        case OutcomeLine(outcome):
            return {"record_type": "outcome", "outcome": encode_outcome(outcome)}
        case PlacementLine() | TrailerLine():
            return _trailer(line) if isinstance(line, TrailerLine) else _placement(line)
        case _:
            assert_never(line)


def encode_row(row: ChunkRow, stands_at: RowId | None) -> Json:
    """Return a row as JSON; one that was born elsewhere than it stands says where."""
    said: Json = {"kind": row.kind_name, "payload": row.payload}
    if row.id is not None and row.id != stands_at:
        said["born"] = f"{row.id.session}:{row.id.index}"
    return said


def encode_entry(entry: Entry, blobs: list[Blob]) -> Json:
    """Return an entry of the record as JSON, and add the blobs in it to `blobs`."""
    said: Json = {"entry": ENTRY_KINDS[type(entry)], **_by_shape(entry, blobs)}
    match entry:
        case Operation():
            if entry.head:
                said["head"] = rows_digest(entry.head)
            if entry.tools:
                said["tools"] = tools_digest(entry.tools)
            if entry.theirs is not None:
                said["n_theirs"] = len(entry.theirs)
        case ModelCall():
            cost = entry.evidence.cost
            if cost is not None:
                said["evidence"]["cost"] = _by_shape(cost, blobs)
        case _:
            pass
    return said


def encode_outcome(outcome: Outcome) -> Json:
    """Return how a run ended as JSON."""
    said: Json = {"is": type(outcome).__name__}
    if isinstance(outcome, Completed):
        match outcome.output:
            case None:
                pass
            case OutputMissing(problem):
                said["output_problem"] = problem
            case OutputValue(value):
                said["output"] = _output(value)
        return said
    return {**said, **_by_shape(outcome, [])}


def usage_to_jsonable(usage: RathLLMTokenUsage | None) -> Json | None:
    """Return token counts as JSON, with the details that a vendor gave."""
    return None if usage is None else _by_shape(usage, [])


def tools_digest(tools: tuple[RathLLMFunctionTool, ...]) -> str:
    """Return the sha256 over tool schemas, in hex."""
    return sha256(_dump(_tools(tools)).encode(errors="replace")).hexdigest()


def _header(line: HeaderLine) -> Json:
    said: Json = {
        "record_type": "header",
        "schema_version": SCHEMA_VERSION,
        "id": str(line.session),
        "created_at": line.created_at.isoformat(),
        "parent_session_ids": [str(parent) for parent in line.parents],
        "lineage_operator": line.operator,
        "lineage_kind": line.kind.value,
        "lineage_extras": lineage_extras_to_jsonable(line.extras),
    }
    said.update(_place(line))
    if line.rows:
        said["rows"] = [_part(part) for part in line.rows]
    if line.entries:
        said["entries"] = [_part(part) for part in line.entries]
    if line.given:
        said["given"] = [
            {"session": str(each.session), "usage": usage_to_jsonable(each.usage)}
            for each in line.given
        ]
    if line.lineage is not None:
        user, agent, operator = line.lineage
        said["lineage"] = [str(user), str(agent), operator]
    if line.provider is not None:
        said["provider"] = dict(line.provider)
    return said


def _placement(line: PlacementLine) -> Json:
    return {"record_type": "placement", **_place(line)}


def _place(line: HeaderLine | PlacementLine) -> Json:
    said: Json = {
        "sandbox_backend": line.sandbox_backend,
        "sandbox_spec": spec_to_jsonable(line.sandbox_spec),
        "sandbox_handle_id": line.sandbox_handle_id,
    }
    if line.workspace is not None:
        said["sandbox_workspace"] = _by_shape(line.workspace, [])
    return said


def _part(part: Part) -> list[Any]:
    return [str(part.session), part.start, part.stop, part.digest]


def _trailer(line: TrailerLine) -> Json:
    return {
        "record_type": "trailer",
        "closed_at": line.closed_at.isoformat(),
        "final_chunk_count": line.n_rows,
        "final_entry_count": line.n_entries,
        "cumulative_usage": usage_to_jsonable(line.usage),
        "outcome": encode_outcome(line.outcome),
    }


def _tools(tools: tuple[RathLLMFunctionTool, ...]) -> list[Json]:
    return [_by_shape(tool, []) for tool in tools]


def _by_shape(value: object, blobs: list[Blob]) -> Json:
    return cast("Json", shape_for(type(value)).encode(value, blobs))


def _output(value: object) -> object:
    """Return a typed answer as JSON: what can be read of it without its class."""
    to_json: object = getattr(value, "model_dump", None)
    if callable(to_json):
        return to_json(mode="json")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return value


def _to_bytes(record: Json) -> bytes:
    try:
        return _dump(record).encode()
    except UnicodeEncodeError:
        # A lone surrogate has no UTF-8 form, but JSON has an escape that brings it back.
        return json.dumps(record, default=_plain).encode()


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(cast("Mapping[str, Any]", value))
    if isinstance(value, set | frozenset):
        return sorted(cast("set[Any]", value))
    raise TypeError(f"{type(value).__name__} has no JSON form; use text, numbers, lists or objects")


# Made once: `json.dumps` with options makes an encoder at each call.
_dump = json.JSONEncoder(ensure_ascii=False, default=_plain).encode
