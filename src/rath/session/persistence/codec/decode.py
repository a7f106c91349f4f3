"""The bytes of a session file to typed lines."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, cast
from uuid import UUID

from rath._core.blobs import Blob, is_digest
from rath.backend.persistence.spec_json import spec_from_jsonable
from rath.backend.workspace import StoredWorkspace
from rath.errors import PersistenceError
from rath.llm.chat_request import RathLLMFunctionTool
from rath.llm.chat_response import RathLLMTokenUsage
from rath.llm.prices import Cost
from rath.session.body import GivenUsage
from rath.session.chunk import ChunkRow, RowId
from rath.session.outcome import (
    BudgetExceeded,
    Cancelled,
    Completed,
    DeadlineExceeded,
    NeedsApproval,
    NeedsDecision,
    NeedsInput,
    Outcome,
    OutputMissing,
    OutputValue,
    RoundLimit,
)
from rath.session.persistence.codec.kinds import ENTRY_KINDS, shape_for
from rath.session.persistence.codec.shapes import MakeBlob, utc
from rath.session.persistence.lines import (
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
from rath.session.persistence.records import decode_chunk, decode_header, usage_from_jsonable
from rath.session.record import Entry, ModelCall, Operation, ToolRun

Json = dict[str, Any]

_ENTRIES = {name: kind for kind, name in ENTRY_KINDS.items()}
_OUTCOMES: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (
        RoundLimit,
        BudgetExceeded,
        DeadlineExceeded,
        Cancelled,
        NeedsApproval,
        NeedsInput,
        NeedsDecision,
    )
}


def bare_blob(digest: str, size: int, is_kept: bool) -> Blob:
    """Return a blob without its bytes, whether they were kept or not."""
    return Blob(digest, size)


@dataclass(slots=True)
class Decoder:
    """Decodes the lines of one log in order; knows what earlier lines said."""

    make_blob: MakeBlob = bare_blob
    session: UUID | None = None
    """Whose log it is; known after the header."""

    heads: dict[str, tuple[ChunkRow, ...]] = field(default_factory=dict[str, tuple[ChunkRow, ...]])
    tools: dict[str, tuple[RathLLMFunctionTool, ...]] = field(
        default_factory=dict[str, tuple[RathLLMFunctionTool, ...]]
    )
    n_theirs: dict[UUID, int] = field(default_factory=dict[UUID, int])
    """By entry id of a merge: how many entries the record of its second parent had."""

    theirs: dict[UUID, tuple[UUID, ...]] = field(default_factory=dict[UUID, tuple[UUID, ...]])
    """By entry id of a merge: which entries that were, where they are named."""

    def take(self, record: Json) -> Line:
        """Return the line that a record of the current version says.

        Raises:
            PersistenceError: The record is of no known kind, or malformed.
        """
        kind: object = record.get("record_type")
        decode = _KINDS.get(kind) if isinstance(kind, str) else None
        if decode is None:
            known = ", ".join(_KINDS)
            raise PersistenceError(f"unknown record_type {kind!r}; expected one of {known}")
        if (kind == "header") != (self.session is None):
            raise PersistenceError(
                "duplicate header" if kind == "header" else f"{kind} before header"
            )
        try:
            return decode(self, record)
        except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError) as exc:
            raise PersistenceError(f"malformed {kind}: {type(exc).__name__}: {exc}") from exc

    def entry(self, record: Json) -> Entry:
        """Return the entry of the record that a line holds."""
        kind = _ENTRIES.get(record["entry"])
        if kind is None:
            raise ValueError(f"unknown entry {record['entry']!r}; expected {', '.join(_ENTRIES)}")
        head, tools = (record.pop(name, None) for name in ("head", "tools"))
        entry: Entry = shape_for(kind).decode(record, self.make_blob)
        if isinstance(entry, Operation):
            if "n_theirs" in record:
                self.n_theirs[entry.id] = int(record["n_theirs"])
            if "theirs" in record:
                self.theirs[entry.id] = tuple(UUID(each) for each in record["theirs"])
            if head is not None or tools is not None:
                entry = replace(
                    entry,
                    head=() if head is None else self.heads[head],
                    tools=() if tools is None else self.tools[tools],
                )
        elif isinstance(entry, ModelCall):
            cost = record["evidence"].get("cost")
            said = None if cost is None else shape_for(Cost).decode(cost, self.make_blob)
            entry.evidence.settle_cost(said)
        return entry


def _header(decoder: Decoder, record: Json) -> Line:
    header = decode_header(record)
    decoder.session = header.id
    lineage = record.get("lineage")
    return HeaderLine(
        session=header.id,
        created_at=header.created_at,
        operator=header.lineage_operator,
        kind=header.lineage_kind,
        parents=header.parent_session_ids,
        extras=header.lineage_extras,
        sandbox_backend=header.sandbox_backend,
        sandbox_spec=header.sandbox_spec,
        sandbox_handle_id=header.sandbox_handle_id,
        workspace=_workspace(decoder, record),
        rows=_parts(record.get("rows")),
        entries=_parts(record.get("entries")),
        given=tuple(_given(each) for each in record.get("given") or ()),
        lineage=None if lineage is None else (UUID(lineage[0]), UUID(lineage[1]), lineage[2]),
        provider=record.get("provider"),
    )


def _placement(decoder: Decoder, record: Json) -> Line:
    return PlacementLine(
        sandbox_backend=record.get("sandbox_backend"),
        sandbox_spec=spec_from_jsonable(record.get("sandbox_spec")),
        sandbox_handle_id=record.get("sandbox_handle_id"),
        workspace=_workspace(decoder, record),
    )


def _workspace(decoder: Decoder, record: Json) -> StoredWorkspace | None:
    said = record.get("sandbox_workspace")
    shape = shape_for(StoredWorkspace)
    return None if said is None else cast("StoredWorkspace", shape.decode(said, decoder.make_blob))


def _head(decoder: Decoder, record: Json) -> Line:
    rows = tuple(_row(each) for each in record["rows"])
    decoder.heads[record["digest"]] = rows
    return HeadLine(record["digest"], rows)


def _tools(decoder: Decoder, record: Json) -> Line:
    shape = shape_for(RathLLMFunctionTool)
    tools = tuple(shape.decode(each, decoder.make_blob) for each in record["tools"])
    decoder.tools[record["digest"]] = tools
    return ToolsLine(record["digest"], tools)


def _chunk(decoder: Decoder, record: Json) -> Line:
    index: object = record["index"]
    if type(index) is not int:
        raise TypeError(f"index is {index!r}, expected a number")
    assert decoder.session is not None
    row = _row(record)
    return RowLine(index, row if row.id is not None else row.with_id(_here(decoder, index)))


def _entry(decoder: Decoder, record: Json) -> Line:
    return EntryLine(decoder.entry(record))


def _result(decoder: Decoder, record: Json) -> Line:
    run = decoder.entry(record["run"])
    if not isinstance(run, ToolRun):
        raise TypeError(f"the entry of a result is a {type(run).__name__}, expected a tool run")
    shown = record["shown"]
    row = None if shown is None else _row(shown)
    return ResultLine(row=int(record["row"]), call=int(record["call"]), run=run, shown=row)


def _round(decoder: Decoder, record: Json) -> Line:
    return RoundLine(int(record["row"]), tuple(UUID(each) for each in record["results"]))


def _outcome(decoder: Decoder, record: Json) -> Line:
    return OutcomeLine(decode_outcome(record["outcome"]))


def _trailer(decoder: Decoder, record: Json) -> Line:
    usage = record.get("cumulative_usage")
    return TrailerLine(
        closed_at=utc(record["closed_at"]),
        n_rows=int(record["final_chunk_count"]),
        n_entries=int(record.get("final_entry_count", 0)),
        usage=_usage(usage),
        outcome=decode_outcome(record.get("outcome") or {"is": "Completed"}),
    )


def _by_shape(kind: type[Any]) -> Callable[[Decoder, Json], Line]:
    def decode(decoder: Decoder, record: Json) -> Line:
        return cast("Line", shape_for(kind).decode(record, decoder.make_blob))

    return decode


_KINDS: dict[str, Callable[[Decoder, Json], Line]] = {
    "header": _header,
    "head": _head,
    "tools": _tools,
    "chunk": _chunk,
    "entry": _entry,
    "intent": _by_shape(IntentLine),
    "result": _result,
    "round": _round,
    "partial": _by_shape(PartialLine),
    "failure": _by_shape(FailureLine),
    "reopened": _by_shape(ReopenedLine),
    "outcome": _outcome,
    "placement": _placement,
    "trailer": _trailer,
}


def decode_record(line: bytes) -> Json:
    """Return the JSON object on a line.

    Raises:
        PersistenceError: It is none, in UTF-8.
    """
    try:
        record: object = json.loads(line)
    except (ValueError, RecursionError) as exc:
        raise PersistenceError(f"invalid JSON: {exc}") from exc
    if not isinstance(record, dict):
        raise PersistenceError(f"expected a JSON object, found {type(record).__name__}")
    return cast("Json", record)


def decode_outcome(said: Json) -> Outcome:
    """Return how a run ended; a typed answer comes back as JSON, without its class.

    Raises:
        ValueError: It says no outcome that is known.
    """
    name = said.get("is")
    if name == "Completed":
        if "output" in said:
            return Completed(OutputValue(said["output"]))
        problem = said.get("output_problem")
        return Completed() if problem is None else Completed(OutputMissing(str(problem)))
    if name not in _OUTCOMES:
        raise ValueError(f"unknown outcome {name!r}; expected Completed, {', '.join(_OUTCOMES)}")
    return cast("Outcome", shape_for(_OUTCOMES[name]).decode(said, bare_blob))


def _here(decoder: Decoder, index: int) -> RowId:
    assert decoder.session is not None
    return RowId(decoder.session, index)


def _row(record: Json) -> ChunkRow:
    row = decode_chunk(record)
    born: object = record.get("born")
    if born is None:
        return row
    session, _, index = str(born).rpartition(":")
    return row.with_id(RowId(UUID(session), int(index)))


def _parts(said: object) -> tuple[Part, ...]:
    listed = cast("list[list[Any]]", said or [])
    made: list[Part] = []
    for session, start, stop, digest in listed:
        is_range = type(start) is int and type(stop) is int and 0 <= start <= stop
        if not is_range or not is_digest(digest):
            raise ValueError(f"bad part {session!r}, {start!r} to {stop!r}, {digest!r}")
        made.append(Part(UUID(session), start, stop, digest))
    return tuple(made)


def _given(said: Json) -> GivenUsage:
    usage = _usage(said["usage"])
    if usage is None:
        raise ValueError("given usage without token counts")
    return GivenUsage(UUID(said["session"]), usage)


def _usage(said: object) -> RathLLMTokenUsage | None:
    counts = usage_from_jsonable(cast("Json", said) if isinstance(said, dict) else None)
    if counts is None:
        return None
    details = cast("Json", said)
    return replace(
        counts,
        completion_tokens_details=details.get("completion_tokens_details"),
        prompt_tokens_details=details.get("prompt_tokens_details"),
    )
