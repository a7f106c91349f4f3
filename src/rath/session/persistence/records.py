"""The lines of a session file, and what they mean.

{"record_type": "header", "schema_version": 1, "id": ..., "created_at": ..., ...}
{"record_type": "chunk", "index": 0, "kind": "user", "payload": {...}}
{"record_type": "trailer", "closed_at": ..., "final_chunk_count": 1, "cumulative_usage": ...}
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast
from uuid import UUID

from rath.backend.abc import BackendSandboxSpec
from rath.backend.persistence.spec_json import spec_from_jsonable, spec_to_jsonable
from rath.errors import PersistenceError
from rath.llm.chat_response import RathLLMTokenUsage
from rath.session.chunk import ChunkRow
from rath.session.graph.export import lineage_extras_to_jsonable
from rath.session.graph.kind import LineageKind
from rath.session.persistence.migrations import CURRENT_SCHEMA_VERSION
from rath.session.session import Session

Record = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class PersistedSessionHeader:
    """What the first line of a session file says."""

    schema_version: int
    id: UUID
    created_at: datetime
    parent_session_ids: tuple[UUID, ...]
    lineage_operator: str
    lineage_kind: LineageKind
    lineage_extras: tuple[tuple[str, Any], ...]
    sandbox_backend: str | None
    sandbox_spec: BackendSandboxSpec | None
    sandbox_handle_id: str | None


def header_of(session: Session, *, sandbox_handle_id: str | None = None) -> PersistedSessionHeader:
    """Return the header of a session as it is now; never waits for its run."""
    return PersistedSessionHeader(
        schema_version=CURRENT_SCHEMA_VERSION,
        id=session.id,
        created_at=datetime.now(UTC),
        parent_session_ids=session.parent_session_ids,
        lineage_operator=session.lineage_operator,
        lineage_kind=session.lineage_kind,
        lineage_extras=session.lineage_extras,
        sandbox_backend=session.sandbox_backend,
        sandbox_spec=session.sandbox_spec,
        sandbox_handle_id=sandbox_handle_id,
    )


def encode_line(record: Mapping[str, Any]) -> bytes:
    """Return a record as one line of UTF-8 JSON with its line feed.

    Raises:
        TypeError: The record holds something that JSON has no form for.
    """
    try:
        line = json.dumps(record, ensure_ascii=False, default=_plain).encode()
    except UnicodeEncodeError:
        # A lone surrogate has no UTF-8 form, but JSON has an escape that brings it back.
        line = json.dumps(record, default=_plain).encode()
    return line + b"\n"


def decode_line(line: bytes) -> Record:
    """Return the record on a line.

    Raises:
        PersistenceError: It is not a JSON object in UTF-8.
    """
    try:
        record: object = json.loads(line.decode())
    except (ValueError, RecursionError) as exc:
        raise PersistenceError(f"invalid JSON: {exc}") from exc
    if not isinstance(record, dict):
        raise PersistenceError(f"expected a JSON object, found {type(record).__name__}")
    return cast("Record", record)


def encode_header(header: PersistedSessionHeader) -> Record:
    """Return the header as a record."""
    return {
        "record_type": "header",
        "schema_version": header.schema_version,
        "id": str(header.id),
        "created_at": header.created_at.isoformat(),
        "parent_session_ids": [str(parent_id) for parent_id in header.parent_session_ids],
        "lineage_operator": header.lineage_operator,
        "lineage_kind": header.lineage_kind.value,
        "lineage_extras": lineage_extras_to_jsonable(header.lineage_extras),
        "sandbox_backend": header.sandbox_backend,
        "sandbox_spec": spec_to_jsonable(header.sandbox_spec),
        "sandbox_handle_id": header.sandbox_handle_id,
    }


def encode_chunk(index: int, row: ChunkRow) -> Record:
    """Return a row as a record."""
    return {
        "record_type": "chunk",
        "index": index,
        "kind": row.kind_name,
        "payload": dict(row.payload),
    }


def encode_trailer(*, n_rows: int, usage: RathLLMTokenUsage | None) -> Record:
    """Return the trailer, with the time of now, as a record."""
    return {
        "record_type": "trailer",
        "closed_at": datetime.now(UTC).isoformat(),
        "final_chunk_count": n_rows,
        "cumulative_usage": usage_to_jsonable(usage),
    }


def decode_header(record: Record) -> PersistedSessionHeader:
    """Return the header that a record of the current version holds.

    An unknown lineage kind becomes UNKNOWN, and parents that are no UUIDs are left out: neither
    keeps the rows from being read.

    Raises:
        PersistenceError: Id, time or sandbox spec are missing or malformed.
    """
    try:
        return PersistedSessionHeader(
            schema_version=record["schema_version"],
            id=UUID(record["id"]),
            created_at=_utc(record["created_at"]),
            parent_session_ids=tuple(_uuids(record.get("parent_session_ids") or ())),
            lineage_operator=str(record.get("lineage_operator") or "implicit"),
            lineage_kind=_kind(record.get("lineage_kind")),
            lineage_extras=_pairs(record.get("lineage_extras")),
            sandbox_backend=record.get("sandbox_backend"),
            sandbox_spec=spec_from_jsonable(record.get("sandbox_spec")),
            sandbox_handle_id=record.get("sandbox_handle_id"),
        )
    except (KeyError, ValueError, TypeError, AttributeError, OverflowError) as exc:
        raise PersistenceError(f"malformed header: {type(exc).__name__}: {exc}") from exc


def decode_chunk(record: Record) -> ChunkRow:
    """Return the row that a record holds; an unknown kind is kept as it is.

    Raises:
        PersistenceError: Kind or payload have the wrong type.
    """
    kind, payload = record.get("kind"), record.get("payload")
    if not isinstance(kind, str) or not kind:
        raise PersistenceError(f"bad chunk kind {kind!r}; expected a name")
    if not isinstance(payload, dict):
        raise PersistenceError(
            f"bad chunk payload of type {type(payload).__name__}; expected an object"
        )
    return ChunkRow(kind, cast("Record", payload))


def usage_to_jsonable(usage: RathLLMTokenUsage | None) -> dict[str, int] | None:
    """Return the three token counts as JSON."""
    if usage is None:
        return None
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
    }


def usage_from_jsonable(raw: Record | None) -> RathLLMTokenUsage | None:
    """Return the token counts that `usage_to_jsonable` wrote; a missing count is 0."""
    if not isinstance(raw, dict):
        return None
    return RathLLMTokenUsage(
        prompt_tokens=_count(raw, "prompt_tokens"),
        completion_tokens=_count(raw, "completion_tokens"),
        total_tokens=_count(raw, "total_tokens"),
    )


def _count(raw: Record, name: str) -> int:
    count = raw.get(name)
    return count if isinstance(count, int) else 0


def _utc(text: str) -> datetime:
    time = datetime.fromisoformat(text)
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)


def _uuids(raw: Iterable[object]) -> Iterable[UUID]:
    for item in raw:
        try:
            yield UUID(str(item))
        except ValueError:
            continue


def _kind(value: object) -> LineageKind:
    try:
        return LineageKind(value)
    except ValueError:
        return LineageKind.UNKNOWN


def _pairs(raw: object) -> tuple[tuple[str, Any], ...]:
    items = cast("list[object]", raw) if isinstance(raw, list) else []
    pairs = [cast("list[object]", item) for item in items if isinstance(item, list)]
    return tuple((str(pair[0]), pair[1]) for pair in pairs if len(pair) == 2)


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(cast("Mapping[str, Any]", value))
    raise TypeError(f"{type(value).__name__} has no JSON form; use text, numbers, lists or objects")
