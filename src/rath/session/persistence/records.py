"""What the JSON of a session file means that was there in version 1, and a session's provider."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from typing import Any, cast
from uuid import UUID

from rath.backend.abc import BackendSandboxSpec
from rath.backend.persistence.spec_json import spec_from_jsonable
from rath.errors import PersistenceError, RathError
from rath.llm.chat_response import RathLLMTokenUsage
from rath.llm.endpoint import public_url
from rath.llm.provider import ConfigEntry, Provider
from rath.session.chunk import ChunkRow
from rath.session.graph.kind import LineageKind

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
            sandbox_backend=_text(record.get("sandbox_backend")),
            sandbox_spec=spec_from_jsonable(record.get("sandbox_spec")),
            sandbox_handle_id=_text(record.get("sandbox_handle_id")),
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


def usage_from_jsonable(raw: Record | None) -> RathLLMTokenUsage | None:
    """Return token counts, None where there are none; a missing count is 0."""
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


def _text(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    raise TypeError(f"expected text, found {value!r:.60}")


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


_NOT_PLAIN = frozenset(
    {"api_key", "base_url", "on_budget_exceeded", "extra_create_args", "fallbacks", "config_entry"}
)
"""Fields of a provider that hold secrets or code, or are no plain values."""

_PLAIN = frozenset(each.name for each in fields(Provider)) - _NOT_PLAIN

_FROM_FILE = "session file"
"""Where the endpoint of a loaded provider came from, as its calls tell it."""


def provider_from_jsonable(said: Mapping[str, Any]) -> Provider | None:
    """Return the provider that a header names, without a key; None where it is none.

    An endpoint that a file names never gets a key of the environment or of a config, unless the
    entry of a config that the provider was read from still names the same one.
    """
    try:
        found = {name: value for name, value in said.items() if name in _PLAIN}
        base_url: object = said.get("base_url")
        if not isinstance(base_url, str):
            return Provider(**found)
        known = _known_provider(said.get("config"), base_url)
        return _told(Provider(**found), base_url) if known is None else replace(known, **found)
    except (TypeError, ValueError, AttributeError):
        return None


def _told(bare: Provider, base_url: str) -> Provider:
    """Return a provider with an endpoint that a session file names."""
    entry = ConfigEntry(
        name="",
        origin=_FROM_FILE,
        key_origin=_FROM_FILE,
        from_project=True,
        model=bare.model,
        base_url=base_url,
        api_key=None,
    )
    return replace(bare, base_url=base_url, config_entry=entry)


def _known_provider(name: object, base_url: str) -> Provider | None:
    """Return the provider of a config entry that has this endpoint, None where there is none."""
    if not isinstance(name, str):
        return None
    try:
        known = Provider.from_config(name)
    except (KeyError, OSError, RathError):
        return None
    return known if public_url(known.base_url) == base_url else None
