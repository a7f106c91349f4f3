"""Logs of versions 1 and 2: their lines are brought to version 3 while they are read.

version 1   header, rows (`chunk`) and trailer; no checksums, nothing is added to such a file
version 2   all events, under other names and with every member said in each line; what is
            added to such a log is of version 3, and its lines begin with another member
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, cast

from rath.errors import PersistenceError

__all__ = [
    "CURRENT_SCHEMA_VERSION",
    "ChunkMigration",
    "HeaderMigration",
    "register_chunk_migration",
    "register_header_migration",
    "upgrade_chunk",
    "upgrade_header",
    "upgrade_line",
]

CURRENT_SCHEMA_VERSION = 3
"""Version 1: header, rows and trailer. Version 2: also what happened, and checksums. Version 3: the
same in half the bytes; what repeats is said once."""

Json = dict[str, Any]
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
        PersistenceError: It is newer than the current version, or a step on the way is missing.
    """
    version = record["schema_version"]
    if version > CURRENT_SCHEMA_VERSION:
        raise PersistenceError(
            f"schema version {version} is newer than CURRENT_SCHEMA_VERSION "
            f"({CURRENT_SCHEMA_VERSION}); upgrade openrath to read this file"
        )
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
