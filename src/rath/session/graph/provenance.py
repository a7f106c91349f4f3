"""Where a session came from: a plain frozen record that knows nothing of sessions."""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import dataclass, field, replace
from typing import Any, Protocol
from uuid import UUID

from rath._async.lazy import Deferred
from rath.session.graph.kind import LineageKind
from rath.session.graph.recording import LineageRecorder

PARENT_ROWS = "parent_rows"
"""The extra that says how many rows a parent had of which the session has none."""

RESUMED_FROM = "resumed_from"
"""The extra that says of which stored session this one is a copy: it has the lineage of that one,
and the operation in its record is not its own."""


class BodyLike(Protocol):
    """The content of a parent, as far as an edge needs to know it."""

    @property
    def table(self) -> Sized: ...


@dataclass(frozen=True, slots=True)
class Edge:
    """One parent, held by its content and never as a session, so that no sandbox stays open."""

    id: UUID
    body: Deferred[Any] | None = field(default=None, compare=False, repr=False)
    """The parent's content at that moment; None for a parent known by its id alone."""

    provenance: Provenance | None = field(default=None, compare=False, repr=False)
    """Where the parent itself came from."""

    late: Any = field(default=None, compare=False, repr=False)
    """The parent's record where late entries have made it longer than its body's, else None."""

    place: Any = field(default=None, compare=False, repr=False)
    """The `Whereabouts` of the parent at that moment, which keep no sandbox open, or None."""

    @property
    def n_rows(self) -> int | None:
        """The parent's row count at that moment; None while it is pending or when unknown."""
        body: BodyLike | None = None
        if self.body is not None and self.body.done():
            body = self.body.latest
        return None if body is None else len(body.table)


@dataclass(frozen=True, slots=True)
class Provenance:
    """Which operation made a session, and from what."""

    operator: str = "implicit"
    kind: LineageKind = LineageKind.UNKNOWN
    parents: tuple[Edge, ...] = ()
    extras: tuple[tuple[str, Any], ...] = ()

    @property
    def parent_ids(self) -> tuple[UUID, ...]:
        """Ids of the parents, in the order of the operation's arguments."""
        return tuple(edge.id for edge in self.parents)

    @property
    def is_copy(self) -> bool:
        """Whether it is that of another session, of which the session is a copy."""
        return any(name == RESUMED_FROM for name, _ in self.extras)

    def copied_from(self, session: UUID) -> Provenance:
        """Return this provenance of `session` for a copy of that session."""
        own = tuple(extra for extra in self.extras if extra[0] != RESUMED_FROM)
        return replace(self, extras=(*own, (RESUMED_FROM, str(session))))


def stamped(
    session: UUID,
    operator: str,
    kind: LineageKind,
    parents: tuple[Edge, ...] = (),
    extras: tuple[tuple[str, Any], ...] = (),
) -> Provenance:
    """Note a new session in the current journal and return its provenance.

    While session graph mode is off nothing is noted, and the session has no parents.
    """
    stamp = LineageRecorder.record_operation(
        session,
        parent_session_ids=tuple(edge.id for edge in parents),
        operator=operator,
        kind=kind,
        extras=extras,
    )
    return Provenance() if stamp is None else Provenance(operator, kind, parents, extras)
