"""The index files of remote sandboxes.

{"schema_version": 1, "id": ..., "backend": ..., "remote_id": ..., "spec": {...} or null,
 "created_at": ..., "last_used_at": ...}
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast
from uuid import UUID

from rath._core.files import atomic_write_json
from rath.backend.abc import BackendSandboxSpec
from rath.backend.persistence.spec_json import (
    SCHEMA_VERSION,
    spec_from_jsonable,
    spec_to_jsonable,
)

_PRIVATE = 0o600


class BadIndex(ValueError):
    """An index file that cannot be believed."""


@dataclass(frozen=True, kw_only=True)
class RemoteSandboxRecord:
    """What an index file says about a remote sandbox."""

    schema_version: int
    id: UUID
    backend: str
    """Name of the backend that can attach to it."""

    remote_id: str
    """What the backend calls it."""

    spec: BackendSandboxSpec | None
    """What it was opened with, but for the values of its variables."""

    created_at: datetime
    last_used_at: datetime
    path: Path
    """The index file."""


def write_index(record: RemoteSandboxRecord) -> None:
    """Write the index file of a record, readable by its owner alone."""
    atomic_write_json(record.path, _encode(record), mode=_PRIVATE)


def read_index(path: Path) -> RemoteSandboxRecord:
    """Return what an index file says.

    Raises:
        FileNotFoundError: There is none.
        BadIndex: It cannot be believed.
    """
    return _decode(_read(path), path)


def write_last_use(path: Path, time: datetime) -> None:
    """Write another time of last use into an index file; all else in it stays.

    Raises:
        FileNotFoundError: There is none.
        BadIndex: It cannot be believed.
    """
    raw = _read(path)
    _decode(raw, path)
    atomic_write_json(path, {**raw, "last_used_at": time.isoformat()}, mode=_PRIVATE)


def _encode(record: RemoteSandboxRecord) -> dict[str, Any]:
    return {
        "schema_version": record.schema_version,
        "id": str(record.id),
        "backend": record.backend,
        "remote_id": record.remote_id,
        "spec": spec_to_jsonable(record.spec),
        "created_at": record.created_at.isoformat(),
        "last_used_at": record.last_used_at.isoformat(),
    }


def _read(path: Path) -> dict[str, Any]:
    try:
        raw: object = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise
    except (OSError, ValueError, RecursionError) as exc:
        raise BadIndex(f"{path} cannot be read: {exc}") from exc
    if not isinstance(raw, dict):
        raise BadIndex(f"{path} holds no JSON object")
    return cast("dict[str, Any]", raw)


def _decode(raw: dict[str, Any], path: Path) -> RemoteSandboxRecord:
    try:
        version = int(raw["schema_version"])
        if version > SCHEMA_VERSION:
            raise ValueError(f"it was written by a newer rath, as version {version}")
        record = RemoteSandboxRecord(
            schema_version=version,
            id=UUID(raw["id"]),
            backend=_name(raw["backend"]),
            remote_id=_name(raw["remote_id"]),
            spec=spec_from_jsonable(raw.get("spec")),
            created_at=_utc(raw["created_at"]),
            last_used_at=_utc(raw["last_used_at"]),
            path=path,
        )
        if str(record.id) != path.stem:
            raise ValueError(f"it is the index of {record.id}")
    except (KeyError, ValueError, TypeError, AttributeError, OverflowError) as exc:
        raise BadIndex(f"{path} cannot be used: {type(exc).__name__}: {exc}") from exc
    return record


def _name(raw: object) -> str:
    if not isinstance(raw, str) or not raw:
        raise ValueError(f"expected a name, found {raw!r}")
    return raw


def _utc(text: str) -> datetime:
    time = datetime.fromisoformat(text)
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
