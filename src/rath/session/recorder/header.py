"""The first lines of a log: who the session is, and what it begins with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Self
from uuid import UUID

from rath._core.vector import Vector
from rath.backend.abc import BackendSandboxSpec
from rath.llm.provider import Provider
from rath.session.body import Body, GivenUsage
from rath.session.graph.kind import LineageKind
from rath.session.graph.legacy import SessionLineage
from rath.session.graph.provenance import Edge, Provenance
from rath.session.persistence.lines import EntryLine, HeaderLine, Line, Part, RowLine
from rath.session.placement import Placement
from rath.session.recorder.encode import provider_without_secrets
from rath.session.recorder.ranges import Source, entry_parts, n_told, row_parts

_RUNS = (LineageKind.OP_SESSION_LOOP, LineageKind.OP_SESSION_COMPRESS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who a session is, apart from its content."""

    session: UUID
    provenance: Provenance
    lineage: SessionLineage | None = None
    sandbox_backend: str | None = None
    sandbox_spec: BackendSandboxSpec | None = None
    sandbox_handle_id: str | None = None
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
            sandbox_backend=placement.backend,
            sandbox_spec=placement.spec,
            sandbox_handle_id=sandbox_handle_id,
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
        return cls(session=edge.id, provenance=provenance, lineage=lineage)


@dataclass(frozen=True, slots=True)
class Beginning:
    """What a log begins with."""

    lines: Sequence[Line]
    n_entries: int
    """Entries that the header tells as parts of others."""


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
    return Beginning([header, *inline, *entries], n_told(told))


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
    lineage = who.lineage
    return HeaderLine(
        session=who.session,
        created_at=datetime.now(UTC),
        operator=who.provenance.operator,
        kind=who.provenance.kind,
        parents=who.provenance.parent_ids,
        extras=who.provenance.extras,
        sandbox_backend=who.sandbox_backend,
        sandbox_spec=who.sandbox_spec,
        sandbox_handle_id=who.sandbox_handle_id,
        rows=rows,
        entries=entries,
        given=given,
        lineage=None if lineage is None else _lineage(lineage),
        provider=None if who.provider is None else provider_without_secrets(who.provider),
    )


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
