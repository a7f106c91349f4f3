"""The first lines of a log: who the session is, and what it begins with."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Self
from uuid import UUID

from rath._core.vector import Vector
from rath.backend.persistence.spec_json import spec_to_jsonable
from rath.backend.workspace import StoredWorkspace, WorkspaceRef
from rath.llm.provider import Provider
from rath.session.body import Body, GivenUsage
from rath.session.graph.kind import LineageKind
from rath.session.graph.legacy import SessionLineage
from rath.session.graph.provenance import Edge, Provenance
from rath.session.persistence.lines import (
    EntryLine,
    HeaderLine,
    Line,
    Part,
    PlacementLine,
    RowLine,
)
from rath.session.placement import NOWHERE, Placement, Whereabouts
from rath.session.recorder.encode import provider_without_secrets
from rath.session.recorder.ranges import Source, entry_parts, n_told, row_parts

_RUNS = (LineageKind.OP_SESSION_LOOP, LineageKind.OP_SESSION_COMPRESS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who a session is, apart from its content."""

    session: UUID
    provenance: Provenance
    lineage: SessionLineage | None = None
    place: Whereabouts | None = None
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
class Beginning:
    """What a log begins with."""

    lines: Sequence[Line]
    n_entries: int
    """Entries that the header tells as parts of others."""

    place: Whereabouts | None = None
    """Where the session works; noted where the log tells another place. None leaves it so."""


def beginning(
    who: Identity,
    start: Body,
    *,
    parents: Sequence[Edge] = (),
) -> Beginning:
    """Return the lines with which the log of a session begins.

    Args:
        who: The session.
        start: What it holds when its run begins.
        parents: Those that are stored, of which ranges can be told.
    """
    own_rows = start.table.vector
    told_rows = row_parts(own_rows, [Source(edge.id, _body(edge).table.vector) for edge in parents])
    told = entry_parts(start.record, [Source(edge.id, record_of(edge)) for edge in parents])
    header = header_line(who, rows=told_rows, entries=told, given=start.given)
    first = n_told(told_rows)
    inline = [RowLine(at, row) for at, row in enumerate(own_rows.since(first), start=first)]
    entries = [EntryLine(entry) for entry in start.record.since(n_told(told))]
    return Beginning([header, *inline, *entries], n_told(told), who.place)


def header_line(
    who: Identity,
    *,
    rows: tuple[Part, ...] = (),
    entries: tuple[Part, ...] = (),
    given: tuple[GivenUsage, ...] = (),
) -> HeaderLine:
    """Return the first line of a log.

    Args:
        who: The session.
        rows: The ranges of others' rows with which it begins.
        entries: The ranges of others' entries.
        given: Usage that it comes with.
    """
    lineage, place = who.lineage, who.place or NOWHERE
    return HeaderLine(
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


def placement_line(place: Whereabouts) -> PlacementLine:
    """Return the line that tells where a session works now; blocks."""
    return PlacementLine(
        sandbox_backend=place.backend,
        sandbox_spec=place.spec,
        sandbox_handle_id=place.handle_id,
        workspace=stored_workspace(place),
    )


def is_same_place(one: HeaderLine | PlacementLine, other: HeaderLine | PlacementLine) -> bool:
    """Tell whether two lines name the same place; one that nobody used yet is any of its kind."""
    return _place_key(one) == _place_key(other)


def _place_key(line: HeaderLine | PlacementLine) -> tuple[object, ...]:
    known = line.workspace
    where: object = None
    if known is not None:
        used = known.id, known.handle, known.was_empty
        where = used if known.has_files else known.directory
    spec = json.dumps(spec_to_jsonable(line.sandbox_spec))
    return line.sandbox_backend, spec, line.sandbox_handle_id, where


def stored_workspace(place: Whereabouts) -> StoredWorkspace | None:
    """Return what a log says of a workspace; looks at its directory, and blocks."""
    known = place.workspace
    return known.look() if isinstance(known, WorkspaceRef) else known


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
