"""The answers as JSON: members are named as the fields are, and names stay as they are."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, cast
from uuid import UUID

from msgspec import Struct

from rath._core.blobs import Blob
from rath.session.chunk import ChunkRow, ChunkTable
from rath.session.outcome import Outcome, OutputValue
from rath.session.questions.comparison import Blame, Comparison
from rath.session.questions.origin import AnsweredCall, WhatChanged, WhereFrom, WhoAnswered
from rath.session.questions.requests import SeenCall, WhatWasSeen, WhereToolsRan
from rath.session.record import Entry, ModelCall, Operation, ToolRun

Json = dict[str, Any]
Answer = WhatWasSeen | WhoAnswered | WhereToolsRan | WhatChanged | WhereFrom | Blame | Comparison


_TEXTS: Mapping[type, Callable[[Any], str]] = {
    Decimal: lambda value: f"{value:f}",
    UUID: str,
    datetime: datetime.isoformat,
}


def encode_answer(answer: Answer) -> Json:
    """Return an answer as JSON.

    Ids are texts, times ISO 8601 in UTC, money a text with US dollars, contents their sha256 and
    size. A request stands as it was sent, where a single turn was asked for.
    """
    encoded = _members(answer)
    if isinstance(answer, WhatWasSeen):
        encoded["calls"] = [_seen(each) for each in answer.calls]
    elif isinstance(answer, WhoAnswered):
        encoded["calls"] = [_answered(each) for each in answer.calls]
        encoded["models"] = dict(answer.models)
    elif isinstance(answer, WhereToolsRan):
        encoded["sandboxes"] = [
            {**_members(sandbox), "n_runs": n_runs} for sandbox, n_runs in answer.sandboxes
        ]
    elif isinstance(answer, Comparison):
        encoded["rows"] = [{**_members(one), "is_same": one.is_same} for one in answer.rows]
        encoded["files"] = [{**_members(one), "is_same": one.is_same} for one in answer.files]
    return encoded


def _seen(each: SeenCall) -> Json:
    seen = each.call.seen
    return {
        **_about_call(each.call, each.turn),
        "session": _plain(each.session),
        "head": _plain(each.head),
        "n_rows": None if seen is None else seen.n_rows,
        "row_ids": _row_ids(each),
        "context_at": each.context_at,
        "recalled": _plain(each.recalled),
        "question": each.question,
        "tools": [tool.name for tool in each.tools],
        "parameters": _plain(each.call.evidence.parameters),
        "renderer": None if seen is None else seen.renderer,
        "request_digest": None if seen is None else seen.request_digest,
        "proof": each.proof,
        "problem": each.problem,
        "request": None if each.body is None else json.loads(each.body),
    }


def _row_ids(each: SeenCall) -> list[Any] | None:
    """Return the rows of a request by name; of all turns together they would be very many."""
    if each.rows is None or each.body is None:
        return None
    return [_plain(row.id) for row in each.rows]


def _answered(each: AnsweredCall) -> Json:
    evidence = each.call.evidence
    return {
        **_about_call(each.call, each.turn),
        "model": each.model,
        "n_retries": each.n_retries,
        **_members(evidence),
        "origins": dict(evidence.origins),
        "cost": _plain(evidence.cost),
    }


def _about_call(call: ModelCall, turn: int | None) -> Json:
    about = {"turn": turn, "id": call.id, "at": call.at, "operation": call.operation,
             "purpose": call.purpose, "rows": call.rows}  # fmt: skip
    return {**{name: _plain(value) for name, value in about.items()}, "status": call.status}


def _operation(entry: Operation) -> Json:
    """Return an operation without what its requests held: that is told with what a model saw."""
    place = entry.place
    told = {"kind": "operation", "id": entry.id, "operation": entry.operation, "at": entry.at,
            "does": entry.kind, "session": entry.session, "path": place.path,
            "ordinal": place.ordinal, "run": place.run, "workspace": entry.workspace,
            "undone": entry.undone}  # fmt: skip
    return {name: _plain(value) for name, value in told.items()}


def _entry(entry: Entry) -> Json:
    if isinstance(entry, Operation):
        return _operation(entry)
    if isinstance(entry, ModelCall):
        return {"kind": "model_call", **_answered(AnsweredCall(None, entry))}
    kind = "tool_run" if isinstance(entry, ToolRun) else type(entry).__name__.lower()
    return {"kind": kind, **_members(entry)}


def _plain(value: object) -> Any:
    match value:
        case None | bool() | int() | float() | str():
            return value
        case Mapping():
            items = cast("Mapping[object, object]", value).items()
            return {str(name): _plain(item) for name, item in items}
        case ChunkTable():
            return len(value)
        case _ if type(value) in _TEXTS:
            return _TEXTS[type(value)](value)
        case Struct() | Blob():
            return _told(value)
        case _ if is_dataclass(value) and not isinstance(value, type):
            return _told(value)
        case Iterable():
            return [_plain(item) for item in cast("Iterable[object]", value)]
        case _:
            return str(value)


def _told(value: object) -> Json:
    """Return one of our values, with its kind where it may be one of several."""
    match value:
        case Blob():
            return {"sha256": value.digest, "size": value.size}
        case ChunkRow():
            said = {name: _plain(item) for name, item in value.payload.items()}
            return {"kind": value.kind_name, "payload": said, "id": _plain(value.id)}
        case OutputValue():
            to_json: object = getattr(value.value, "model_dump", None)
            return {"value": to_json(mode="json") if callable(to_json) else _plain(value.value)}
        case _ if isinstance(value, Entry):
            return _entry(value)
        case _ if isinstance(value, Outcome):
            state = re.sub(r"(?<=.)(?=[A-Z])", "_", type(value).__name__).lower()
            return {"state": state, **_members(value)}
        case _:
            return _members(value)


def _members(value: object) -> Json:
    """Return the fields of a struct or a dataclass."""
    if isinstance(value, Struct):
        names = value.__struct_fields__
    else:
        assert is_dataclass(value)
        names = tuple(each.name for each in fields(value))
    return {name: _plain(getattr(value, name)) for name in names}
