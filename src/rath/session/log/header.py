"""The header of a log: identity, parents, and the ranges of their rows it begins with."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Generic, Self, TypeVar, cast
from uuid import UUID

from rath._core.dataclasses import dataclass
from rath._core.vector import Vector
from rath.backend.abc import BackendSandboxSpec
from rath.backend.persistence.spec_json import spec_to_jsonable
from rath.backend.workspace import StoredWorkspace, WorkspaceRef
from rath.errors import RathError
from rath.llm.credentials import public_url
from rath.llm.provider import ConfigEntry, Provider, sdk_of
from rath.session.bindings import NOWHERE, Placement, PlacementRef
from rath.session.body import Body
from rath.session.chunk import ChunkRow
from rath.session.content import rows_digest
from rath.session.events import AncestorRange, Event, GivenUsage, Header, PlacementChange, Row
from rath.session.graph.kind import LineageKind
from rath.session.graph.legacy import SessionLineage
from rath.session.graph.recording import Edge, Provenance
from rath.session.log.json_lines import CURRENT_SCHEMA_VERSION
from rath.session.record import Entry

_FIELDS = (
    "provider_kind",
    "model",
    "temperature",
    "top_p",
    "max_completion_tokens",
    "max_tokens",
    "seed",
    "reasoning_effort",
    "verbosity",
    "timeout",
    "output_mode",
)


def provider_without_secrets(provider: Provider) -> dict[str, Any]:
    """Return model, endpoint and plain parameters of a provider; what is not set is left out.

    No key, no login in a URL, and nothing that a user may put anything into.
    """
    fields = {name: getattr(provider, name) for name in _FIELDS}
    base_url = provider.base_url
    if provider.client is not None:
        fields["provider_kind"] = sdk_of(provider.client)
        base_url = str(cast("Any", provider.client).base_url)
    fields["base_url"] = public_url(base_url)
    fields["config"] = None if provider.config_entry is None else provider.config_entry.name
    return {name: value for name, value in fields.items() if value is not None}


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RangeSource(Generic[T]):
    """Rows or entries of a session that is stored."""

    session: UUID
    items: Vector[T]


def row_parts(
    rows: Vector[ChunkRow], parents: Sequence[RangeSource[ChunkRow]]
) -> tuple[AncestorRange, ...]:
    """Return which rows of the parents `rows` begin with; what follows is in none of them.

    Cost: 0.1 us for each row that was part of a digest before.
    """
    return _parts(rows, parents, rows_digest)


def entry_parts(
    entries: Vector[Entry], parents: Sequence[RangeSource[Entry]]
) -> tuple[AncestorRange, ...]:
    """Return which entries of the parents `entries` begin with."""
    return _parts(entries, parents, _entries_digest)


def count_in_ranges(parts: Sequence[AncestorRange]) -> int:
    """Return how many rows or entries parts tell."""
    return sum(part.stop - part.start for part in parts)


def _parts(
    items: Vector[T], parents: Sequence[RangeSource[T]], digest: Callable[[Sequence[T]], str]
) -> tuple[AncestorRange, ...]:
    parts: list[AncestorRange] = []
    done = 0
    for parent in parents:
        shared = 0 if done else items.common_prefix(parent.items)
        runs = [(0, shared)] if shared else _runs(items.since(done), parent)
        for start, stop in runs:
            prefix_digest = digest(parent.items.prefix(stop).since(start))
            parts.append(AncestorRange(parent.session, start, stop, prefix_digest))
            done += stop - start
    return tuple(parts)


def _runs(rest: Sequence[T], parent: RangeSource[T]) -> Iterator[tuple[int, int]]:
    """Yield the ranges of a parent with which `rest` begins, in the order of `rest`.

    A merge takes over the items themselves, but for those that both sides have.
    """
    if not rest or not len(parent.items):
        return
    places = {id(item): at for at, item in enumerate(parent.items)}
    start = stop = -1
    for item in rest:
        at = places.get(id(item))
        if at is not None and at == stop:
            stop += 1
            continue
        if start >= 0:
            yield start, stop
        if at is None:
            return
        start, stop = at, at + 1
    yield start, stop


def _entries_digest(entries: Sequence[Entry]) -> str:
    return sha256(b"".join(entry.id.bytes for entry in entries)).hexdigest()


_RUNS = (LineageKind.OP_SESSION_LOOP, LineageKind.OP_SESSION_COMPRESS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who a session is, apart from its content."""

    session: UUID
    provenance: Provenance
    lineage: SessionLineage | None = None
    place: PlacementRef | None = None
    """Where it works; None where that is not known."""

    provider: Provider | None = None

    @classmethod
    def of(
        cls,
        session: UUID,
        provenance: Provenance,
        placement: Placement,
        *,
        provider: Provider | None = None,
        lineage: SessionLineage | None = None,
        sandbox_handle_id: str | None = None,
    ) -> Self:
        """Return who a session is that is placed like this now."""
        return cls(
            session=session,
            provenance=provenance,
            lineage=lineage,
            place=replace(
                placement.whereabouts,
                handle_id=sandbox_handle_id or placement.whereabouts.handle_id,
            ),
            provider=provider,
        )

    @classmethod
    def of_parent(cls, edge: Edge) -> Self:
        """Return who a parent is, as far as an edge tells."""
        provenance = edge.provenance or Provenance()
        lineage: SessionLineage | None = None
        if provenance.kind in _RUNS and len(provenance.parents) == 2:
            user, agent = provenance.parent_ids
            lineage = SessionLineage(user, agent, provenance.operator)
        return cls(session=edge.id, provenance=provenance, lineage=lineage, place=edge.place)


@dataclass(frozen=True, slots=True)
class LogStart:
    """The first lines of a log."""

    lines: Sequence[Event]
    n_entries: int
    """Entries that the header tells as parts of others."""

    place: PlacementRef | None = None
    """Where the session works; noted where the log tells another place. None leaves it so."""


def beginning(
    who: Identity,
    start: Body,
    *,
    parents: Sequence[Edge] = (),
) -> LogStart:
    """Return the lines with which the log of a session begins.

    Args:
        who: The session.
        start: What it holds when its run begins.
        parents: Those that are stored, of which ranges can be told.
    """
    own_rows = start.table.vector
    row_ranges = row_parts(
        own_rows, [RangeSource(edge.id, _body(edge).table.vector) for edge in parents]
    )
    entry_ranges = entry_parts(
        start.record, [RangeSource(edge.id, record_of(edge)) for edge in parents]
    )
    header = header_line(who, rows=row_ranges, entries=entry_ranges, given=start.given)
    first = count_in_ranges(row_ranges)
    inline = [Row(at, row) for at, row in enumerate(own_rows.since(first), start=first)]
    entries = start.record.since(count_in_ranges(entry_ranges))
    return LogStart([header, *inline, *entries], count_in_ranges(entry_ranges), who.place)


def header_line(
    who: Identity,
    *,
    rows: tuple[AncestorRange, ...] = (),
    entries: tuple[AncestorRange, ...] = (),
    given: tuple[GivenUsage, ...] = (),
) -> Header:
    """Return the first line of a log.

    Args:
        who: The session.
        rows: The ranges of others' rows with which it begins.
        entries: The ranges of others' entries.
        given: Usage that it comes with.
    """
    lineage, place = who.lineage, who.place or NOWHERE
    return Header(
        session=who.session,
        created_at=datetime.now(UTC),
        operator=who.provenance.operator,
        kind=who.provenance.kind,
        parents=who.provenance.parent_ids,
        extras=who.provenance.extras,
        sandbox_backend=place.backend,
        sandbox_spec=place.spec,
        sandbox_handle_id=place.handle_id,
        workspace=stored_workspace(place),
        rows=rows,
        entries=entries,
        given=given,
        lineage=None if lineage is None else _lineage(lineage),
        provider=None if who.provider is None else provider_without_secrets(who.provider),
    )


def placement_line(place: PlacementRef) -> PlacementChange:
    """Return the line that tells where a session works now; blocks."""
    return PlacementChange(
        sandbox_backend=place.backend,
        sandbox_spec=place.spec,
        sandbox_handle_id=place.handle_id,
        workspace=stored_workspace(place),
    )


def is_same_place(one: Header | PlacementChange, other: Header | PlacementChange) -> bool:
    """Tell whether two lines name the same place; one that nobody used yet is any of its kind."""
    return _place_key(one) == _place_key(other)


def _place_key(line: Header | PlacementChange) -> tuple[object, ...]:
    workspace = line.workspace
    where: object = None
    if workspace is not None:
        used = workspace.id, workspace.handle, workspace.was_empty
        where = used if workspace.has_files else workspace.directory
    spec = json.dumps(spec_to_jsonable(line.sandbox_spec))
    return line.sandbox_backend, spec, line.sandbox_handle_id, where


def stored_workspace(place: PlacementRef) -> StoredWorkspace | None:
    """Return the description of a workspace for a log; looks at its directory, and blocks."""
    workspace = place.workspace
    return workspace.look() if isinstance(workspace, WorkspaceRef) else workspace


def record_of(edge: Edge) -> Vector[Any]:
    """Return the record of a parent as its child knows it, with what came late by then."""
    late: Vector[Any] | None = edge.late
    return _body(edge).record if late is None else late


def _body(edge: Edge) -> Body:
    assert edge.body is not None
    body: Body = edge.body.result()
    return body


def _lineage(lineage: SessionLineage) -> tuple[UUID, UUID, str]:
    user, agent = lineage.producer_user_session_id, lineage.producer_system_session_id
    return user, agent, lineage.operator


Record = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class PersistedSessionHeader:
    """The first line of a session file."""

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


def header_of(header: Header) -> PersistedSessionHeader:
    """Return the first event of a log in the documented form."""
    return PersistedSessionHeader(
        schema_version=CURRENT_SCHEMA_VERSION,
        id=header.session,
        created_at=header.created_at,
        parent_session_ids=header.parents,
        lineage_operator=header.operator,
        lineage_kind=header.kind,
        lineage_extras=header.extras,
        sandbox_backend=header.sandbox_backend,
        sandbox_spec=header.sandbox_spec,
        sandbox_handle_id=header.sandbox_handle_id,
    )


_NOT_PLAIN = frozenset(
    {
        "api_key",
        "base_url",
        "on_budget_exceeded",
        "extra_create_args",
        "fallbacks",
        "client",
        "config_entry",
    }
)
"""Fields of a provider that hold secrets or code, or are no plain values."""

_PLAIN = frozenset(each.name for each in fields(Provider)) - _NOT_PLAIN

_FROM_FILE = "session file"
"""Where the endpoint of a loaded provider came from, as its calls tell it."""


def provider_from_jsonable(fields: Mapping[str, Any]) -> Provider | None:
    """Return the provider that a header names, without a key; None where it is none.

    An endpoint that a file names never gets a key of the environment or of a config, unless the
    entry of a config that the provider was read from still names the same one.
    """
    try:
        plain = {name: value for name, value in fields.items() if name in _PLAIN}
        base_url: object = fields.get("base_url")
        if not isinstance(base_url, str):
            return Provider(**plain)
        configured = _known_provider(fields.get("config"), base_url)
        return (
            _with_file_endpoint(Provider(**plain), base_url)
            if configured is None
            else replace(configured, **plain)
        )
    except (TypeError, ValueError, AttributeError):
        return None


def _with_file_endpoint(bare: Provider, base_url: str) -> Provider:
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
        provider = Provider.from_config(name)
    except (KeyError, OSError, RathError):
        return None
    return provider if public_url(provider.base_url) == base_url else None
