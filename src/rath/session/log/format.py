r"""The events of a log as bytes, format version 3: one compact JSON object a line.

    {"record_type":"header","schema_version":3,"id":"...",...,"sum":"65e71221e5753ae8"}
    {"event":"row","index":0,"kind":"user","payload":{"content":"Hello"},"sum":"1e1e093a7668b72f"}

The first line is the header; every other one begins with the kind of its event. What must not be
torn apart is written as a group: all lines but the last have `"more":1` before the sum, and a log
that ends inside a group is read up to where the group begins. The last member of a line is its
checksum, chained with that of the line before: see `rath.session.log.json_lines`.

A member that has its default is left out. What repeats is said once and named by its digest: the
agent's rows, the tool schemas, and what the model calls of a run have in common.

A log of version 2 is gone on with in lines of version 3; what a line is its first member tells.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import field
from functools import cache, reduce
from hashlib import sha256
from operator import attrgetter
from typing import Any, Literal, cast, get_args
from uuid import UUID

import msgspec
from msgspec import Struct, structs

from rath._core.blobs import Blob
from rath._core.dataclasses import dataclass
from rath.backend.persistence.spec_json import spec_from_jsonable, spec_to_jsonable
from rath.backend.workspace import StoredWorkspace
from rath.errors import PersistenceError
from rath.llm.chat_request import RathLLMFunctionTool
from rath.llm.chat_response import RathLLMTokenUsage
from rath.llm.evidence import CallEvidence
from rath.llm.prices import Cost
from rath.session.chunk import ChunkRow, RowId, parsed_row, unparsed_row
from rath.session.content import rows_digest
from rath.session.events import (
    AgentRows,
    CallSetup,
    Event,
    Finished,
    Header,
    OutcomeChange,
    PendingResult,
    PlacementChange,
    Row,
    ToolSchemas,
)
from rath.session.graph.recording import lineage_extras_to_jsonable
from rath.session.log.json_lines import (
    CURRENT_SCHEMA_VERSION,
    chained,
    decode_record,
    dump,
    free_json,
    has_odd_number,
    look_at_types,
    output_to_plain,
    problem_of,
    to_json_value,
)
from rath.session.outcome import Completed, Outcome, OutputValue
from rath.session.record import (
    Decision,
    Interrupt,
    ModelCall,
    Operation,
    OperationFields,
    Purpose,
    RecalledNote,
    RecordEntry,
    Seen,
    ToolRun,
)

__all__ = ["Batch", "Decoder", "Encoder", "MakeBlob"]

Json = dict[str, Any]
MakeBlob = Callable[[str, int, bool], Blob]
"""Makes a blob of its digest, its size, and whether its bytes were kept."""


def bare_blob(digest: str, size: int, is_stored: bool) -> Blob:
    """Return a blob without its bytes, whether they were kept or not."""
    return Blob(digest, size)


class BlobMaker:
    """Makes the blobs of several logs, whose lines it decodes with one decoder.

    Args:
        make: Makes each of them.
    """

    __slots__ = ("_make", "decoder")

    def __init__(self, make: MakeBlob) -> None:
        self._make = make
        look_at_types(_ANY_FORM, CallEvidence, Cost, Seen, StoredWorkspace)
        self.decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(
            _ANY_FORM, dec_hook=self.from_json
        )

    def __call__(self, digest: str, size: int, is_stored: bool) -> Blob:
        """Make a blob."""
        return self._make(digest, size, is_stored)

    def from_json(self, kind: type, value: object) -> Blob:
        """Decode a reference to a blob.

        Raises:
            ValueError: It has no digest or no size.
        """
        assert kind is Blob, "no other type is read by hand"
        fields = cast("Json", value if isinstance(value, dict) else {})
        digest, size = fields.get("sha256"), fields.get("size")
        if not isinstance(digest, str) or type(size) is not int:
            raise ValueError("expected a sha256 and a size")
        return self._make(digest, size, fields.get("kept") is True)


@cache
def _bare_blobs() -> BlobMaker:
    return BlobMaker(bare_blob)


# ---------------------------------------------------------------- forms of their own


class _StoredRow(Struct):
    kind: str
    payload: dict[str, Any]
    id: RowId | None = None


class _Line(Struct, frozen=True, kw_only=True, tag_field="event", omit_defaults=True):
    pass


class _RowLine(_Line, frozen=True, kw_only=True, tag="row"):
    index: int
    kind: str
    payload: dict[str, Any]
    id: RowId | None = None


class _RawRowLine(_Line, frozen=True, kw_only=True, tag="row", gc=False):
    """A row whose payload was only looked over."""

    index: int
    kind: str
    payload: msgspec.Raw
    id: RowId | None = None


class _AgentRowsLine(_Line, frozen=True, kw_only=True, tag="agent_rows"):
    digest: str
    rows: tuple[_StoredRow, ...]


class _OperationLine(OperationFields, frozen=True, kw_only=True, tag="operation"):
    head: str | None = None
    tools: str | None = None
    n_theirs: int | None = None
    theirs: tuple[UUID, ...] = ()


class _ModelCallLine(RecordEntry, frozen=True, kw_only=True, tag="model_call"):
    purpose: Purpose
    status: Literal["done", "failed", "cancelled"] = "done"
    setup: str | None = None
    """Digest of the setup whose members are added to those of `seen` and `evidence`."""

    seen: dict[str, Any] | None = None
    evidence: dict[str, Any]
    answer: str | None = None


class _ResultLine(_Line, frozen=True, kw_only=True, tag="result"):
    row: int
    call: int
    run: ToolRun
    shown: _StoredRow | None = None


class _PlacementLine(_Line, frozen=True, kw_only=True, tag="placement"):
    sandbox_backend: str | None = None
    sandbox_spec: dict[str, Any] | None = None
    sandbox_handle_id: str | None = None
    sandbox_workspace: StoredWorkspace | None = None


# Events that have a form of their own in a log; the others stand in it as they are.
_OWN = (_RowLine, _AgentRowsLine, _OperationLine, _ModelCallLine, _ResultLine, _PlacementLine)
_FORMS: dict[str, Any] = {
    str(form.__struct_config__.tag): form
    for form in (_RowLine, *get_args(Event), *_OWN)
    if form is not Header
}
_ANY_FORM: Any = reduce(lambda one, other: one | other, {**_FORMS, "row": _RawRowLine}.values())
_AS_THEY_ARE = frozenset({*_FORMS.values()} - {*_OWN, ToolSchemas, CallSetup})

_SETUP = (
    *("provider_kind", "adapter", "adapter_version", "sdk", "sdk_version", "endpoint"),
    *("requested_model", "served_model", "service_tier", "parameters", "origins", "credential"),
    *("tools_digest", "renderer"),
)
"""Members of the evidence that are the same in most calls of a run."""

_SEEN_SETUP = ("head_digest", "tools_digest", "renderer")
_SEEN_ABSENT: Json = {
    **dict.fromkeys(("context_at", "context", "tools_digest", "question")),
    "recalled": (),
}
"""What stands for a member of what was seen that is left out."""

_ABSENT: Json = {
    **dict.fromkeys(
        (
            *("sdk", "sdk_version", "endpoint", "requested_model", "served_model", "response_id"),
            *("service_tier", "fingerprint", "credential", "first_token_ms", "finish_reason"),
            *("finish_reason_raw", "usage", "cached_tokens", "cache_write_tokens"),
            *("reasoning_tokens", "reasoning", "tools_digest", "error", "fallback_from"),
        )
    ),
    "parameters": {},
    "origins": (),
    "attempts": (),
    "reasoning_blocks": (),
    "partial_text": "",
    "queued_ms": 0.0,
    "was_sent": True,
}
"""What stands for a member of the evidence that is left out."""

_ATTEMPT: Json = {"error": None, "status": None, "elapsed_ms": 0.0, "wait": 0.0}
"""What stands for a member of an attempt that is left out."""

_ODD_EVIDENCE = frozenset(
    ("reasoning_blocks", "queued_ms", "attempts", "usage", "request_digest", "status")
)
"""Members of the evidence of one call that its line has in another form, or not as they are."""

_OWN_EVIDENCE = tuple(
    name for name in CallEvidence.__struct_fields__ if name not in {*_SETUP, *_ODD_EVIDENCE}
)
_OwnEvidence = msgspec.defstruct(
    "_OwnEvidence",
    [
        (name, Any, _ABSENT.get(name, msgspec.UNSET))
        for name in (*_OWN_EVIDENCE, "reasoning_blocks", "queued_ms", "attempts", "usage",
                     "request_digest", "status", "cost")
    ],
    omit_defaults=True,
)  # fmt: skip
"""The members of the evidence of one call that are no part of its setup, as its line has them."""

_setup_of, _own_of = attrgetter(*_SETUP), attrgetter(*_OWN_EVIDENCE)


class _OwnSeen(Struct, omit_defaults=True):
    """The members of what one call saw that are no part of its setup, as its line has them."""

    n_rows: int
    context_at: int | None = None
    context: str | None = None
    recalled: tuple[RecalledNote, ...] = ()
    question: str | None = None
    request_digest: str | msgspec.UnsetType = msgspec.UNSET


class _WrittenCall(RecordEntry, frozen=True, kw_only=True, tag="model_call"):
    """A model call as its line has it; see `_ModelCallLine`."""

    purpose: Purpose
    status: Literal["done", "failed", "cancelled"] = "done"
    setup: str
    seen: _OwnSeen | None = None
    evidence: Any
    answer: str | None = None


# ---------------------------------------------------------------- events to bytes


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
        after: The checksum of the line after which it goes on.
        known: Digests of what is said once, and stands there.
    """

    def __init__(
        self,
        session: UUID,
        *,
        names_theirs: bool = False,
        after: str = "",
        known: Iterable[str] = (),
    ) -> None:
        self._session = session
        self._names_theirs = names_theirs
        self._defined = set(known)
        self._setups: list[tuple[tuple[object, ...], str, str]] = []
        self._blobs: list[Blob] = []
        self._json = msgspec.json.Encoder(enc_hook=self._hook)
        self.sum: str = after
        """The checksum of the last line, "" before the first."""

    def add(self, *events: Event) -> Batch:
        """Return events as one group, which is read as a whole or not at all.

        Raises:
            TypeError: An event holds something that JSON has no form for.
        """
        self._blobs = []
        lines = [line for event in events for line in self._lines(event)]
        lines[:-1] = [b'%s,"more":1}' % line[:-1] for line in lines[:-1]]
        data, self.sum = chained(lines, self.sum, is_compact=True)
        return Batch(data, tuple(self._blobs))

    def _lines(self, event: Event) -> Iterator[bytes]:
        match event:
            case Row(index, row):
                fields = self._row(row, RowId(self._session, index))
                yield dump({"event": "row", "index": index, **fields})
            case ModelCall():
                yield from self._call(event)
            case Operation():
                yield from self._operation(event)
            case PendingResult(row=row, call=call, run=run, shown=shown):
                encoded = row, call, self._encode(_entry(run))
                end = b"}" if shown is None else b',"shown":%s}' % dump(self._row(shown, None))
                yield b'{"event":"result","row":%d,"call":%d,"run":%s' % encoded + end
            case Header():
                # What begins with nothing of others has all of it in itself.
                self._names_theirs = self._names_theirs or not event.entries
                yield dump(_header(event))
            case AgentRows(digest, rows):
                listed = [self._row(row, None) for row in rows]
                yield dump({"event": "agent_rows", "digest": digest, "rows": listed})
            case PlacementChange():
                yield dump({"event": "placement", **_place(event)})
            case OutcomeChange(outcome):
                yield self._encode(OutcomeChange(_stored(outcome)))
            case Finished():
                yield self._encode(_encode_end(event))
            case ToolRun() | Decision() | Interrupt():
                yield self._encode(_entry(event))
            case _:
                yield self._encode(event)

    def _row(self, row: ChunkRow, stands_at: RowId | None) -> Json:
        """Return a row as JSON; one that was born elsewhere than it stands says where."""
        self._blobs += [image.blob for image in row.images]
        fields: Json = {"kind": row.kind_name, "payload": row.payload}
        if row.id is not None and row.id != stands_at:
            fields["id"] = [str(row.id.session), row.id.index]
        return fields

    def _call(self, entry: ModelCall) -> Iterator[bytes]:
        evidence, seen = entry.evidence, entry.seen
        setup, line = self._setup(evidence, seen)
        if line is not None:
            yield line
        yield self._encode(
            _WrittenCall(
                operation=entry.operation,
                rows=entry.rows,
                id=entry.id,
                at=entry.at,
                purpose=entry.purpose,
                status=entry.status,
                setup=setup,
                seen=None if seen is None else _own_seen(seen, evidence.request_digest),
                evidence=_own_evidence(evidence, entry.status),
                answer=entry.answer,
            )
        )

    def _setup(self, evidence: CallEvidence, seen: Seen | None) -> tuple[str, bytes | None]:
        """Return the digest of what a call has in common with others, and its line if it is new."""
        key: tuple[object, ...] = _setup_of(evidence)
        if seen is not None:
            key += (seen.head_digest, seen.tools_digest, seen.renderer)
        # To Python 1, 1.0 and True are equal.
        exact = repr(evidence.parameters)
        for setup_key, recorded, digest in self._setups:
            if setup_key == key and recorded == exact:
                return digest, None
        setup = _present(evidence, _ABSENT, _SETUP)
        if evidence.parameters:
            setup["parameters"] = free_json(evidence.parameters)
        common: Json = {"evidence": setup}
        if seen is not None:
            common["seen"] = _present(seen, _SEEN_ABSENT, _SEEN_SETUP)
        body = self._encode(common)
        digest = sha256(body).hexdigest()[:_SETUP_DIGITS]
        self._setups = [(key, exact, digest), *self._setups[: _MAX_SETUPS - 1]]
        if digest in self._defined:
            return digest, None
        self._defined.add(digest)
        return digest, b'{"event":"call_setup","digest":"%s",%s' % (digest.encode(), body[1:])

    def _operation(self, entry: Operation) -> Iterator[bytes]:
        fields = {name: getattr(entry, name) for name in OperationFields.__struct_fields__}
        if entry.head:
            fields["head"] = digest = rows_digest(entry.head)
            if digest not in self._defined:
                self._defined.add(digest)
                yield from self._lines(AgentRows(digest, entry.head))
        if entry.tools:
            fields["tools"] = digest = tools_digest(entry.tools)
            if digest not in self._defined:
                self._defined.add(digest)
                listed = [_bare(tool) for tool in entry.tools]
                yield self._encode({"event": "tool_schemas", "digest": digest, "tools": listed})
        if entry.theirs and (self._names_theirs or entry.session != self._session):
            # Whose number it was is not told here, but all of them stand in the record.
            fields["theirs"] = tuple(each.id for each in entry.theirs)
        elif entry.theirs is not None:
            fields["n_theirs"] = len(entry.theirs)
        fields["place"] = _bare(entry.place)
        if entry.output is not None:
            fields["output"] = {**_bare(entry.output), "tool": _bare(entry.output.tool)}
        fields = {
            name: value for name, value in fields.items() if value is not None and value != ()
        }
        yield self._encode({"event": "operation", **fields})

    def _encode(self, value: object) -> bytes:
        """Return JSON; numbers and texts that msgspec has no form for as the json module does."""
        n_blobs = len(self._blobs)
        try:
            data = self._json.encode(value)
        except (UnicodeEncodeError, TypeError, OverflowError):
            # A lone surrogate, for which JSON has an escape, or a key that is no text.
            del self._blobs[n_blobs:]
            return dump(msgspec.to_builtins(value, enc_hook=self._hook))
        # What is no number becomes null: rare, since what is None is mostly left out.
        if b"null" in data:
            builtins: object = msgspec.to_builtins(value, enc_hook=to_json_value)
            if has_odd_number(builtins):
                return dump(builtins)
        return data

    def _hook(self, value: object) -> object:
        if isinstance(value, Blob) and value.is_kept:
            self._blobs.append(value)
        return to_json_value(value)


_SETUP_DIGITS = 16
_MAX_SETUPS = 8
"""Of so many setups the members are compared, before a digest is taken; a guess."""


def _present(value: Any, absent: Json, names: Iterable[str] = ()) -> Json:
    """Return the members of these names, by default all, that are not what stands for none."""
    listed = ((name, getattr(value, name)) for name in names or value.__struct_fields__)
    return {name: each for name, each in listed if name not in absent or each != absent[name]}


def _own_evidence(evidence: CallEvidence, status: str) -> Struct:
    """Return the members of the evidence of one call that are no part of its setup."""
    blocks, usage, cost = evidence.reasoning_blocks, evidence.usage, evidence.cost
    return _OwnEvidence(
        *_own_of(evidence),
        free_json(blocks) if blocks else (),
        evidence.queued_ms or _ABSENT["queued_ms"],
        [_present(each, _ATTEMPT) for each in evidence.attempts] or (),
        None if usage is None else _usage(usage),
        evidence.request_digest,
        msgspec.UNSET if evidence.status == status else evidence.status,
        msgspec.UNSET if cost is None else cost,
    )


def _own_seen(seen: Seen, sent: str) -> _OwnSeen:
    """Return the members of what a call saw that are no part of its setup.

    Args:
        seen: What the call saw.
        sent: The digest of the request that it sent.
    """
    digest = seen.request_digest
    return _OwnSeen(
        seen.n_rows,
        seen.context_at,
        seen.context,
        seen.recalled,
        seen.question,
        msgspec.UNSET if digest == sent else digest,
    )


def _usage(usage: RathLLMTokenUsage) -> Json:
    """Return token counts; their details are JSON of any shape."""
    fields: Json = {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
    }
    if usage.completion_tokens_details is not None:
        fields["completion_tokens_details"] = free_json(usage.completion_tokens_details)
    if usage.prompt_tokens_details is not None:
        fields["prompt_tokens_details"] = free_json(usage.prompt_tokens_details)
    return fields


def tools_digest(tools: tuple[RathLLMFunctionTool, ...]) -> str:
    """Return the sha256 over tool schemas, in hex."""
    text = json.dumps([_bare(tool) for tool in tools], ensure_ascii=False, default=to_json_value)
    return sha256(text.encode(errors="replace")).hexdigest()


def _encode_end(event: Finished) -> Json:
    fields: Json = {
        "event": "finished",
        "closed_at": event.closed_at,
        "final_chunk_count": event.n_rows,
        "final_entry_count": event.n_entries,
    }
    if event.usage is not None:
        fields["cumulative_usage"] = _bare(event.usage)
    return {**fields, "outcome": _stored(event.outcome)}


_FREE = ("arguments", "edited", "schema")
"""Members of entries that are JSON of any shape."""


def _entry(entry: ToolRun | Decision | Interrupt) -> Struct:
    """Return an entry in the form of its line: as it is where no member has another form there."""
    fields: Json = {name: free_json(each) for name in _FREE if (each := getattr(entry, name, None))}
    if isinstance(entry, ToolRun) and entry.sandbox is not None:
        fields["sandbox"] = _bare(entry.sandbox)
    if isinstance(entry, ToolRun) and entry.file_effects:
        fields["file_effects"] = [_bare(effect) for effect in entry.file_effects]
    if isinstance(entry, ToolRun) and entry.start is not None:
        fields["start"] = _bare(entry.start)
    return structs.replace(entry, **fields) if fields else entry


def _bare(value: Any) -> Json:
    """Return the fields of a dataclass that are not None."""
    members = ((each.name, getattr(value, each.name)) for each in dataclasses.fields(value))
    return {name: member for name, member in members if member is not None}


def _header(header: Header) -> Json:
    fields: Json = {
        "record_type": "header",
        "schema_version": CURRENT_SCHEMA_VERSION,
        "id": str(header.session),
        "created_at": header.created_at.isoformat(),
        "parent_session_ids": [str(parent) for parent in header.parents],
        "lineage_operator": header.operator,
        "lineage_kind": header.kind.value,
        "lineage_extras": lineage_extras_to_jsonable(header.extras),
        **_place(header),
    }
    for name, ranges in (("rows", header.rows), ("entries", header.entries)):
        fields[name] = [[str(each.session), each.start, each.stop, each.digest] for each in ranges]
    fields["given"] = [
        {"session": str(each.session), "usage": _bare(each.usage)} for each in header.given
    ]
    if header.lineage is not None:
        user, agent, operator = header.lineage
        fields["lineage"] = [str(user), str(agent), operator]
    fields = {name: value for name, value in fields.items() if value != []}
    return fields if header.provider is None else {**fields, "provider": dict(header.provider)}


def _place(event: Header | PlacementChange) -> Json:
    fields: Json = {
        "sandbox_backend": event.sandbox_backend,
        "sandbox_spec": spec_to_jsonable(event.sandbox_spec),
        "sandbox_handle_id": event.sandbox_handle_id,
    }
    if event.workspace is not None:
        fields["sandbox_workspace"] = {**_bare(event.workspace), "id": str(event.workspace.id)}
    return {name: value for name, value in fields.items() if value is not None}


def _stored(outcome: Outcome) -> Outcome:
    """Return an outcome whose typed answer is what can be read of it without its class."""
    if isinstance(outcome, Completed) and isinstance(outcome.output, OutputValue):
        # Through JSON: msgspec has forms for values that are none of JSON's, such as bytes.
        value: object = json.loads(dump(output_to_plain(outcome.output.value)))
        return Completed(OutputValue(value))
    return outcome


# ---------------------------------------------------------------- bytes to events


_BRACE = ord("{")
_MAX_UNPARSED = 4096
"""Bytes of a payload that is parsed later: what is longer may hold a number too long to be read."""


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
    setups: dict[str, tuple[Json, Json]] = field(default_factory=dict[str, tuple[Json, Json]])
    """By digest: members of the evidence, also those that are left out, and of what was seen."""

    n_theirs: dict[UUID, int] = field(default_factory=dict[UUID, int])
    """By entry id of a merge: how many entries the record of its second parent had."""

    theirs: dict[UUID, tuple[UUID, ...]] = field(default_factory=dict[UUID, tuple[UUID, ...]])
    """By entry id of a merge: which entries that were, where they are named."""

    _blobs: BlobMaker = field(init=False)

    def __post_init__(self) -> None:
        make = self.make_blob
        if make is bare_blob:
            self._blobs = _bare_blobs()
        else:
            self._blobs = make if isinstance(make, BlobMaker) else BlobMaker(make)

    def take(self, line: bytes) -> Event:
        """Return the event on a line of version 3 that is no header.

        Raises:
            PersistenceError: It is of no known kind, or malformed.
        """
        try:
            line_value: Any = self._blobs.decoder.decode(line)
            if isinstance(line_value, _RawRowLine):
                return self._raw_row(line_value)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            # Perhaps something that only the json module reads; else it says what is wrong.
            return self.take_record(decode_record(line))
        return (
            cast("Event", line_value)
            if type(line_value) in _AS_THEY_ARE
            else self._event(line_value)
        )

    def take_record(self, record: Json) -> Event:
        """Return the event that a record of version 3 says; see `take`."""
        kind: object = record.get("event")
        form = _FORMS.get(kind) if isinstance(kind, str) else None
        if form is None:
            if record.get("record_type") == "header":
                raise PersistenceError("duplicate header")
            raise PersistenceError(f"unknown event {kind!r}; expected one of {', '.join(_FORMS)}")
        try:
            line_value = msgspec.convert(record, form, dec_hook=self._blobs.from_json)
        except (msgspec.ValidationError, RecursionError, OverflowError) as exc:
            raise PersistenceError(f"malformed {kind}: {problem_of(exc, form, record)}") from exc
        return self._event(line_value)

    def _event(self, line: Any) -> Event:
        """Return the event that a line says, in the place of a form of its own."""
        try:
            match line:
                case _RowLine():
                    return Row(line.index, self._row(line))
                case _ModelCallLine():
                    return self._call(line)
                case _OperationLine():
                    return self._operation(line)
                case _AgentRowsLine(digest=digest, rows=rows):
                    self.heads[digest] = head = tuple(_chunk(row, row.id) for row in rows)
                    return AgentRows(digest, head)
                case ToolSchemas(digest, tools):
                    self.tools[digest] = tools
                case CallSetup(digest, evidence, seen):
                    self.setups[digest] = {**_ABSENT, **evidence}, seen
                case _ResultLine(row=row, call=call, run=run, shown=shown):
                    chunk = None if shown is None else _chunk(shown, shown.id)
                    return PendingResult(row=row, call=call, run=run, shown=chunk)
                case _PlacementLine(sandbox_spec=spec, sandbox_workspace=workspace):
                    return PlacementChange(
                        sandbox_backend=line.sandbox_backend,
                        sandbox_spec=spec_from_jsonable(spec),
                        sandbox_handle_id=line.sandbox_handle_id,
                        workspace=workspace,
                    )
                case _:
                    pass
            return cast("Event", line)
        except msgspec.ValidationError as exc:
            problem = problem_of(exc, CallEvidence, None)
        except KeyError as exc:
            problem = f"it names {exc}, which is in no line before"
        except (ValueError, TypeError, ArithmeticError, RecursionError) as exc:
            problem = f"{type(exc).__name__}: {exc}"
        raise PersistenceError(f"malformed {line.__struct_config__.tag}: {problem}")

    def _raw_row(self, line: _RawRowLine) -> Row:
        """Return the row of a line, whose payload is parsed later where nothing can be wrong then.

        Raises:
            MsgspecError, ValueError: It is malformed.
        """
        kind, index, payload = line.kind, line.index, bytes(line.payload)
        assert self.session is not None, "a log begins with its header"
        row_id = line.id or RowId(self.session, index)
        if (
            not kind
            or len(payload) > _MAX_UNPARSED
            or payload[0] != _BRACE
            or b"images" in payload
            or b"\\u" in payload  # may spell any name
        ):
            fields = msgspec.json.decode(payload, type=dict[str, Any])
            return Row(index, _chunk(_StoredRow(kind, fields), row_id))
        if not payload.isascii():
            payload.decode()  # looked over it was without that
        return Row(index, unparsed_row(kind, payload, row_id))

    def _row(self, line: _RowLine) -> ChunkRow:
        row_id = line.id
        if row_id is None:
            assert self.session is not None, "a log begins with its header"
            row_id = RowId(self.session, line.index)
        return _chunk(line, row_id)

    def _call(self, line: _ModelCallLine) -> ModelCall:
        evidence, seen = _ABSENT, Json()
        if line.setup is not None:
            evidence, seen = self.setups[line.setup]
        own = line.evidence
        fields = {**evidence, "status": line.status, **own}
        if own.get("attempts"):
            fields["attempts"] = [_ATTEMPT | each for each in own["attempts"]]
        call_evidence = msgspec.convert(fields, CallEvidence)
        cost = own.get("cost")
        call_evidence.settle_cost(None if cost is None else msgspec.convert(cost, Cost))
        saw: Seen | None = None
        if line.seen is not None:
            common = {**_SEEN_ABSENT, "request_digest": call_evidence.request_digest}
            saw = msgspec.convert({**common, **seen, **line.seen}, Seen)
        return ModelCall(
            operation=line.operation,
            rows=line.rows,
            id=line.id,
            at=line.at,
            purpose=line.purpose,
            status=line.status,
            seen=saw,
            evidence=call_evidence,
            answer=line.answer,
        )

    def _operation(self, line: _OperationLine) -> Operation:
        if line.n_theirs is not None:
            self.n_theirs[line.id] = line.n_theirs
        if line.theirs:
            self.theirs[line.id] = line.theirs
        fields = {name: getattr(line, name) for name in OperationFields.__struct_fields__}
        return Operation(
            **fields,
            head=() if line.head is None else self.heads[line.head],
            tools=() if line.tools is None else self.tools[line.tools],
        )


def _chunk(stored: _StoredRow | _RowLine, row_id: RowId | None) -> ChunkRow:
    if not stored.kind:
        raise ValueError("bad chunk kind ''; expected a name")
    return parsed_row(stored.kind, stored.payload, row_id)
