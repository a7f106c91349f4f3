"""Answers, entries and outcomes as JSON, whatever the format of a log.

Members are named as the fields are, and names stay as they are.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from datetime import datetime
from decimal import Decimal
from functools import cache
from typing import Any, cast
from uuid import UUID

from msgspec import NODEFAULT, Struct, structs

from rath._core.blobs import Blob
from rath.backend.effects import FileEffect
from rath.session.chunk import ChunkRow, ChunkTable, RowId
from rath.session.content import rows_digest
from rath.session.log.format import tools_digest
from rath.session.log.index.database import OUTCOME_STATES
from rath.session.log.json_lines import output_to_plain
from rath.session.outcome import Completed, Outcome, OutputMissing, OutputValue
from rath.session.questions.comparison import Blame, Comparison
from rath.session.questions.origin import AnsweredCall, WhatChanged, WhereFrom, WhoAnswered
from rath.session.questions.requests import SeenCall, WhatWasSeen, WhereToolsRan
from rath.session.record import Decision, Entry, ModelCall, Operation, ToolRun, Verdict

Json = dict[str, Any]
Answer = WhatWasSeen | WhoAnswered | WhereToolsRan | WhatChanged | WhereFrom | Blame | Comparison


def encode_answer(answer: Answer) -> Json:
    """Return an answer as JSON.

    Ids are texts, times ISO 8601 in UTC, money a text with US dollars, contents their sha256 and
    size. A request stands as it was sent, where a single turn was asked for.
    """
    encoded = _members(answer)
    if isinstance(answer, WhatWasSeen):
        encoded["calls"] = [_call_json(each) for each in answer.calls]
    elif isinstance(answer, WhoAnswered):
        encoded["calls"] = [_answer_json(each) for each in answer.calls]
        encoded["models"] = dict(answer.models)
    elif isinstance(answer, WhereToolsRan):
        encoded["sandboxes"] = [
            {**_members(sandbox), "n_runs": n_runs} for sandbox, n_runs in answer.sandboxes
        ]
    elif isinstance(answer, Comparison):
        encoded["rows"] = [{**_members(one), "is_same": one.is_same} for one in answer.rows]
        encoded["files"] = [{**_members(one), "is_same": one.is_same} for one in answer.files]
    return encoded


def _call_json(each: SeenCall) -> Json:
    seen = each.call.seen
    # Of all turns together the rows of the requests would be very many.
    rows = None if each.rows is None or each.body is None else each.rows
    return {
        **_about_call(each.call, each.turn),
        **_members(each, "session", "head"),
        "n_rows": None if seen is None else seen.n_rows,
        "row_ids": None if rows is None else [_plain(row.id) for row in rows],
        **_members(each, "context_at", "recalled", "question"),
        "tools": [tool.name for tool in each.tools],
        **_members(each.call.evidence, "parameters"),
        "renderer": None if seen is None else seen.renderer,
        "request_digest": None if seen is None else seen.request_digest,
        **_members(each, "proof", "problem"),
        "request": None if each.body is None else json.loads(each.body),
    }


def _answer_json(each: AnsweredCall) -> Json:
    evidence = each.call.evidence
    return {
        **_about_call(each.call, each.turn),
        "model": each.model,
        "n_retries": each.n_retries,
        **_members(evidence),
        "origins": dict(evidence.origins),
        **_members(evidence, "cost"),
    }


def _about_call(call: ModelCall, turn: int | None) -> Json:
    return {"turn": turn, **_members(call, "id", "at", "operation", "purpose", "rows", "status")}


def _entry(entry: Entry) -> Json:
    if isinstance(entry, Operation):
        # What its requests held is told with what a model saw.
        return {
            "kind": "operation",
            **_members(entry, "id", "operation", "at"),
            "does": entry.kind,
            **_members(entry, "session"),
            **_members(entry.place, "path", "ordinal", "run"),
            **({} if entry.place.state is None else _members(entry.place, "state")),
            **_members(entry, "workspace", "undone"),
        }
    if isinstance(entry, ModelCall):
        return {"kind": "model_call", **_answer_json(AnsweredCall(None, entry))}
    kind = "tool_run" if isinstance(entry, ToolRun) else type(entry).__name__.lower()
    fields = {"kind": kind, **_members(entry)}
    for name in _SELDOM:
        if fields.get(name, ...) in (None, []):
            del fields[name]
    return fields


_SELDOM = ("start", "usd", "sessions")
"""Members that most entries leave empty: the first call of a run tells its start, models that judge
have a price and sessions."""


def _plain(value: object) -> Any:
    match value:
        case None | bool() | int() | float() | str():
            return value
        case Mapping():
            items = cast("Mapping[object, object]", value).items()
            return {str(name): _plain(item) for name, item in items}
        case ChunkTable():
            return len(value)
        case Decimal():
            return f"{value:f}"
        case datetime():
            return value.isoformat()
        case _ if _is_record(value) or isinstance(value, Blob):
            return _object_json(value)
        case Iterable():
            return [_plain(item) for item in cast("Iterable[object]", value)]
        case _:
            return str(value)


def _object_json(value: object) -> Json:
    """Return one of our values, with its kind where it may be one of several."""
    match value:
        case Blob():
            return {"sha256": value.digest, "size": value.size}
        case ChunkRow():
            payload = {name: _plain(item) for name, item in value.payload.items()}
            return {"kind": value.kind_name, "payload": payload, "id": _plain(value.id)}
        case OutputValue():
            to_json: object = getattr(value.value, "model_dump", None)
            return {"value": to_json(mode="json") if callable(to_json) else _plain(value.value)}
        case _ if isinstance(value, Entry):
            return _entry(value)
        case _ if isinstance(value, Outcome):
            return {"state": OUTCOME_STATES[type(value).__name__], **_members(value)}
        case _:
            return _members(value)


def _members(value: object, *names: str) -> Json:
    """Return fields of a struct or a dataclass, all of them where none are named."""
    kind: Any = type(value)
    wanted = names or [name for name, _ in _fields(kind)]
    return {name: _plain(getattr(value, name)) for name in wanted}


def _is_record(value: object) -> bool:
    """Tell whether a value has fields."""
    return isinstance(value, Struct) or (is_dataclass(value) and not isinstance(value, type))


@cache
def _fields(kind: Any) -> tuple[tuple[str, object], ...]:
    """Return the fields of a struct or a dataclass, each with its default, `...` for none."""
    listed = structs.fields(kind) if issubclass(kind, Struct) else fields(kind)
    absent = (NODEFAULT, MISSING)
    return tuple((each.name, ... if each.default in absent else each.default) for each in listed)


_APART = frozenset({"head", "tools", "theirs"})
"""Members of an operation that are named by a digest, or by their number."""

_ALWAYS: Mapping[type, frozenset[str]] = {
    ToolRun: frozenset(
        (
            *("schema_digest", "arguments", "sandbox", "error_kind", "exit_code", "signal"),
            *("full", "file_effects"),
        )
    ),
    Verdict: frozenset({"score", "workspace_digest"}),
    Decision: frozenset({"call_id", "arguments"}),
    FileEffect: frozenset({"before", "after"}),
}
"""Members that stand there also where they are None or empty."""


def entry_to_jsonable(entry: Entry) -> Json:
    """Return an entry of the record as JSON."""
    fields: Json = {"entry": type(entry).__struct_config__.tag, **_entry_members(entry)}
    if isinstance(entry, Operation):
        if entry.head:
            fields["head"] = rows_digest(entry.head)
        if entry.tools:
            fields["tools"] = tools_digest(entry.tools)
        if entry.theirs is not None:
            fields["n_theirs"] = len(entry.theirs)
    elif isinstance(entry, ModelCall):
        cost = entry.evidence.cost
        if cost is not None:
            fields["evidence"]["cost"] = _entry_members(cost)
    return fields


def outcome_to_jsonable(outcome: Outcome) -> Json:
    """Return how a run ended as JSON."""
    fields: Json = {"is": type(outcome).__name__}
    if not isinstance(outcome, Completed):
        return {**fields, **_entry_members(outcome)}
    if isinstance(outcome.output, OutputMissing):
        fields["output_problem"] = outcome.output.problem
    elif outcome.output is not None:
        fields["output"] = output_to_plain(outcome.output.value)
    return fields


def _entry_members(value: object) -> Json:
    """Return the fields of a value; one is left out where it has its default, None or ()."""
    kind: Any = type(value)
    always = _ALWAYS.get(kind, frozenset())
    fields: Json = {}
    for name, default in _fields(kind):
        member = getattr(value, name)
        is_left_out = (member is None or member == ()) and member == default
        is_apart = kind is Operation and name in _APART
        if not is_apart and (name in always or not is_left_out):
            fields[name] = _jsonable(member)
    return fields


def _jsonable(value: object) -> object:
    match value:
        case UUID() | Decimal():
            return str(value)
        case datetime():
            return value.isoformat()
        case RowId(session, index):
            return f"{session}:{index}"
        case Blob(digest, size):
            fields: Json = {"sha256": digest, "size": size}
            return {**fields, "kept": True} if value.is_kept else fields
        case tuple():
            return [_jsonable(each) for each in cast("tuple[object, ...]", value)]
        case _ if _is_record(value):
            return _entry_members(value)
        case _:
            return value
